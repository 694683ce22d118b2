#include "kernels/vocabulary/embedding_plain.h"

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/radix_sort.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::ToFloat;

// A thread an element of a token. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads) EmbeddingForwardKernel(
    const __grid_constant__ PlainEmbeddingForwardArgs args) {
  const int64_t column = plain::ColumnOfThread();
  if (column >= args.hidden) return;
  const int64_t token = blockIdx.x;
  const int64_t row = args.tokens[token] - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.vocab_rows;
  const float x = is_mine ? ToFloat(static_cast<const T*>(
                                args.weight)[row * args.hidden + column])
                          : 0.0f;
  static_cast<T*>(args.x)[token * args.hidden + column] =
      FromFloat<T>(args.scale * x);
}

// The row of each token, vocab_rows for none, and its position: what is sorted.
__global__ void __launch_bounds__(plain::kNumThreads)
    RowsOfTokensKernel(const __grid_constant__ PlainEmbeddingBackwardArgs args,
                       int32_t* rows, int32_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * plain::kNumThreads + threadIdx.x;
  if (i >= args.num_tokens) return;
  const int64_t row = args.tokens[i] - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.vocab_rows;
  rows[i] = static_cast<int32_t>(is_mine ? row : args.vocab_rows);
  positions[i] = static_cast<int32_t>(i);
}

// A block a sorted token, a thread a column: where a run of equal rows begins,
// it adds the run, which is in token order since the sort is stable. The
// longest run limits it.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    AddRunsKernel(const __grid_constant__ PlainEmbeddingBackwardArgs args,
                  const int32_t* rows, const int32_t* positions) {
  const int64_t begin = blockIdx.x;
  const int64_t row = rows[begin];
  const bool continues = begin > 0 && rows[begin - 1] == row;
  const int64_t column = plain::ColumnOfThread();
  if (continues || row >= args.vocab_rows || column >= args.hidden) return;
  int64_t end = begin + 1;  // The first token of another row.
  for (int64_t beyond = args.num_tokens; end < beyond;) {
    const int64_t middle = (end + beyond) / 2;
    if (rows[middle] == row) {
      end = middle + 1;
    } else {
      beyond = middle;
    }
  }
  float& gradient = args.d_weight[row * args.hidden + column];
  float sum = args.accumulate ? gradient : 0.0f;
  const T* d_x = static_cast<const T*>(args.d_x) + column;
#pragma unroll 8
  for (int64_t i = begin; i < end; ++i) {
    sum += args.scale * ToFloat(d_x[positions[i] * args.hidden]);
  }
  gradient = sum;
}

// Workspace: rows, positions, the sort's own; each from a multiple of 16 bytes.
int64_t BytesOfTokens(int64_t num_tokens) {
  return (num_tokens * static_cast<int64_t>(sizeof(int32_t)) + 15) / 16 * 16;
}

absl::Status CheckShard(int64_t vocab_begin, int64_t vocab_rows) {
  if (vocab_begin >= 0 && vocab_rows >= 1 && vocab_rows <= plain::kMaxRows) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "plain embedding got vocabulary rows from ", vocab_begin, ", ",
      vocab_rows, " of them; needs zero or more, and one or more below 2^31"));
}

}  // namespace

int64_t PlainEmbeddingBackwardWorkspaceBytes(int64_t num_tokens) {
  return 2 * BytesOfTokens(num_tokens) + RadixSortWorkspaceBytes(num_tokens);
}

absl::Status LaunchPlainEmbeddingForward(const PlainEmbeddingForwardArgs& args,
                                         ElementType type,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShard(args.vocab_begin, args.vocab_rows));
  RETURN_IF_ERROR(plain::CheckRows("plain embedding forward", args.num_tokens,
                                   args.hidden));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    EmbeddingForwardKernel<T><<<plain::RowsGrid(args.num_tokens, args.hidden),
                                plain::kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain embedding forward");
}

absl::Status LaunchPlainEmbeddingBackward(
    const PlainEmbeddingBackwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShard(args.vocab_begin, args.vocab_rows));
  RETURN_IF_ERROR(plain::CheckRows("plain embedding backward", args.num_tokens,
                                   args.hidden));
  if (!args.accumulate) {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(args.d_weight, 0,
                        args.vocab_rows * args.hidden * sizeof(float), stream),
        "zero the gradient of the embedding"));
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.workspace == nullptr ||
      reinterpret_cast<uintptr_t>(args.workspace) % 16 != 0) {
    return absl::InvalidArgumentError(
        "plain embedding backward got a workspace that does not begin at a "
        "multiple of 16 bytes");
  }
  char* const base = static_cast<char*>(args.workspace);
  const int64_t part = BytesOfTokens(args.num_tokens);
  int32_t* const rows = reinterpret_cast<int32_t*>(base);
  int32_t* const positions = reinterpret_cast<int32_t*>(base + part);
  RowsOfTokensKernel<<<static_cast<unsigned>(
                           (args.num_tokens + plain::kNumThreads - 1) /
                           plain::kNumThreads),
                       plain::kNumThreads, 0, stream>>>(args, rows, positions);
  RETURN_IF_ERROR(LaunchRadixSort({.keys = rows,
                                   .values = positions,
                                   .num_pairs = args.num_tokens,
                                   .key_limit = args.vocab_rows + 1,
                                   .workspace = base + 2 * part},
                                  stream));
  plain::WithElements(type, [&]<typename T>() {
    AddRunsKernel<T><<<plain::RowsGrid(args.num_tokens, args.hidden),
                       plain::kNumThreads, 0, stream>>>(args, rows, positions);
  });
  return CudaStatus(cudaGetLastError(), "launch plain embedding backward");
}

}  // namespace millrace
