// Output projection and cross entropy loss in one on a GPU, forward and
// backward, over chunks of tokens (cross_entropy.h says what is computed and
// how the vocabulary is sharded, element_type.h what plain means).

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_PLAIN_H_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_PLAIN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/vocabulary/cross_entropy.h"

namespace millrace {

struct PlainCrossEntropyOptions {
  CrossEntropyOptions problem;
  ElementType type;  // For hidden, d_hidden, weight and logits.
  int64_t max_gemm_workspace_bytes = int64_t{32} << 20;
};

// Device pointers, aligned to 16 bytes; void is of the element type, d_weight
// is fp32. Outputs overlap nothing.
struct PlainLinearCrossEntropyArgs {
  void* d_hidden;          // [num_tokens, hidden]
  float* d_weight;         // [vocab_rows, hidden]
  double* loss;            // One element, added to: token_scale loss_share sum.
  const void* hidden;      // [num_tokens, hidden]
  const void* weight;      // [vocab_rows, hidden]
  const int32_t* targets;  // [num_tokens]; one beyond the vocabulary makes the
                           // loss NaN.
  void* logits;            // logits_bytes()
  void* workspace;         // workspace_bytes(), aligned to 256.
};

struct PlainCrossEntropyStatsArgs {
  float* stats;  // [num_tokens, kNumCrossEntropyStats]
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  void* logits;
  void* workspace;
};

struct PlainCrossEntropyGradientArgs {
  void* d_hidden;  // This shard's part of the sum over shards.
  float* d_weight;
  double* loss;
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  const float* all_stats;  // [num_shards, num_tokens, kNumCrossEntropyStats]
  int64_t num_shards;      // At least one.
  const float* token_weights = nullptr;  // As CrossEntropyGradientArgs.
  void* logits;
  void* workspace;
};

// One shape on one device, made ready at set-up. Move-only; calls that may
// overlap need buffers each.
//
// Calls enqueue on `stream`, allocate nothing and may be captured by a graph.
// Equal inputs give equal bits. InvalidArgument names what cannot be.
class PlainCrossEntropyPlan {
 public:
  static absl::StatusOr<PlainCrossEntropyPlan> Create(
      const PlainCrossEntropyOptions& options);
  PlainCrossEntropyPlan(PlainCrossEntropyPlan&&) noexcept;
  PlainCrossEntropyPlan& operator=(PlainCrossEntropyPlan&&) noexcept;
  ~PlainCrossEntropyPlan();

  // Returns the bytes of chunk_tokens rows. Rows are dense in fp32; in bf16
  // vocab_rows is rounded up to a multiple of 8 elements.
  int64_t logits_bytes() const;
  // A loss of each token in fp64, and the GEMMs' own.
  int64_t workspace_bytes() const;

  // Forward and backward in one pass; needs the whole vocabulary (vocab_begin
  // zero, else InvalidArgument).
  absl::Status LinearCrossEntropy(const PlainLinearCrossEntropyArgs& args,
                                  cudaStream_t stream) const;
  absl::Status Stats(const PlainCrossEntropyStatsArgs& args,
                     cudaStream_t stream) const;
  absl::Status Gradient(const PlainCrossEntropyGradientArgs& args,
                        cudaStream_t stream) const;

 private:
  struct Impl;
  explicit PlainCrossEntropyPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_PLAIN_H_
