#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention_bf16.h"
#include "kernels/attention_bf16_backward_around.cuh"
#include "kernels/attention_bf16_paths.h"
#include "kernels/attention_bf16_shape.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/wgmma.cuh"

namespace millrace {
namespace {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// A block keeps 128 keys and values, 64 a consumer warpgroup, and walks over
// blocks of kBlockM queries of all query heads that share them. Everything is
// computed transposed, keys by queries, so that P^T and dS^T come out of the
// tensor cores as the left operands of dV = P^T dO and dK = dS^T Q. Only
// dQ = dS K needs dS from both consumers; it travels through shared memory.
template <int kHeadDim_, bool kCausal_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kBlockM = BackwardBlockM(kHeadDim);
  static constexpr int kBlockN = 128;
  static constexpr int kStages = 2;  // Of queries and of output gradients.
  static constexpr int kColumnGroups = kHeadDim / 64;
  static constexpr int kKeyBytes = kBlockN * kHeadDim * 2;
  static constexpr int kQueryBytes = kBlockM * kHeadDim * 2;
  static constexpr int kScoreBytes = kBlockM * kBlockN * 2;
  static constexpr int kRowBytes = kBlockM * 4;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes =
      1024 + 2 * kKeyBytes + 2 * kStages * kQueryBytes + 2 * kScoreBytes +
      2 * kQueryGradientChunkBytes + 2 * kStages * kRowBytes + kBarrierBytes;
  static constexpr int kNumThreads = 3 * kWarpgroupSize;
  // Computing dV before dS leaves more registers; after it hides the store of
  // dS. Measured: the first is 2 % better for head dim 128, the second 5 %
  // for 64.
  static constexpr bool kValueGradientFirst = kHeadDim == 128;
};

struct Params {
  CUtensorMap q, k, v, d_o, d_k, d_v;
  BackwardRows rows;
  int num_heads, num_kv_heads, heads_per_kv, num_query_blocks;
  float scale, scale_log2;
};

struct Barriers {
  uint64_t kv_full;
  uint64_t q_full[2], q_empty[2], d_o_full[2], d_o_empty[2];
  uint64_t d_s_full[2];  // Written by all warps of both consumers.
};

struct Shared {
  uint8_t *k, *v, *q, *d_o, *d_s, *d_q;
  float *lse, *delta;
};

// Named barriers: 0 is __syncthreads().
constexpr int kConsumersBarrier = 1;
constexpr int kWarpgroupBarrier = 2;  // + consumer.

// One thread feeds the block: queries with their LSE, output gradients with
// their delta, and once, behind the first queries, keys and values.
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, Barriers& barriers,
                                        const Shared& shared, int key_block,
                                        int kv_head, int sequence,
                                        int first_query_block) {
  auto load = [](uint8_t* to, int rows, const CUtensorMap& map,
                 uint64_t* barrier, int first_row, int head, int sequence,
                 CachePolicy policy) {
    for (int group = 0; group < C::kColumnGroups; ++group) {
      LoadTensor4(to + group * rows * 128, &map, barrier, group * 64, first_row,
                  head, sequence, policy);
    }
  };
  int stage = 0;
  int parity = 1;
  for (int g = 0; g < p.heads_per_kv; ++g) {
    const int head = kv_head * p.heads_per_kv + g;
    const int64_t first_row =
        (static_cast<int64_t>(sequence) * p.num_heads + head) *
        p.num_query_blocks * C::kBlockM;
    for (int m = first_query_block; m < p.num_query_blocks; ++m) {
      BarrierWait(&barriers.q_empty[stage], parity);
      BarrierArriveExpect(&barriers.q_full[stage],
                          C::kQueryBytes + C::kRowBytes);
      load(shared.q + stage * C::kQueryBytes, C::kBlockM, p.q,
           &barriers.q_full[stage], m * C::kBlockM, head, sequence,
           CachePolicy::kEvictLast);
      LoadBulk(shared.lse + stage * C::kBlockM,
               p.rows.lse_log2 + first_row + m * C::kBlockM, C::kRowBytes,
               &barriers.q_full[stage]);
      if (g == 0 && m == first_query_block) {
        BarrierArriveExpect(&barriers.kv_full, 2 * C::kKeyBytes);
        load(shared.k, C::kBlockN, p.k, &barriers.kv_full,
             key_block * C::kBlockN, kv_head, sequence,
             CachePolicy::kEvictFirst);
        load(shared.v, C::kBlockN, p.v, &barriers.kv_full,
             key_block * C::kBlockN, kv_head, sequence,
             CachePolicy::kEvictFirst);
      }
      BarrierWait(&barriers.d_o_empty[stage], parity);
      BarrierArriveExpect(&barriers.d_o_full[stage],
                          C::kQueryBytes + C::kRowBytes);
      load(shared.d_o + stage * C::kQueryBytes, C::kBlockM, p.d_o,
           &barriers.d_o_full[stage], m * C::kBlockM, head, sequence,
           CachePolicy::kEvictLast);
      LoadBulk(shared.delta + stage * C::kBlockM,
               p.rows.delta + first_row + m * C::kBlockM, C::kRowBytes,
               &barriers.d_o_full[stage]);
      stage ^= 1;
      if (stage == 0) parity ^= 1;
    }
  }
}

// Writes a [64, 8 * kPairs] accumulator as bf16 into the swizzled tile at
// `address` with groups of 64 columns `group_bytes` apart, rows from `row`.
template <int kSize>
__device__ __forceinline__ void StoreTile(const uint32_t (&packed)[kSize][4],
                                          uint32_t address, int group_bytes,
                                          int row) {
  const int lane = threadIdx.x % kWarpSize;
  row += threadIdx.x % kWarpgroupSize / kWarpSize * 16 + lane / 8 % 2 * 8 +
         lane % 8;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const int chunk = 2 * j + lane / 16;
    StoreMatrix4(address + chunk / 8 * group_bytes + row * 128 +
                     (chunk % 8 ^ row % 8) * 16,
                 packed[j][0], packed[j][1], packed[j][2], packed[j][3]);
  }
}

template <int kSize>
__device__ __forceinline__ void Pack(const float (&from)[kSize],
                                     uint32_t (&to)[kSize / 8][4],
                                     float factor = 1.0f) {
#pragma unroll
  for (int k = 0; k < kSize / 8; ++k) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      to[k][r] = PackBfloat16(from[8 * k + 2 * r] * factor,
                              from[8 * k + 2 * r + 1] * factor);
    }
  }
}

template <typename C>
__device__ __forceinline__ void Consume(const Params& p, Barriers& barriers,
                                        const Shared& shared, int consumer,
                                        int key_block, int kv_head,
                                        int sequence, int first_query_block) {
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = thread % kWarpSize;
  const bool leader = thread == 0;
  const uint32_t k_address = SharedAddress(shared.k);
  const uint32_t v_address = SharedAddress(shared.v);
  const uint32_t q_address = SharedAddress(shared.q);
  const uint32_t d_o_address = SharedAddress(shared.d_o);
  const uint32_t d_s_address = SharedAddress(shared.d_s);
  const int key_row = key_block * C::kBlockN + consumer * 64 +
                      thread / kWarpSize * 16 + lane / 4;
  float* d_q_chunk = reinterpret_cast<float*>(
      shared.d_q + consumer * kQueryGradientChunkBytes);
  float d_k[C::kHeadDim / 2];
  float d_v[C::kHeadDim / 2];
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 2; ++i) d_k[i] = d_v[i] = 0.0f;
  int stage = 0;  // Of queries, output gradients and dS alike.
  int parity = 0;

  // [64 keys, kBlockM queries] = this consumer's rows of `left` x right^T.
  auto issue_transposed = [&](float(&d)[C::kBlockM / 2], uint32_t left,
                              uint32_t right) {
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 16; ++k) {
      MultiplyShared<C::kBlockM, false, false>(
          d,
          SwizzledDescriptor(left + k / 4 * C::kBlockN * 128 +
                                 consumer * 64 * 128 + k % 4 * 32,
                             0),
          SwizzledDescriptor(right + k / 4 * C::kBlockM * 128 + k % 4 * 32, 0),
          k != 0);
    }
    WgmmaCommit();
  };
  // d [64 keys, head dim] += left^T right, right [kBlockM queries, head dim].
  auto issue_gradient = [&](float(&d)[C::kHeadDim / 2],
                            const uint32_t(&left)[C::kBlockM / 16][4],
                            uint32_t right) {
#pragma unroll
    for (int k = 0; k < C::kBlockM / 16; ++k) {
      MultiplyRegisters<C::kHeadDim, true>(
          d, left[k], SwizzledDescriptor(right + k * 2048, C::kBlockM * 128),
          true);
    }
    WgmmaCommit();
  };

  auto step = [&](int m, auto masked_constant, float* d_q_out) {
    constexpr bool kMasked = decltype(masked_constant)::value;
    float s[C::kBlockM / 2], d_s[C::kBlockM / 2], d_q[32];
    uint32_t packed_p[C::kBlockM / 16][4], packed_d_s[C::kBlockM / 16][4];
    const uint32_t q = q_address + stage * C::kQueryBytes;
    const uint32_t d_o = d_o_address + stage * C::kQueryBytes;
    const uint32_t d_s_tile = d_s_address + stage * C::kScoreBytes;

    BarrierWait(&barriers.q_full[stage], parity);
    WgmmaFence();
    issue_transposed(s, k_address, q);
    BarrierWait(&barriers.d_o_full[stage], parity);
    issue_transposed(d_s, v_address, d_o);
    WgmmaWait<1>();
    RegisterFence(s);
    const float2* lse =
        reinterpret_cast<const float2*>(shared.lse + stage * C::kBlockM) +
        lane % 4;
#pragma unroll
    for (int j = 0; j < C::kBlockM / 8; ++j) {
      const float2 base = lse[j * 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[4 * j + e] = Exp2(
            fmaf(s[4 * j + e], p.scale_log2, -(e % 2 == 0 ? base.x : base.y)));
        if constexpr (kMasked) {
          const int query = m * C::kBlockM + j * 8 + lane % 4 * 2 + e % 2;
          if (query < key_row + e / 2 * 8) s[4 * j + e] = 0.0f;
        }
      }
    }
    WgmmaWait<0>();
    RegisterFence(d_s);
    Pack(s, packed_p);
    if constexpr (C::kValueGradientFirst) {
      WgmmaFence();
      issue_gradient(d_v, packed_p, d_o);
    }
    const float2* delta =
        reinterpret_cast<const float2*>(shared.delta + stage * C::kBlockM) +
        lane % 4;
#pragma unroll
    for (int j = 0; j < C::kBlockM / 8; ++j) {
      const float2 row = delta[j * 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        d_s[4 * j + e] =
            s[4 * j + e] * (d_s[4 * j + e] - (e % 2 == 0 ? row.x : row.y));
      }
    }
    Pack(d_s, packed_d_s);
    // The buffer's last readers finished before they wrote the other buffer,
    // and this thread has waited for that one.
    StoreTile(packed_d_s, d_s_tile, C::kBlockN * 128, consumer * 64);
    FenceSharedForAsync();
    __syncwarp();
    if (lane == 0) BarrierArrive(&barriers.d_s_full[stage]);
    WgmmaFence();
    if constexpr (!C::kValueGradientFirst) {
      issue_gradient(d_v, packed_p, d_o);
    }
    // This consumer's quarter of dQ: of head dim 128 its half of the columns,
    // of 64 its half of the queries.
    BarrierWait(&barriers.d_s_full[stage], parity);
    const int quarter = consumer * C::kBlockN * 128;
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      MultiplyShared<64, true, true>(
          d_q,
          SwizzledDescriptor(
              d_s_tile + (C::kHeadDim == 64 ? quarter : 0) + k * 2048, 0),
          SwizzledDescriptor(
              k_address + (C::kHeadDim == 64 ? 0 : quarter) + k * 2048, 0),
          k != 0);
    }
    WgmmaCommit();
    issue_gradient(d_k, packed_d_s, q);
    WgmmaWait<2>();
    RegisterFence(d_v);
    if (leader) BarrierArrive(&barriers.d_o_empty[stage]);
    WgmmaWait<1>();
    RegisterFence(d_q);
    if (leader) WaitStoresRead<0>();
    NamedBarrierSync(kWarpgroupBarrier + consumer, kWarpgroupSize);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<float4*>(d_q_chunk +
                                 (j * kWarpgroupSize + thread) * 4) =
          make_float4(d_q[4 * j], d_q[4 * j + 1], d_q[4 * j + 2],
                      d_q[4 * j + 3]);
    }
    FenceSharedForAsync();
    NamedBarrierSync(kWarpgroupBarrier + consumer, kWarpgroupSize);
    if (leader) {
      ReduceAddBulk(d_q_out + (static_cast<int64_t>(m) * 2 + consumer) *
                                  kQueryGradientChunk,
                    d_q_chunk, kQueryGradientChunkBytes);
      CommitStores();
    }
    WgmmaWait<0>();
    RegisterFence(d_k);
    if (leader) BarrierArrive(&barriers.q_empty[stage]);
    stage ^= 1;
    if (stage == 0) parity ^= 1;
  };

  BarrierWait(&barriers.kv_full, 0);
  for (int g = 0; g < p.heads_per_kv; ++g) {
    const int head = kv_head * p.heads_per_kv + g;
    float* d_q_out =
        p.rows.d_q + (static_cast<int64_t>(sequence) * p.num_heads + head) *
                         p.num_query_blocks * 2 * kQueryGradientChunk;
    int m = first_query_block;
    if constexpr (C::kCausal) {
      const int end_key = (key_block + 1) * C::kBlockN;
#pragma unroll 1
      for (; m < p.num_query_blocks && m * C::kBlockM < end_key; ++m) {
        step(m, std::true_type{}, d_q_out);
      }
    }
#pragma unroll 1
    for (; m < p.num_query_blocks; ++m) step(m, std::false_type{}, d_q_out);
  }

  // Nobody reads keys and values any more: their memory carries the results
  // out.
  NamedBarrierSync(kConsumersBarrier, 2 * kWarpgroupSize);
  uint32_t packed[C::kHeadDim / 16][4];
  Pack(d_v, packed);
  StoreTile(packed, v_address, C::kBlockN * 128, consumer * 64);
  Pack(d_k, packed, p.scale);
  StoreTile(packed, k_address, C::kBlockN * 128, consumer * 64);
  FenceSharedForAsync();
  NamedBarrierSync(kWarpgroupBarrier + consumer, kWarpgroupSize);
  if (leader) {
    for (int group = 0; group < C::kColumnGroups; ++group) {
      const int offset = group * C::kBlockN * 128 + consumer * 64 * 128;
      const int row = key_block * C::kBlockN + consumer * 64;
      StoreTensor4(&p.d_v, shared.v + offset, group * 64, row, kv_head,
                   sequence);
      StoreTensor4(&p.d_k, shared.k + offset, group * 64, row, kv_head,
                   sequence);
    }
    CommitStores();
    WaitStores<0>();
  }
}

// One block for 128 keys of one key-value head. Limited by shared-memory
// traffic and by the dependence of dQ on both consumers.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionBackwardKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  Shared shared;
  // Swizzled tiles start at multiples of 1024 bytes.
  shared.k = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  shared.v = shared.k + C::kKeyBytes;
  shared.q = shared.v + C::kKeyBytes;
  shared.d_o = shared.q + C::kStages * C::kQueryBytes;
  shared.d_s = shared.d_o + C::kStages * C::kQueryBytes;
  shared.d_q = shared.d_s + 2 * C::kScoreBytes;
  shared.lse =
      reinterpret_cast<float*>(shared.d_q + 2 * kQueryGradientChunkBytes);
  shared.delta = shared.lse + C::kStages * C::kBlockM;
  Barriers& barriers =
      *reinterpret_cast<Barriers*>(shared.delta + C::kStages * C::kBlockM);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes);

  if (threadIdx.x == 0) {
    BarrierInit(&barriers.kv_full, 1);
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&barriers.q_full[stage], 1);
      BarrierInit(&barriers.q_empty[stage], 2);
      BarrierInit(&barriers.d_o_full[stage], 1);
      BarrierInit(&barriers.d_o_empty[stage], 2);
      BarrierInit(&barriers.d_s_full[stage], 2 * kWarpgroupSize / kWarpSize);
    }
    BarrierInitFence();
  }
  __syncthreads();

  const int key_block = blockIdx.x;  // The first is the longest if causal.
  const int kv_head = blockIdx.y % p.num_kv_heads;
  const int sequence = blockIdx.y / p.num_kv_heads;
  const int first_query_block =
      C::kCausal ? key_block * C::kBlockN / C::kBlockM : 0;
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<24>();
    if (threadIdx.x == 0) {
      Produce<C>(p, barriers, shared, key_block, kv_head, sequence,
                 first_query_block);
    }
  } else {
    GrowRegisters<240>();
    Consume<C>(p, barriers, shared, warpgroup - 1, key_block, kv_head, sequence,
               first_query_block);
  }
}

template <typename C>
absl::Status Launch(const AttentionBackwardBf16Args& args,
                    cudaStream_t stream) {
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
  p.rows = PlaceBackwardRows(shape, args.workspace);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.heads_per_kv = p.num_heads / p.num_kv_heads;
  p.num_query_blocks = static_cast<int>(PaddedSequence(shape) / C::kBlockM);
  p.scale = 1.0f / std::sqrt(static_cast<float>(C::kHeadDim));
  p.scale_log2 = p.scale * static_cast<float>(M_LOG2E);

  RETURN_IF_ERROR(LaunchBackwardPreprocess<C::kHeadDim>(args, p.rows, stream));
  const auto kernel = AttentionBackwardKernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  const dim3 grid(
      static_cast<unsigned>((shape.sequence_length + C::kBlockN - 1) /
                            C::kBlockN),
      static_cast<unsigned>(shape.num_kv_heads * shape.num_sequences));
  kernel<<<grid, C::kNumThreads, C::kSharedBytes, stream>>>(p);
  RETURN_IF_ERROR(
      CudaStatus(cudaGetLastError(), "launch AttentionBackwardBf16"));
  return LaunchBackwardPostprocess<C::kHeadDim>(args, p.rows, p.scale, stream);
}

}  // namespace

int64_t AttentionBackwardBf16Sm90WorkspaceBytes(
    const AttentionBf16Shape& shape) {
  const int64_t num_rows =
      shape.num_sequences * shape.num_heads * PaddedSequence(shape);
  return num_rows * (2 + shape.head_dim) * static_cast<int64_t>(sizeof(float));
}

bool AttentionBackwardBf16Sm90Takes(const AttentionBf16Shape& shape,
                                    bool deterministic) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.window == 0 &&
         shape.document_offsets == nullptr && !deterministic;
}

absl::Status LaunchAttentionBackwardBf16Sm90(
    const AttentionBackwardBf16Args& args, cudaStream_t stream) {
  if (!AttentionBackwardBf16Sm90Takes(args.shape, args.deterministic)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the backward pass of bf16 attention has head_dim 64 and 128, and "
        "neither window nor packed documents, yet; got head_dim ",
        args.shape.head_dim, " and window ", args.shape.window));
  }
  if (args.shape.head_dim == 128) {
    return args.shape.causal ? Launch<Config<128, true>>(args, stream)
                             : Launch<Config<128, false>>(args, stream);
  }
  return args.shape.causal ? Launch<Config<64, true>>(args, stream)
                           : Launch<Config<64, false>>(args, stream);
}

}  // namespace millrace
