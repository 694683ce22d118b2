// The shapes on which tuned kernels are measured, and tested: one launch each,
// on device memory of its own.

#ifndef MILLRACE_KERNELS_AUTOTUNE_TUNING_CASES_H_
#define MILLRACE_KERNELS_AUTOTUNE_TUNING_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/fwd.h"
#include "kernels/tuning/tuned_choice.h"

namespace millrace {

// A launch on one of several sets of tensors, together larger than the
// second-level cache unless the case is of its class. Inputs are normal.
struct TuningCase {
  TunedKernel kernel;
  int num_sets;
  std::function<absl::Status(int set, cudaStream_t stream)> launch;
  // Whether a choice means something here; the others are not measured.
  std::function<bool(const TuningValues& choice)> applies;
  // The output of set 0, as bf16 unless stated otherwise.
  struct Output {
    std::string name;
    void* data;
    int64_t size;  // Elements.
    bool is_fp32 = false;
  };
  std::vector<Output> outputs;
  std::vector<DeviceBuffer<uint8_t>> memory;  // Owns all of it.
};

// How to make a case; making it allocates.
struct TuningCaseMaker {
  std::string name;  // "norm_forward: RMSNorm of a sum, 16384 x 4096"
  TunedKernel kernel;
  std::function<absl::StatusOr<TuningCase>()> make;
};

// Returns the cases of training: 16k tokens of models from 1k to 8k wide, and
// cases that fit the cache. At most one case for each shape class.
std::vector<TuningCaseMaker> TrainingTuningCases();

// Odd shapes for tests, at least one of each kernel.
std::vector<TuningCaseMaker> SmallTuningCases();

}  // namespace millrace

#endif  // MILLRACE_KERNELS_AUTOTUNE_TUNING_CASES_H_
