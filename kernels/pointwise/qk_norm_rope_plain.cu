#include "kernels/pointwise/qk_norm_rope_plain.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"

namespace millrace {
namespace {

using plain::FromFloat;
using plain::kNumThreads;
using plain::ToFloat;

constexpr int kHeadsOfBlock = kNumThreads / gpu::kWarpSize;

__host__ __device__ __forceinline__ int64_t
NumNormed(const QkNormRopeShape& shape) {
  return shape.num_heads + shape.num_kv_heads;
}
// Elements of a token's row of the projection.
__host__ __device__ __forceinline__ int64_t
RowOf(const QkNormRopeShape& shape) {
  return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
}

__device__ __forceinline__ float OffsetOf(const QkNormRopeShape& shape) {
  return shape.adds_one ? 1.0f : 0.0f;
}

// The cosine and sine of pair i at a token.
struct Angle {
  float cosine, sine;
};
__device__ __forceinline__ Angle AngleOf(const float* table,
                                         const QkNormRopeShape& shape,
                                         int64_t token, int64_t i) {
  const int64_t half = shape.head_dim / 2;
  const int64_t position = token % shape.sequence_length;
  return {table[position * half + i],
          table[(shape.sequence_length + position) * half + i]};
}

__device__ __forceinline__ float SumOverWarp(float x) {
#pragma unroll
  for (int offset = gpu::kWarpSize / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}

// A warp a head. Limited by memory bandwidth: the second reading of a head
// finds it in the caches.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) QkNormForwardKernel(
    const __grid_constant__ PlainQkNormRopeForwardArgs args) {
  const QkNormRopeShape& shape = args.shape;
  const int lane = threadIdx.x % gpu::kWarpSize;
  const int64_t item =
      int64_t{blockIdx.x} * kHeadsOfBlock + threadIdx.x / gpu::kWarpSize;
  if (item >= shape.num_tokens * NumNormed(shape)) return;
  const int64_t token = item / NumNormed(shape);
  const int64_t head = item % NumNormed(shape);
  const int64_t half = shape.head_dim / 2;
  T* x =
      static_cast<T*>(args.qkv) + token * RowOf(shape) + head * shape.head_dim;
  T* raw = static_cast<T*>(args.raw) + item * shape.head_dim;
  const float* weight = head < shape.num_heads ? args.q_weight : args.k_weight;
  const float offset = OffsetOf(shape);
  float squares = 0.0f;
  for (int64_t i = lane; i < shape.head_dim; i += gpu::kWarpSize) {
    const float value = ToFloat(x[i]);
    raw[i] = x[i];
    squares += value * value;
  }
  const float rstd =
      1.0f / sqrtf(SumOverWarp(squares) / static_cast<float>(shape.head_dim) +
                   args.epsilon);
  if (lane == 0) args.rstd[item] = rstd;
  // The sum came from all lanes, so all have read the head.
  for (int64_t i = lane; i < half; i += gpu::kWarpSize) {
    const Angle angle = AngleOf(args.table, shape, token, i);
    const float a = ToFloat(x[i]) * rstd * (weight[i] + offset);
    const float b = ToFloat(x[i + half]) * rstd * (weight[i + half] + offset);
    x[i] = FromFloat<T>(a * angle.cosine - b * angle.sine);
    x[i + half] = FromFloat<T>(b * angle.cosine + a * angle.sine);
  }
}

// The gradient of the normed head, pair i of it, which is turned back.
struct Pair {
  float a, b;
};
template <typename T>
__device__ __forceinline__ Pair TurnedBack(const T* d_head, const float* table,
                                           const QkNormRopeShape& shape,
                                           int64_t token, int64_t i) {
  const int64_t half = shape.head_dim / 2;
  const Angle angle = AngleOf(table, shape, token, i);
  const float a = ToFloat(d_head[i]);
  const float b = ToFloat(d_head[i + half]);
  return {a * angle.cosine + b * angle.sine, b * angle.cosine - a * angle.sine};
}

// Tokens are cut into parts, whose number depends on how many tokens there are
// alone. Each part leaves its sums in the workspace: [part, kind, head_dim].
constexpr int64_t kMostNormParts = 256;
constexpr int64_t kTokensOfPart = 8;
int64_t NumNormParts(int64_t num_tokens) {
  return std::clamp<int64_t>(num_tokens / kTokensOfPart, 1, kMostNormParts);
}

// A block sums a part for the queries or the keys, a thread a pair. Limited by
// memory bandwidth and by how few blocks there are.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) WeightGradientPartKernel(
    const __grid_constant__ PlainQkNormRopeBackwardArgs args) {
  const QkNormRopeShape& shape = args.shape;
  const int64_t half = shape.head_dim / 2;
  const bool is_key = blockIdx.y == 1;
  const int64_t first = is_key ? shape.num_heads : 0;
  const int64_t count = is_key ? shape.num_kv_heads : shape.num_heads;
  const int64_t begin = shape.num_tokens * blockIdx.x / gridDim.x;
  const int64_t end = shape.num_tokens * (blockIdx.x + 1) / gridDim.x;
  float* sums = args.workspace +
                (int64_t{blockIdx.x} * 2 + (is_key ? 1 : 0)) * shape.head_dim;
  for (int64_t i = threadIdx.x; i < half; i += kNumThreads) {
    Pair sum = {0.0f, 0.0f};
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = first; head < first + count; ++head) {
        const int64_t item = token * NumNormed(shape) + head;
        const T* raw = static_cast<const T*>(args.raw) + item * shape.head_dim;
        const T* d_head = static_cast<const T*>(args.d_qkv) +
                          token * RowOf(shape) + head * shape.head_dim;
        const Pair d = TurnedBack(d_head, args.table, shape, token, i);
        sum.a += d.a * (ToFloat(raw[i]) * args.rstd[item]);
        sum.b += d.b * (ToFloat(raw[i + half]) * args.rstd[item]);
      }
    }
    sums[i] = sum.a;
    sums[i + half] = sum.b;
  }
}

// A thread an element of either weight, parts in their order.
__global__ void __launch_bounds__(kNumThreads)
    AddNormPartsKernel(const __grid_constant__ PlainQkNormRopeBackwardArgs args,
                       int64_t num_parts) {
  const int64_t head_dim = args.shape.head_dim;
  const int64_t i = int64_t{blockIdx.x} * kNumThreads + threadIdx.x;
  if (i >= 2 * head_dim) return;
  float* d_weight =
      i < head_dim ? args.d_q_weight + i : args.d_k_weight + (i - head_dim);
  float sum = args.accumulate ? *d_weight : 0.0f;
  for (int64_t part = 0; part < num_parts; ++part) {
    sum += args.workspace[part * 2 * head_dim + i];
  }
  *d_weight = sum;
}

// A warp a head. With n = x rstd: g = d_y weight, d_x = rstd (g - n mean of
// g n). Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(kNumThreads) InputGradientHeadKernel(
    const __grid_constant__ PlainQkNormRopeBackwardArgs args) {
  const QkNormRopeShape& shape = args.shape;
  const int lane = threadIdx.x % gpu::kWarpSize;
  const int64_t item =
      int64_t{blockIdx.x} * kHeadsOfBlock + threadIdx.x / gpu::kWarpSize;
  if (item >= shape.num_tokens * NumNormed(shape)) return;
  const int64_t token = item / NumNormed(shape);
  const int64_t head = item % NumNormed(shape);
  const int64_t half = shape.head_dim / 2;
  T* d_head = static_cast<T*>(args.d_qkv) + token * RowOf(shape) +
              head * shape.head_dim;
  const T* raw = static_cast<const T*>(args.raw) + item * shape.head_dim;
  const float* weight = head < shape.num_heads ? args.q_weight : args.k_weight;
  const float offset = OffsetOf(shape);
  const float rstd = args.rstd[item];
  float sum = 0.0f;
  for (int64_t i = lane; i < half; i += gpu::kWarpSize) {
    const Pair d = TurnedBack(d_head, args.table, shape, token, i);
    sum += d.a * (weight[i] + offset) * (ToFloat(raw[i]) * rstd) +
           d.b * (weight[i + half] + offset) * (ToFloat(raw[i + half]) * rstd);
  }
  const float mean = SumOverWarp(sum) / static_cast<float>(shape.head_dim);
  for (int64_t i = lane; i < half; i += gpu::kWarpSize) {
    const Pair d = TurnedBack(d_head, args.table, shape, token, i);
    const float a = ToFloat(raw[i]) * rstd;
    const float b = ToFloat(raw[i + half]) * rstd;
    d_head[i] = FromFloat<T>(rstd * (d.a * (weight[i] + offset) - a * mean));
    d_head[i + half] =
        FromFloat<T>(rstd * (d.b * (weight[i + half] + offset) - b * mean));
  }
}

absl::Status CheckPlainQkNormRope(const QkNormRopeShape& shape) {
  if (shape.sequence_length < 1 || shape.num_heads < 1 ||
      shape.num_kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plain QkNormRope got sequences of ", shape.sequence_length, ", ",
        shape.num_heads, " query and ", shape.num_kv_heads,
        " key-value heads of head_dim ", shape.head_dim,
        "; needs at least one of each and an even head_dim"));
  }
  RETURN_IF_ERROR(
      plain::CheckRows("plain QkNormRope", shape.num_tokens, RowOf(shape)));
  return plain::CheckRows("plain QkNormRope",
                          shape.num_tokens * NumNormed(shape), shape.head_dim);
}

unsigned HeadBlocks(const QkNormRopeShape& shape) {
  return static_cast<unsigned>(
      (shape.num_tokens * NumNormed(shape) + kHeadsOfBlock - 1) /
      kHeadsOfBlock);
}

}  // namespace

int64_t PlainQkNormRopeBackwardWorkspaceBytes(const QkNormRopeShape& shape) {
  return NumNormParts(shape.num_tokens) * 2 * shape.head_dim *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchPlainQkNormRopeForward(
    const PlainQkNormRopeForwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckPlainQkNormRope(args.shape));
  if (args.shape.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    QkNormForwardKernel<T>
        <<<HeadBlocks(args.shape), kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain QkNormRope");
}

absl::Status LaunchPlainQkNormRopeBackward(
    const PlainQkNormRopeBackwardArgs& args, ElementType type,
    cudaStream_t stream) {
  RETURN_IF_ERROR(CheckPlainQkNormRope(args.shape));
  const int64_t num_parts = NumNormParts(args.shape.num_tokens);
  const dim3 parts(static_cast<unsigned>(num_parts), 2);
  plain::WithElements(type, [&]<typename T>() {
    WeightGradientPartKernel<T><<<parts, kNumThreads, 0, stream>>>(args);
    if (args.shape.num_tokens > 0) {
      InputGradientHeadKernel<T>
          <<<HeadBlocks(args.shape), kNumThreads, 0, stream>>>(args);
    }
  });
  AddNormPartsKernel<<<static_cast<unsigned>(
                           (2 * args.shape.head_dim + kNumThreads - 1) /
                           kNumThreads),
                       kNumThreads, 0, stream>>>(args, num_parts);
  return CudaStatus(cudaGetLastError(), "launch plain QkNormRope backward");
}

}  // namespace millrace
