// A Stepper runs a Program one instruction at a time, in its sequential order,
// and lets every buffer be read and written in between: how two backends are
// compared op by op (compare.h). Slow on purpose: each call waits.

#ifndef MILLRACE_WORKER_TRAIN_STEPPER_H_
#define MILLRACE_WORKER_TRAIN_STEPPER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "planner/program/program.h"
#include "worker/data/batch_source.h"

namespace millrace {

// The Program must be of a single rank, since a Stepper has no communicators.
struct StepperOptions {
  const Program* program;   // Borrowed for the lifetime.
  JobSpec job;              // Model and training recipe.
  int64_t step = 1;         // Which batch is read, and AdamW's step number.
  int32_t num_threads = 1;  // On a CPU.
  BatchSource* batches = nullptr;  // Borrowed for the lifetime.
};

class Stepper {
 public:
  virtual ~Stepper() = default;

  virtual const Program& program() const = 0;

  // Runs the instruction and waits until it is done. Errors name it.
  virtual absl::Status Run(InstructionId id) = 0;

  // All elements of a buffer, row-major, whatever their type is.
  virtual absl::StatusOr<std::vector<float>> Read(BufferId id) = 0;
  // `values` as many as the buffer has elements; rounded to its type.
  virtual absl::Status Write(BufferId id, const std::vector<float>& values) = 0;
};

// All parameters of one rank in the order of Program::parameters, wherever the
// Program keeps them; written, they are rounded as it keeps them. Parameters in
// 8 bits are the master weights of which each step makes them; all other master
// weights stay.
absl::StatusOr<std::vector<float>> ReadParameters(Stepper& stepper);
absl::Status WriteParameters(const std::vector<float>& values,
                             Stepper& stepper);

int64_t NumElements(const Buffer& buffer);

// To and from what a buffer of `dtype` holds in host memory; bf16 rounds to
// nearest, ties to even, a not-a-number stays one.
std::vector<float> ValuesFromMemory(DType dtype, const std::byte* memory,
                                    int64_t num_elements);
void ValuesToMemory(const std::vector<float>& values, DType dtype,
                    std::byte* memory);
// Rounds each value to the one that a buffer of `dtype` would keep.
void RoundTo(DType dtype, std::vector<float>* values);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STEPPER_H_
