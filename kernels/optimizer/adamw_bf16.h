// AdamW on a GPU over flat buffers (the math stands in adamw.h): fp32 master
// weights with a bf16 copy for the forward pass, or bf16 weights alone.
//
// Values kept in bf16 between steps (moments, weights without a master) are
// rounded stochastically, since rounding to nearest would lose every change
// below 1/256 of a value. The random bits are Philox4x32 (random_normal.h) of
// (seed, step, element), so that equal runs give equal bits however they are
// cut into launches.

#ifndef MILLRACE_KERNELS_OPTIMIZER_ADAMW_BF16_H_
#define MILLRACE_KERNELS_OPTIMIZER_ADAMW_BF16_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// The values that change from step to step.
struct AdamWStep {
  double learning_rate;
  int64_t step;  // At least one; the first is 1.
};

// Buffers are on the device, begin at multiples of 16 bytes and do not overlap.
struct AdamWBf16Args {
  float* master;          // Null: the bf16 weights are all there is.
  void* weights;          // bf16; may be null where there is a master.
  void* exp_avg;          // m; fp32, or bf16 with bf16_moments.
  void* exp_avg_sq;       // v; of the same type as m.
  const void* gradients;  // fp32, or bf16 with bf16_gradients.
  bool bf16_moments;
  bool bf16_gradients;
  // One launch updates the elements [begin, end) of every buffer: a run of
  // parameters that share a weight decay. An empty run does nothing.
  int64_t begin;
  int64_t end;
  double learning_rate;  // Not read where there is a device_step, as is step.
  double beta1;          // In [0, 1), as is beta2.
  double beta2;
  double epsilon;
  double weight_decay;
  int64_t step;   // At least one; the first is 1.
  uint64_t seed;  // For stochastic rounding.
  // The element that the buffers' first one is to the random bits: a multiple
  // of four. So a slice of a tensor gets the bits of the whole.
  int64_t first_index = 0;
  // Read on the device when the kernel runs (gradient_norm_bf16.h writes both).
  const float* clip_factor = nullptr;  // Scales the gradients; null: one.
  const int32_t* skip = nullptr;       // Not zero: change nothing; null: zero.
  // Not null: learning rate and step are read here when the kernel runs, so
  // that a captured graph serves every step.
  const AdamWStep* device_step = nullptr;
};

// Enqueues on `stream`, allocates nothing. InvalidArgument names what is out of
// range. Each element is read and written once: between 14 (all bf16) and 30
// bytes (all fp32, with a bf16 copy).
absl::Status LaunchAdamWBf16(const AdamWBf16Args& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_OPTIMIZER_ADAMW_BF16_H_
