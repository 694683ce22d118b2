#include "kernels/pointwise/rope_plain.h"

#include "base/status_macros.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Elements of a head that turn.
__host__ __device__ __forceinline__ int64_t
TurnedOf(const PlainRopeArgs& args) {
  return args.rotary_dim > 0 ? args.rotary_dim : args.head_dim;
}

// A thread turns one pair of a token's queries and keys. Limited by memory
// bandwidth.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    RopeKernel(const __grid_constant__ PlainRopeArgs args) {
  const int64_t half = TurnedOf(args) / 2;
  const int64_t pair = plain::ColumnOfThread();
  if (pair >= (args.num_heads + args.num_kv_heads) * half) return;
  const int64_t token = blockIdx.x;
  const int64_t position = token % args.sequence_length;
  const int64_t head = pair / half;
  const int64_t i = pair % half;
  T* first = static_cast<T*>(args.qkv) +
             (token * (args.num_heads + 2 * args.num_kv_heads) + head) *
                 args.head_dim +
             i;
  const float cosine = args.table[position * half + i];
  const float table_sine =
      args.table[(args.sequence_length + position) * half + i];
  const float sine = args.inverse ? -table_sine : table_sine;
  const float a = plain::ToFloat(first[0]);
  const float b = plain::ToFloat(first[half]);
  first[0] = plain::FromFloat<T>(a * cosine - b * sine);
  first[half] = plain::FromFloat<T>(b * cosine + a * sine);
}

}  // namespace

absl::Status LaunchPlainRope(const PlainRopeArgs& args, ElementType type,
                             cudaStream_t stream) {
  if (args.sequence_length < 1 || args.num_heads < 1 || args.num_kv_heads < 1 ||
      args.head_dim < 2 || args.head_dim % 2 != 0 || args.rotary_dim < 0 ||
      args.rotary_dim > args.head_dim || args.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain RoPE got sequences of ", args.sequence_length, ", ",
                     args.num_heads, " query and ", args.num_kv_heads,
                     " key-value heads of head_dim ", args.head_dim,
                     ", rotary_dim ", args.rotary_dim,
                     "; needs at least one of each, an even head_dim and an "
                     "even rotary_dim that is no larger"));
  }
  const int64_t num_pairs =
      (args.num_heads + args.num_kv_heads) * TurnedOf(args) / 2;
  RETURN_IF_ERROR(plain::CheckRows("plain RoPE", args.num_tokens, num_pairs));
  if (args.num_tokens == 0) return absl::OkStatus();
  plain::WithElements(type, [&]<typename T>() {
    RopeKernel<T><<<plain::RowsGrid(args.num_tokens, num_pairs),
                    plain::kNumThreads, 0, stream>>>(args);
  });
  return CudaStatus(cudaGetLastError(), "launch plain RoPE");
}

}  // namespace millrace
