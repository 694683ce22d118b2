// Output projection and cross entropy loss in one on the GPU, forward and
// backward, of bf16 tensors; cross_entropy.h says what is computed and how the
// vocabulary is sharded.
//
// Tokens go in chunks, so that logits never take more than a given number of
// bytes: three GEMMs a chunk through gemm_bf16.h, and between them one kernel
// that turns bf16 logits into their gradient where they stand. Sums of
// exponentials, losses and the gradient of weight are fp32 or better;
// logits and their gradient are rounded to bf16 once each.

#ifndef MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_H_
#define MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm_bf16.h"
#include "kernels/vocabulary/cross_entropy.h"

namespace millrace {

// The algorithms for full chunks. A product without one takes the heuristic's
// first choice.
struct CrossEntropyBf16Algorithms {
  std::optional<GemmAlgorithm> logits;
  std::optional<GemmAlgorithm> d_hidden;
  std::optional<GemmAlgorithm> d_weight;
};

// The products of a chunk of `num_tokens` tokens, to look their algorithms up
// by; d_weight's serves whether it adds or not.
struct CrossEntropyBf16Products {
  GemmBf16Shape logits;
  GemmBf16Shape d_hidden;
  GemmBf16Shape d_weight;  // Accumulates.
};
CrossEntropyBf16Products CrossEntropyBf16ProductsOf(
    const CrossEntropyOptions& problem, int64_t num_tokens);

struct CrossEntropyBf16Options {
  // hidden is a multiple of 8, vocab_rows may be any. chunk_tokens zero: chunks
  // of equal size, as few as max_logits_bytes allows.
  CrossEntropyOptions problem;
  int64_t max_logits_bytes = int64_t{1} << 30;
  int64_t max_gemm_workspace_bytes = int64_t{32} << 20;
  CrossEntropyBf16Algorithms algorithms;
};

// Device pointers, aligned to 16 bytes; outputs overlap nothing.
struct LinearCrossEntropyBf16Args {
  void* d_hidden;          // bf16 [num_tokens, hidden]
  float* d_weight;         // [vocab_rows, hidden]
  double* loss;            // One element, added to: token_scale loss_share sum.
  const void* hidden;      // bf16 [num_tokens, hidden]
  const void* weight;      // bf16 [vocab_rows, hidden]
  const int32_t* targets;  // [num_tokens]; one beyond the vocabulary makes the
                           // loss NaN.
  // Not null: one element, a further factor of token_scale that only the device
  // knows, such as one over the number of tokens that count (CountTargets).
  const float* device_token_scale = nullptr;
  void* workspace;  // workspace_bytes(), aligned to 256.
};

struct CrossEntropyStatsBf16Args {
  float* stats;  // [num_tokens, kNumCrossEntropyStats]
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  void* workspace;
};

struct CrossEntropyGradientBf16Args {
  void* d_hidden;  // bf16, this shard's part of the sum over shards.
  float* d_weight;
  double* loss;
  const void* hidden;
  const void* weight;
  const int32_t* targets;
  const float* all_stats;  // [num_shards, num_tokens, kNumCrossEntropyStats]
  int64_t num_shards;      // At least one.
  const float* device_token_scale = nullptr;
  const float* token_weights = nullptr;  // As CrossEntropyGradientArgs.
  // The workspace still holds the logits that Stats() left, which saves
  // computing them again; only where num_chunks() is one.
  bool has_logits = false;
  void* workspace;
};

// One shape on one device, made ready at set-up. Move-only; calls that may
// overlap need a workspace each.
//
// Calls enqueue on `stream`, allocate nothing and may be captured by a graph.
// Equal inputs give equal bits. InvalidArgument names what cannot be.
class CrossEntropyBf16Plan {
 public:
  // InvalidArgument names the size that cannot be, or an algorithm that cannot
  // do it.
  static absl::StatusOr<CrossEntropyBf16Plan> Create(
      const CrossEntropyBf16Options& options);
  CrossEntropyBf16Plan(CrossEntropyBf16Plan&&) noexcept;
  CrossEntropyBf16Plan& operator=(CrossEntropyBf16Plan&&) noexcept;
  ~CrossEntropyBf16Plan();

  int64_t chunk_tokens() const;
  int64_t num_chunks() const;
  int64_t workspace_bytes() const;  // Logits included.

  // Forward and backward in one pass; needs the whole vocabulary (vocab_begin
  // zero, else InvalidArgument).
  absl::Status LinearCrossEntropy(const LinearCrossEntropyBf16Args& args,
                                  cudaStream_t stream) const;
  absl::Status Stats(const CrossEntropyStatsBf16Args& args,
                     cudaStream_t stream) const;
  absl::Status Gradient(const CrossEntropyGradientBf16Args& args,
                        cudaStream_t stream) const;

 private:
  struct Impl;
  explicit CrossEntropyBf16Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Finds the fastest algorithms of a full chunk by running `max_candidates` of
// each product on the given buffers. Ignores options.algorithms, overwrites
// outputs and workspace, blocks, and wants the chip to itself. The workspace
// may need more than that of a plan.
absl::StatusOr<int64_t> MeasureCrossEntropyBf16WorkspaceBytes(
    const CrossEntropyBf16Options& options);
absl::StatusOr<CrossEntropyBf16Algorithms> MeasureCrossEntropyBf16(
    const CrossEntropyBf16Options& options,
    const LinearCrossEntropyBf16Args& args, int max_candidates,
    cudaStream_t stream);

// The loss alone, from all ranks' stats; device pointers.
absl::Status LaunchCrossEntropyLoss(const CrossEntropyLossArgs& args,
                                    cudaStream_t stream);

// How many targets are not negative.
struct CountTargetsArgs {
  int64_t* count;          // One element, added to.
  float* reciprocal;       // May be null: 1 / max(1, *count), after adding.
  const int32_t* targets;  // [num_tokens]
  int64_t num_tokens;      // Zero is allowed.
};
absl::Status LaunchCountTargets(const CountTargetsArgs& args,
                                cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_VOCABULARY_CROSS_ENTROPY_BF16_H_
