#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_backward_copies.cuh"
#include "kernels/attention/attention_bf16_backward_prepare.cuh"
#include "kernels/attention/attention_bf16_backward_tile.cuh"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace millrace {
namespace attention_backward {
namespace {

// One consumer warpgroup. Everything is computed transposed, keys by queries,
// so that P^T and dS^T come out of the tensor cores as the left operands of
// dV = P^T dO and dK = dS^T Q. Only dQ = dS K needs dS from both consumers; it
// travels through shared memory, and dQ is computed one step later, when the
// other consumer's half has long arrived. So the consumers need not wait for
// each other in every step, and take turns instead: while one computes P and dS
// the other has the tensor cores.
//
// Measured, head dim 128 causal, 8192 tokens, against cuDNN 9.19 on an H200:
// 0.97 with dQ in the same step, 1.02 one step late, 1.10 with turns, 1.13 with
// dQ added by threads of their own. The scores of the next step ahead of the
// end of this (dK from shared memory to have the registers) won nothing more.
template <typename C>
__device__ __forceinline__ void Consume(const Params& p, const WorkItem& item,
                                        const Work& work, const Shared& shared,
                                        int consumer) {
  Barriers& barriers = *shared.barriers;
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const bool leader = thread == 0;
  const int tile_row = C::kSplitKeys ? consumer * 64 : 0;
  const int gradient_group =
      C::kSplitKeys ? 0 : consumer * C::kColumnGroups / 2;
  const uint32_t k_address = SharedAddress(shared.k);
  const uint32_t v_address = SharedAddress(shared.v);
  const uint32_t q_address = SharedAddress(shared.q);
  const uint32_t d_o_address = SharedAddress(shared.d_o);
  const uint32_t d_s_address = SharedAddress(shared.d_s);
  float d_k[C::kGradientColumns / 2];
  float d_v[C::kGradientColumns / 2];
#pragma unroll
  for (int i = 0; i < C::kGradientColumns / 2; ++i) d_k[i] = d_v[i] = 0.0f;

  // [64 keys, kBlockM queries] = this consumer's rows of `left` x right^T.
  auto issue_transposed = [&](float(&d)[C::kBlockM / 2], uint32_t left,
                              uint32_t right) {
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 16; ++k) {
      MultiplyShared<C::kBlockM, false, false>(
          d,
          SwizzledDescriptor(
              left + k / 4 * C::kBlockN * 128 + tile_row * 128 + k % 4 * 32, 0),
          SwizzledDescriptor(right + k / 4 * C::kBlockM * 128 + k % 4 * 32, 0),
          k != 0);
    }
    WgmmaCommit();
  };
  // d [64 keys, columns] += left^T right, right [kBlockM queries, columns].
  auto issue_gradient = [&](float(&d)[C::kGradientColumns / 2],
                            const uint32_t(&left)[C::kBlockM / 16][4],
                            uint32_t right) {
#pragma unroll
    for (int k = 0; k < C::kBlockM / 16; ++k) {
      MultiplyRegisters<C::kGradientColumns, true>(
          d, left[k],
          SwizzledDescriptor(
              right + gradient_group * C::kBlockM * 128 + k * 2048,
              C::kBlockM * 128),
          true);
    }
    WgmmaCommit();
  };
  // One piece of this consumer's share of dQ [64 queries, 64 columns]: of head
  // dim 64 its half of the queries, else its half of the columns.
  auto issue_d_q = [&](float(&d_q)[32], int stage, int piece) {
    const int half = (consumer * C::kPieces + piece) * C::kBlockN * 128;
    const uint32_t left =
        d_s_address + stage * C::kScoreBytes + (C::kHeadDim == 64 ? half : 0);
    const uint32_t right = k_address + (C::kHeadDim == 64 ? 0 : half);
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      MultiplyShared<64, true, true>(
          d_q, SwizzledDescriptor(left + k * 2048, 0),
          SwizzledDescriptor(right + k * 2048, 0), k != 0);
    }
    WgmmaCommit();
  };

  // No step comes before the first: its dS is zero, in the second tile.
  uint4* zeros = reinterpret_cast<uint4*>(shared.d_s + C::kScoreBytes) +
                 consumer * (C::kScoreBytes / 32);
  for (int i = thread; i < C::kScoreBytes / 32; i += kWarpgroupSize) {
    zeros[i] = make_uint4(0, 0, 0, 0);
  }
  FenceSharedForAsync();
  __syncwarp();
  if (lane == 0) BarrierArrive(&barriers.d_s_full[1]);

  const int num_steps = p.heads_per_part * (work.end - work.begin);
  int m = work.begin;
  int i = 0;  // Steps done; the barriers' stages and parities follow from it.

  // One piece of the last step's dQ. There is none before the first.
  auto hand_over = [&](const float(&d_q)[32], int piece) {
    if (i == 0) return;
    HandOver(d_q, shared, consumer, (i - 1) * C::kPieces + piece);
  };
  auto pass_turn = [&] {
    NamedBarrierArrive(kTurnBarrier + (consumer ^ 1), 2 * kWarpgroupSize);
  };
  auto step = [&](auto masked_constant) {
    constexpr bool kMasked = decltype(masked_constant)::value;
    const int stage = i % 2;
    const int parity = i / 2 % 2;
    const int output_stage = C::kOutputStages == 1 ? 0 : stage;
    const int output_parity = C::kOutputStages == 1 ? stage : parity;
    const int key = work.key_block * C::kBlockN + tile_row +
                    thread / kWarpSize * 16 + lane / 4;
    const Interval visible[2] = {QueriesOf<C>(p, work, key),
                                 QueriesOf<C>(p, work, key + 8)};
    float s[C::kBlockM / 2], d_s[C::kBlockM / 2], d_q[32];
    uint32_t packed_p[C::kBlockM / 16][4], packed_d_s[C::kBlockM / 16][4];
    const uint32_t q = q_address + stage * C::kQueryBytes;
    const uint32_t d_o = d_o_address + output_stage * C::kQueryBytes;

    BarrierWait(&barriers.q_full[stage], parity);
    WgmmaFence();
    issue_transposed(s, k_address, q);
    BarrierWait(&barriers.d_o_full[output_stage], output_parity);
    issue_transposed(d_s, v_address, d_o);
    // Consumer 0 begins when consumer 1 has come here.
    if (!C::kPassEarly && (consumer == 1 || i != 0)) pass_turn();
    WgmmaWait<1>();
    RegisterFence(s);
    const uint32_t lse =
        SharedAddress(shared.lse) + stage * C::kRowBytes + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < C::kBlockM / 8; ++j) {
      const float2 base = LoadSharedFloat2(lse + j * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[4 * j + e] = Exp2(
            fmaf(s[4 * j + e], p.scale_log2, -(e % 2 == 0 ? base.x : base.y)));
        if constexpr (kMasked) {
          const int query = m * C::kBlockM + lane % 4 * 2 + j * 8 + e % 2;
          if (!visible[e / 2].Has(query)) s[4 * j + e] = 0.0f;
        }
      }
    }
    // The second tile has held one more dS, the zeros.
    const int d_s_parity = parity ^ 1 ^ stage;
    if constexpr (C::kAwaitScoresEarly) {
      BarrierWait(&barriers.d_s_empty[stage], d_s_parity);
    }
    WgmmaWait<0>();
    RegisterFence(d_s);
    Pack(s, packed_p);
    const uint32_t delta = SharedAddress(shared.delta) +
                           output_stage * C::kRowBytes + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < C::kBlockM / 8; ++j) {
      const float2 row = LoadSharedFloat2(delta + j * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        d_s[4 * j + e] =
            s[4 * j + e] * (d_s[4 * j + e] - (e % 2 == 0 ? row.x : row.y));
      }
    }
    Pack(d_s, packed_d_s);
    if constexpr (!C::kAwaitScoresEarly) {
      BarrierWait(&barriers.d_s_empty[stage], d_s_parity);
    }
    if (C::kSplitKeys || thread / 64 == consumer) {
      StoreTile(packed_d_s, d_s_address + stage * C::kScoreBytes,
                C::kBlockN * 128, tile_row);
    }
    FenceSharedForAsync();
    __syncwarp();
    if (lane == 0) BarrierArrive(&barriers.d_s_full[stage]);
    BarrierWait(&barriers.d_s_full[stage ^ 1], parity);
    NamedBarrierSync(kTurnBarrier + consumer, 2 * kWarpgroupSize);
    WgmmaFence();
    issue_d_q(d_q, stage ^ 1, 0);
    issue_gradient(d_v, packed_p, d_o);
    issue_gradient(d_k, packed_d_s, q);
    if (C::kPassEarly && (consumer == 0 || i + 1 < num_steps)) pass_turn();
    WgmmaWait<2>();
    RegisterFence(d_q);
    if (leader && C::kPieces == 1) {
      BarrierArrive(&barriers.d_s_empty[stage ^ 1]);
    }
    hand_over(d_q, 0);
    if constexpr (C::kPieces == 2) {
      WgmmaFence();
      issue_d_q(d_q, stage ^ 1, 1);
    }
    WgmmaWait<C::kPieces>();
    RegisterFence(d_v);
    if (leader) BarrierArrive(&barriers.d_o_empty[output_stage]);
    WgmmaWait<0>();
    RegisterFence(d_k);
    if (leader) BarrierArrive(&barriers.q_empty[stage]);
    if constexpr (C::kPieces == 2) {
      RegisterFence(d_q);
      if (leader) BarrierArrive(&barriers.d_s_empty[stage ^ 1]);
      hand_over(d_q, 1);
    }
    ++i;
    if (++m == work.end) m = work.begin;
  };

  BarrierWait(&barriers.kv_full, 0);
  if (C::kPassEarly && consumer == 1) pass_turn();
  // Blocks that need masks and blocks that do not have loops of their own.
  while (i < num_steps) {
#pragma unroll 1
    while (i < num_steps && IsMasked<C>(p, work, m)) step(std::true_type{});
#pragma unroll 1
    while (i < num_steps && !IsMasked<C>(p, work, m)) step(std::false_type{});
  }
  if (!C::kPassEarly && consumer == 0) pass_turn();

  BarrierWait(&barriers.d_s_full[i % 2 ^ 1], i / 2 % 2);
#pragma unroll
  for (int piece = 0; piece < C::kPieces; ++piece) {
    float d_q[32];
    WgmmaFence();
    issue_d_q(d_q, i % 2 ^ 1, piece);
    WgmmaWait<0>();
    RegisterFence(d_q);
    hand_over(d_q, piece);
  }

  if (p.num_parts > 1) {
    StoreKeyPart<C>(d_v, KeyPart<C>(p, item, 0), consumer);
    StoreKeyPart<C>(d_k, KeyPart<C>(p, item, 1), consumer);
    return;
  }
  // Nobody reads keys and values any more: their memory carries the results
  // out.
  NamedBarrierSync(kConsumersBarrier, 2 * kWarpgroupSize);
  const int gradient_offset = gradient_group * C::kBlockN * 128;
  uint32_t packed[C::kGradientColumns / 16][4];
  Pack(d_v, packed);
  StoreTile(packed, v_address + gradient_offset, C::kBlockN * 128, tile_row);
  Pack(d_k, packed, p.scale);
  StoreTile(packed, k_address + gradient_offset, C::kBlockN * 128, tile_row);
  FenceSharedForAsync();
  NamedBarrierSync(kWarpgroupBarrier + consumer, kWarpgroupSize);
  StoreGradient<C>(p.d_v, p.d_v_rows, shared.v, work, consumer);
  StoreGradient<C>(p.d_k, p.d_k_rows, shared.k, work, consumer);
  if (leader) WaitStores<0>();
}

// One block for kBlockN keys of one key-value head. Limited by the tensor cores
// and the shared-memory traffic that feeds them.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionBackwardKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  const Shared shared = LayOut<C>(unaligned_shared);
  const WorkItem item = WorkAt(p.work_order, blockIdx.x);
  const Work work = WorkOf<C>(p, item);
  if (work.end == 0) return;
  if (threadIdx.x == 0) {
    Barriers& barriers = *shared.barriers;
    BarrierInit(&barriers.kv_full, 1);
    for (int stage = 0; stage < 2; ++stage) {
      BarrierInit(&barriers.q_full[stage], 1);
      BarrierInit(&barriers.q_empty[stage], 2);
      BarrierInit(&barriers.d_o_full[stage], 1);
      BarrierInit(&barriers.d_o_empty[stage], 2);
      BarrierInit(&barriers.d_s_full[stage], 2 * kWarpgroupSize / kWarpSize);
      BarrierInit(&barriers.d_s_empty[stage], 2);
      BarrierInit(&barriers.d_q_full[stage], kWarpgroupSize / kWarpSize);
      BarrierInit(&barriers.d_q_empty[stage], 1);
    }
    BarrierInitFence();
  }
  __syncthreads();
  GridDependencyWait();
  GridDependencyRelease();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<24>();
    const int warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
    if (threadIdx.x % kWarpSize == 0) {
      if (warp == 0) {
        Produce<C>(p, work, shared);
      } else if (warp <= 2) {
        AddChunks<C>(p, work, shared, warp - 1);
      }
    }
  } else {
    GrowRegisters<240>();
    Consume<C>(p, item, work, shared, warpgroup - 1);
  }
}

// One warpgroup a chunk of d_v and d_k: sums the parts of a key head, always in
// the same order. Limited by memory bandwidth.
template <typename C>
__global__ void __launch_bounds__(kWarpgroupSize)
    AddKeyPartsKernel(const __grid_constant__ Params p) {
  constexpr int kChunks = BackwardKeyChunks(C::kHeadDim);
  const int chunk = blockIdx.x % kChunks;
  const int tensor = blockIdx.x / kChunks % 2;
  const int block = blockIdx.x / (2 * kChunks);
  WorkItem item = {
      .block = block % p.work_order.num_blocks,
      .head = block / p.work_order.num_blocks * p.num_parts,
  };
  const Work work = WorkOf<C>(p, item);
  const int first_row =
      work.key_block * C::kBlockN + chunk / C::kColumnGroups * 64;
  GridDependencyWait();
  if (work.end == 0 || first_row >= work.sequence.length) return;
  ChunkFragment sum = {};
  for (int part = 0; part < p.num_parts; ++part, ++item.head) {
    const auto* from = reinterpret_cast<const float4*>(
        KeyPart<C>(p, item, tensor) + chunk * kGradientChunk);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 x = from[j * kWarpgroupSize + threadIdx.x];
      sum[j].x += x.x;
      sum[j].y += x.y;
      sum[j].z += x.z;
      sum[j].w += x.w;
    }
  }
  StoreChunk<C::kHeadDim>(
      sum, tensor == 0 ? 1.0f : p.scale, tensor == 0 ? p.d_v_rows : p.d_k_rows,
      work.sequence, work.kv_head, first_row, chunk % C::kColumnGroups * 64);
}

// Blocks of one head side by side would keep most in the cache, but the last
// head's longest blocks would then start last: causal, 32 query heads on 4 of
// keys, one sequence of 8192 tokens, that took 1.3 times as long on an H200. A
// head has room for two query heads, since its short blocks are ahead at the
// next one. Where query gradients are summed in one order, the blocks of a head
// wait for each other; more heads at once made that up to 1.6 times as slow
// (docs/results/2026-11-30-attention-backward.md).
template <typename C>
WorkOrder WorkOrderOf(const AttentionBf16Shape& shape,
                      const BackwardLengths& lengths, int num_parts,
                      bool deterministic) {
  const bool is_packed = shape.document_offsets != nullptr;
  const int num_sequences = is_packed ? 1 : lengths.num_sequences;
  const int num_blocks = lengths.NumBlocks(C::kBlockN) / num_sequences;
  if (deterministic) {
    return {
        .num_blocks = num_blocks, .heads_per_section = 1, .last_first = false};
  }
  return OrderWork(shape.num_kv_heads * num_parts * num_sequences, num_blocks,
                   /*last_first=*/false, 2 * QueryHeadBytes(shape));
}

template <int kHeadDim, Visible kVisible>
absl::Status Launch(const AttentionBackwardBf16Args& args,
                    cudaStream_t stream) {
  using C = Config<kHeadDim, kVisible>;
  const AttentionBf16Shape& shape = args.shape;
  RETURN_IF_ERROR(NumHopperMultiprocessors().status());
  Params p;
  ASSIGN_OR_RETURN(p.q, OperandMap(args.q, shape.num_heads, shape, C::kBlockM));
  ASSIGN_OR_RETURN(p.k,
                   OperandMap(args.k, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.v,
                   OperandMap(args.v, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.d_o,
                   OperandMap(args.d_o, shape.num_heads, shape, C::kBlockM));
  ASSIGN_OR_RETURN(p.d_k, OperandMap(args.d_k, shape.num_kv_heads, shape, 64));
  ASSIGN_OR_RETURN(p.d_v, OperandMap(args.d_v, shape.num_kv_heads, shape, 64));
  p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.num_parts = NumKeyParts(shape);
  p.heads_per_part =
      static_cast<int>(shape.num_heads / shape.num_kv_heads) / p.num_parts;
  const bool by_rows = shape.document_offsets != nullptr || p.num_parts > 1;
  p.d_k_rows = by_rows ? args.d_k : Bf16Heads{};
  p.d_v_rows = by_rows ? args.d_v : Bf16Heads{};
  p.rows = PlaceBackwardRows(shape, args.workspace);
  p.lengths = LengthsOf(shape);
  const int64_t num_blocks = shape.num_heads * p.lengths.blocks_per_head;
  ASSIGN_OR_RETURN(
      p.lse_log2, EncodeRowsTensorMap(p.rows.lse_log2, num_blocks, C::kBlockM));
  ASSIGN_OR_RETURN(p.delta,
                   EncodeRowsTensorMap(p.rows.delta, num_blocks, C::kBlockM));
  p.order = args.deterministic ? p.rows.order : nullptr;
  p.window = static_cast<int>(shape.window);
  p.causal = shape.causal;
  p.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  p.scale_log2 = p.scale * static_cast<float>(M_LOG2E);

  RETURN_IF_ERROR(
      LaunchBackwardPreprocess<kHeadDim>(args, p.rows, p.lengths, stream));
  const auto kernel = AttentionBackwardKernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  p.work_order =
      WorkOrderOf<C>(shape, p.lengths, p.num_parts, args.deterministic);
  const int num_key_blocks = p.lengths.NumBlocks(C::kBlockN) * p.num_kv_heads;
  RETURN_IF_ERROR(LaunchBehind(kernel, num_key_blocks * p.num_parts,
                               C::kNumThreads, C::kSharedBytes, stream, p));
  if (p.num_parts > 1) {
    RETURN_IF_ERROR(LaunchBehind(
        AddKeyPartsKernel<C>, num_key_blocks * 2 * BackwardKeyChunks(kHeadDim),
        kWarpgroupSize,
        /*shared_bytes=*/0, stream, p));
  }
  return LaunchBackwardPostprocess<kHeadDim>(args, p.rows, p.scale, p.lengths,
                                             stream);
}

template <int kHeadDim>
absl::Status LaunchHeadDim(const AttentionBackwardBf16Args& args,
                           cudaStream_t stream) {
  if (args.shape.window != 0 &&
      args.shape.window < args.shape.sequence_length) {
    return Launch<kHeadDim, Visible::kWindow>(args, stream);
  }
  return args.shape.causal ? Launch<kHeadDim, Visible::kCausal>(args, stream)
                           : Launch<kHeadDim, Visible::kAll>(args, stream);
}

}  // namespace
}  // namespace attention_backward

int64_t AttentionBackwardBf16Sm90WorkspaceBytes(
    const AttentionBf16Shape& shape) {
  return attention_backward::BackwardRowsBytes(shape);
}

bool AttentionBackwardBf16Sm90Takes(const AttentionBf16Shape& shape,
                                    bool deterministic) {
  static_cast<void>(deterministic);  // Both ways.
  // Blocks of the smallest tiles, those of the rows around the main kernel.
  const int64_t num_tiles =
      shape.document_offsets == nullptr
          ? (shape.sequence_length + 63) / 64 * shape.num_sequences
          : shape.total_tokens / 64 + shape.num_sequences;
  const int64_t num_blocks = num_tiles * 8 * shape.num_heads;
  return shape.softcap == 0 &&
         num_blocks <= std::numeric_limits<int32_t>::max();
}

absl::Status LaunchAttentionBackwardBf16Sm90(
    const AttentionBackwardBf16Args& args, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  RETURN_IF_ERROR(CheckNoSoftcap(shape));
  if (!AttentionBackwardBf16Sm90Takes(shape, args.deterministic)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the backward pass of bf16 attention counts its blocks in 31 bits; ",
        shape.num_sequences, " sequences of up to ", shape.sequence_length,
        " tokens and ", shape.num_heads, " heads are more"));
  }
  if (shape.document_offsets != nullptr && shape.total_tokens == 0) {
    return absl::OkStatus();
  }
  switch (shape.head_dim) {
    case 64:
      return attention_backward::LaunchHeadDim<64>(args, stream);
    case 96:
      return attention_backward::LaunchHeadDim<96>(args, stream);
    case 128:
      return attention_backward::LaunchHeadDim<128>(args, stream);
    default:
      return attention_backward::LaunchHeadDim<256>(args, stream);
  }
}

}  // namespace millrace
