#include "kernels/pointwise/rope_bf16.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast_divide.h"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/rope_bf16_kernels.cuh"
#include "kernels/tuning/tuned_choice.h"

namespace millrace {
namespace {

using gpu::RopeParams;
using gpu::RopePart;

// Blocks of a multiprocessor where they walk, and heads under way for each
// lane, before anything was tuned.
constexpr int kForwardBlocks = 3;
constexpr int kForwardStages = 3;
constexpr int kBackwardBlocks = 3;
// Heads are counted in 32 bits on the device, also somewhat past their end.
constexpr int64_t kMaxHeads = int64_t{1} << 30;

constexpr int64_t kMaxBackwardBlocks = 192 * kBackwardBlocks;

absl::Status Check(const RopeBf16Shape& shape, bool has_position_ids,
                   bool has_q_weight, bool has_k_weight,
                   std::initializer_list<int64_t> strides,
                   std::initializer_list<const void*> addresses) {
  if (shape.head_dim < 16 || shape.head_dim > 512 || shape.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoPE takes a head_dim that is a multiple of 16 up to "
                     "512; got ",
                     shape.head_dim));
  }
  if (shape.num_tokens < 0 || shape.num_heads < 1 || shape.num_kv_heads < 1 ||
      shape.num_heads + shape.num_kv_heads >
          kMaxHeads / std::max(shape.num_tokens, shape.head_dim)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RoPE got ", shape.num_tokens, " tokens, ", shape.num_heads,
        " query heads and ", shape.num_kv_heads,
        " key heads; heads must be positive, and tokens x heads at most 2^30"));
  }
  if (shape.sequence_length < 1 ||
      shape.sequence_length > std::numeric_limits<int32_t>::max() ||
      shape.table_length < 1 ||
      (!has_position_ids && shape.table_length < shape.sequence_length)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RoPE got sequences of ", shape.sequence_length,
        " tokens and a table of ", shape.table_length,
        " positions; both must be positive, and the table at least as long"));
  }
  if (shape.rotary_dim < 0 || shape.rotary_dim > shape.head_dim ||
      shape.rotary_dim % 16 != 0 || (shape.rotary_dim > 0 && has_q_weight)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RoPE got a rotary_dim of ", shape.rotary_dim, " for heads of ",
        shape.head_dim, has_q_weight ? " with QK-norm" : "",
        "; it takes a multiple of 16 that is no larger, without QK-norm"));
  }
  if (has_q_weight != has_k_weight) {
    return absl::InvalidArgumentError(
        "RoPE with QK-norm takes a weight for queries and one for keys; one is "
        "missing");
  }
  for (const int64_t stride : strides) {
    if (stride % 8 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "RoPE takes token strides that are multiples of 8; got ", stride));
    }
  }
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return absl::InvalidArgumentError(
          "RoPE takes addresses that are multiples of 16 bytes; one of them is "
          "not");
    }
  }
  return absl::OkStatus();
}

// The lanes for a head of `half` pairs, as a constant.
template <typename F>
absl::Status ForLanes(int half, const F& f) {
  if (half <= 32) return f(std::integral_constant<int, 4>());
  if (half <= 64) return f(std::integral_constant<int, 8>());
  if (half <= 128) return f(std::integral_constant<int, 16>());
  return f(std::integral_constant<int, 32>());
}

RopePart MakePart(int64_t first_head, int64_t num_heads, const void* weight) {
  return {.first_head = static_cast<int>(first_head),
          .num_heads = MakeFastDivisor(static_cast<uint32_t>(num_heads)),
          .weight = weight};
}

// Queries and keys; `num_blocks` are dealt to them by their number of heads.
void MakeParts(const RopeBf16Shape& shape, const void* q_weight,
               const void* k_weight, int64_t num_blocks, RopeParams* p) {
  p->parts[0] = MakePart(0, shape.num_heads, q_weight);
  p->parts[1] = MakePart(shape.num_heads, shape.num_kv_heads, k_weight);
  const int64_t key_blocks = std::clamp<int64_t>(
      num_blocks * shape.num_kv_heads / p->num_all_heads, 1, num_blocks - 1);
  p->parts[0].num_blocks = static_cast<int>(num_blocks - key_blocks);
  p->parts[1].first_block = p->parts[0].num_blocks;
  p->parts[1].num_blocks = static_cast<int>(key_blocks);
}

absl::Status LaunchTurn(RopeParams p, cudaStream_t stream) {
  p.parts[0] = MakePart(0, p.num_all_heads, nullptr);
  return ForLanes(p.half, [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    constexpr int kGroups = gpu::kRopeThreads / kLanes;
    const int64_t num_blocks =
        (p.num_tokens * p.num_all_heads + kGroups - 1) / kGroups;
    gpu::RopeKernel<kLanes>
        <<<static_cast<unsigned>(num_blocks), gpu::kRopeThreads, 0, stream>>>(
            p);
    return CudaStatus(cudaGetLastError(), "launch RopeBf16");
  });
}

// Chooses among 2 to 4 blocks and stages.
template <int kLanes>
auto NormForwardKernel(int64_t blocks, int64_t stages) {
  using Kernel = void (*)(RopeParams);
  static constexpr Kernel kKernels[3][3] = {
      {gpu::RopeNormForwardKernel<kLanes, 2, 2>,
       gpu::RopeNormForwardKernel<kLanes, 2, 3>,
       gpu::RopeNormForwardKernel<kLanes, 2, 4>},
      {gpu::RopeNormForwardKernel<kLanes, 3, 2>,
       gpu::RopeNormForwardKernel<kLanes, 3, 3>,
       gpu::RopeNormForwardKernel<kLanes, 3, 4>},
      {gpu::RopeNormForwardKernel<kLanes, 4, 2>,
       gpu::RopeNormForwardKernel<kLanes, 4, 3>,
       gpu::RopeNormForwardKernel<kLanes, 4, 4>}};
  return kKernels[blocks - 2][stages - 2];
}

RopeParams MakeParams(const RopeBf16Shape& shape, const float* table,
                      const int32_t* position_ids) {
  RopeParams p = {};
  p.table = table;
  p.position_ids = position_ids;
  p.num_tokens = shape.num_tokens;
  p.table_length = shape.table_length;
  p.sequence_length =
      MakeFastDivisor(static_cast<uint32_t>(shape.sequence_length));
  p.half = static_cast<int>(
      (shape.rotary_dim > 0 ? shape.rotary_dim : shape.head_dim) / 2);
  p.head_dim = static_cast<int>(shape.head_dim);
  p.num_all_heads = static_cast<int>(shape.num_heads + shape.num_kv_heads);
  p.sine_sign = 1.0f;
  return p;
}

// Raises amax by the elements of d_qkv that no kernel of the turn writes.
absl::Status LaunchAmaxOfRest(const RopeBackwardBf16Args& args,
                              bool turns_whole_heads, cudaStream_t stream) {
  const RopeBf16Shape& shape = args.shape;
  const int64_t num_heads = shape.num_heads + 2 * shape.num_kv_heads;
  const int64_t first_head =
      turns_whole_heads ? shape.num_heads + shape.num_kv_heads : 0;
  return LaunchAmaxBf16({.amax = args.amax,
                         .x = static_cast<const __nv_bfloat16*>(args.d_qkv) +
                              first_head * shape.head_dim,
                         .x_row_stride = args.d_qkv_token_stride,
                         .rows = shape.num_tokens,
                         .columns = (num_heads - first_head) * shape.head_dim},
                        stream);
}

}  // namespace

int64_t RopeBackwardBf16WorkspaceBytes(const RopeBf16Shape& shape) {
  return kMaxBackwardBlocks * shape.head_dim *
         static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchRopeForwardBf16(const RopeForwardBf16Args& args,
                                   cudaStream_t stream) {
  const RopeBf16Shape& shape = args.shape;
  RETURN_IF_ERROR(Check(shape, args.position_ids != nullptr,
                        args.q_weight != nullptr, args.k_weight != nullptr,
                        {args.out_token_stride, args.qkv_token_stride},
                        {args.out, args.qkv, args.table, args.q_weight,
                         args.k_weight, args.raw}));
  if (shape.num_tokens == 0) return absl::OkStatus();
  RopeParams p = MakeParams(shape, args.table, args.position_ids);
  p.out = static_cast<__nv_bfloat16*>(args.out);
  p.out_token_stride = args.out_token_stride;
  p.in = static_cast<const __nv_bfloat16*>(args.qkv);
  p.in_token_stride = args.qkv_token_stride;
  if (args.q_weight == nullptr) return LaunchTurn(p, stream);

  p.raw = static_cast<__nv_bfloat16*>(args.raw);
  p.rstd = args.rstd;
  p.epsilon = args.epsilon;
  p.fp32_weight = args.fp32_weight;
  p.weight_offset = args.adds_one ? 1.0f : 0.0f;
  const int64_t num_bytes =
      shape.num_tokens * p.num_all_heads * 4 * shape.head_dim;
  const TuningValues choice =
      TunedChoice(TunedKernel::kRopeNormForward,
                  {SizeClass(shape.head_dim), IsCachedClass(num_bytes)},
                  {kForwardBlocks, kForwardStages});
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  const int64_t num_blocks = choice[0] * limits.num_multiprocessors;
  MakeParts(shape, args.q_weight, args.k_weight, num_blocks, &p);
  return ForLanes(p.half, [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    NormForwardKernel<kLanes>(choice[0],
                              choice[1])<<<static_cast<unsigned>(num_blocks),
                                           gpu::kRopeThreads, 0, stream>>>(p);
    return CudaStatus(cudaGetLastError(), "launch RopeNormForwardBf16");
  });
}

absl::Status LaunchRopeBackwardBf16(const RopeBackwardBf16Args& args,
                                    cudaStream_t stream) {
  const RopeBf16Shape& shape = args.shape;
  RETURN_IF_ERROR(Check(shape, args.position_ids != nullptr,
                        args.q_weight != nullptr, args.k_weight != nullptr,
                        {args.d_qkv_token_stride, args.qkv_token_stride},
                        {args.d_qkv, args.qkv, args.table, args.q_weight,
                         args.k_weight, args.workspace}));
  RopeParams p = MakeParams(shape, args.table, args.position_ids);
  p.sine_sign = -1.0f;
  p.out = static_cast<__nv_bfloat16*>(args.d_qkv);
  p.out_token_stride = args.d_qkv_token_stride;
  const bool turns_whole_heads = 2 * p.half == p.head_dim;
  if (turns_whole_heads) p.amax = args.amax;
  if (args.q_weight == nullptr) {
    if (shape.num_tokens == 0) return absl::OkStatus();
    p.in = p.out;
    p.in_token_stride = p.out_token_stride;
    RETURN_IF_ERROR(LaunchTurn(p, stream));
    if (args.amax == nullptr) return absl::OkStatus();
    return LaunchAmaxOfRest(args, turns_whole_heads, stream);
  }

  p.in = static_cast<const __nv_bfloat16*>(args.qkv);
  p.in_token_stride = args.qkv_token_stride;
  p.saved_rstd = args.rstd;
  p.fp32_weight = args.fp32_weight;
  p.weight_offset = args.adds_one ? 1.0f : 0.0f;
  p.partials = static_cast<float*>(args.workspace);
  int64_t num_blocks = 0;
  if (shape.num_tokens > 0) {
    ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
    num_blocks = std::min<int64_t>(kBackwardBlocks * limits.num_multiprocessors,
                                   kMaxBackwardBlocks);
    MakeParts(shape, args.q_weight, args.k_weight, num_blocks, &p);
    RETURN_IF_ERROR(ForLanes(p.half, [&]<int kLanes>(
                                         std::integral_constant<int, kLanes>) {
      gpu::RopeNormBackwardKernel<kLanes, kBackwardBlocks>
          <<<static_cast<unsigned>(num_blocks), gpu::kRopeThreads, 0, stream>>>(
              p);
      return CudaStatus(cudaGetLastError(), "launch RopeNormBackwardBf16");
    }));
  }
  RETURN_IF_ERROR(LaunchColumnSum(
      {.sums = {{args.d_q_weight, p.partials, p.parts[0].num_blocks},
                {args.d_k_weight,
                 p.partials + p.parts[1].first_block * shape.head_dim,
                 p.parts[1].num_blocks}},
       .num_sums = 2,
       .num_columns = shape.head_dim,
       .accumulate = args.accumulate},
      stream));
  if (args.amax == nullptr || shape.num_tokens == 0) return absl::OkStatus();
  return LaunchAmaxOfRest(args, turns_whole_heads, stream);
}

}  // namespace millrace
