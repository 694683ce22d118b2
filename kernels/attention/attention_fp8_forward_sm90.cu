#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/attention_fp8_forward_consumer.cuh"
#include "kernels/attention/attention_fp8_shape.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/tensor_map.h"

namespace millrace {
namespace {

using namespace attention_fp8_forward;  // NOLINT: its own vocabulary.

// One thread feeds the block: queries of a tile once, keys one block ahead of
// values, since the scores of block i - 1 are computed before the output of
// block i (key blocks run from the last to the first).
template <typename C>
__device__ __forceinline__ void Produce(const Params& p, Barriers& barriers,
                                        uint8_t* shared_q, uint8_t* shared_k,
                                        uint8_t* shared_v) {
  PrefetchTensorMap(&p.q);
  PrefetchTensorMap(&p.k);
  PrefetchTensorMap(&p.o);
  Ring<C::kStages> ring{.parity = 1};
  int q_parity = 1;
  int idx = blockIdx.x;
  while (idx < p.num_tiles) {
    const Tile tile = TileAt<C>(p, idx);
    const int next_idx = atomicAdd(p.tile_counter, 1) + gridDim.x;
    const uint8_t* values =
        p.v + static_cast<int64_t>(FirstKeyBlock(p, tile)) * C::kKeyBytes;
    auto load_keys = [&](int block, Ring<C::kStages> at) {
      BarrierWait(&barriers.k_empty[at.stage], at.parity);
      BarrierArriveExpect(&barriers.k_full[at.stage], C::kKeyBytes);
      LoadTensor4(shared_k + at.stage * C::kKeyBytes, &p.k,
                  &barriers.k_full[at.stage], 0, block * C::kBlockN,
                  tile.head / p.heads_per_kv, tile.sequence,
                  CachePolicy::kEvictLast);
    };
    int block = tile.num_key_blocks - 1;
    load_keys(block, ring);
    BarrierWait(&barriers.q_empty, q_parity);
    q_parity ^= 1;
    atomicExch(&barriers.tile, idx);
    BarrierArriveExpect(&barriers.q_full, C::kQueryBytes);
    LoadTensor4(shared_q, &p.q, &barriers.q_full, 0,
                tile.query_block * C::kBlockM, tile.head, tile.sequence,
                CachePolicy::kEvictFirst);
    for (; block >= tile.first_key_block; --block) {
      if (block > tile.first_key_block) load_keys(block - 1, ring.Next());
      BarrierWait(&barriers.v_empty[ring.stage], ring.parity);
      BarrierArriveExpect(&barriers.v_full[ring.stage], C::kKeyBytes);
      LoadBulk(shared_v + ring.stage * C::kKeyBytes,
               values + static_cast<int64_t>(block) * C::kKeyBytes,
               C::kKeyBytes, &barriers.v_full[ring.stage]);
      ring = ring.Next();
    }
    idx = next_idx;
  }
  BarrierWait(&barriers.q_empty, q_parity);
  atomicExch(&barriers.tile, -1);
  BarrierArrive(&barriers.q_full);
  // The last block to finish leaves the counters as it found them.
  if (atomicAdd(p.tile_counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
    p.tile_counter[0] = 0;
    p.tile_counter[1] = 0;
  }
}

// One block a multiprocessor for the whole launch: a producer and its
// consumers. Limited by the tensor cores and exponentials alike.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionForwardFp8Kernel(const __grid_constant__ Params p) {
  // Swizzled tiles start at multiples of 1024 bytes.
  extern __shared__ __align__(1024) uint8_t shared_q[];
  uint8_t* shared_o = shared_q + C::kQueryBytes;
  uint8_t* shared_k = shared_o + C::kOutputBytes;
  uint8_t* shared_v = shared_k + C::kStages * C::kKeyBytes;
  Barriers& barriers =
      *reinterpret_cast<Barriers*>(shared_v + C::kStages * C::kKeyBytes);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes);

  if (threadIdx.x == 0) {
    BarrierInit(&barriers.q_full, 1);
    BarrierInit(&barriers.q_empty,
                C::kNumConsumers * kWarpgroupSize / kWarpSize);
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&barriers.k_full[stage], 1);
      BarrierInit(&barriers.v_full[stage], 1);
      BarrierInit(&barriers.k_empty[stage], C::kNumConsumers);
      BarrierInit(&barriers.v_empty[stage], C::kNumConsumers);
    }
    BarrierInitFence();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  if (warpgroup == 0) {
    ShrinkRegisters<C::kProducerRegisters>();
    if (threadIdx.x == 0) {
      Produce<C>(p, barriers, shared_q, shared_k, shared_v);
    }
  } else {
    GrowRegisters<C::kConsumerRegisters>();
    Consume<C>(p, barriers, warpgroup - 1, shared_q, shared_k, shared_v,
               shared_o);
  }
}

// Heads whose keys and values (32 MiB of them) stay in the L2 cache together.
int HeadsPerSection(const AttentionFp8Shape& shape) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  const int64_t num_heads = shape.num_sequences * shape.num_heads;
  const int64_t bytes_per_head = shape.sequence_length * shape.head_dim * 2 /
                                 (shape.num_heads / shape.num_kv_heads);
  int heads = 1;
  while (2 * heads * bytes_per_head <= kCacheBytes &&
         num_heads % (2 * heads) == 0) {
    heads *= 2;
  }
  return heads;
}

absl::StatusOr<CUtensorMap> OperandMap(const Fp8Heads& operand, int64_t heads,
                                       const AttentionFp8Shape& shape,
                                       int32_t box_rows) {
  return EncodeByteHeadsTensorMap({.data = operand.data,
                                   .columns = shape.head_dim,
                                   .rows = shape.sequence_length,
                                   .middle = heads,
                                   .outer = shape.num_sequences,
                                   .row_stride = operand.token_stride,
                                   .middle_stride = operand.head_stride,
                                   .outer_stride = operand.sequence_stride},
                                  box_rows);
}

template <typename C>
absl::Status Launch(const AttentionForwardFp8Args& args, cudaStream_t stream) {
  const AttentionFp8Shape& shape = args.shape;
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (!limits.IsHopper()) {
    return absl::UnavailableError(absl::StrCat(
        "fp8 attention runs on Hopper (compute capability 9.0); the device "
        "has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  Params p;
  ASSIGN_OR_RETURN(p.q, OperandMap(args.q, shape.num_heads, shape, C::kBlockM));
  ASSIGN_OR_RETURN(p.k,
                   OperandMap(args.k, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(
      p.o, EncodeHeadsTensorMap({.data = args.o.data,
                                 .columns = shape.head_dim,
                                 .rows = shape.sequence_length,
                                 .middle = shape.num_heads,
                                 .outer = shape.num_sequences,
                                 .row_stride = args.o.token_stride,
                                 .middle_stride = args.o.head_stride,
                                 .outer_stride = args.o.sequence_stride},
                                64));
  p.v = static_cast<const uint8_t*>(args.v);
  p.q_scale = args.q_scale;
  p.k_scale = args.k_scale;
  p.v_scale = args.v_scale;
  p.lse = args.lse;
  const bool by_head = C::kDocuments;
  p.lse_sequence_stride =
      by_head ? shape.sequence_length : shape.num_heads * shape.sequence_length;
  p.lse_head_stride = by_head ? shape.num_sequences * shape.sequence_length
                              : shape.sequence_length;
  p.document_starts = shape.document_starts;
  p.tile_counter = args.tile_counter;
  p.sequence_length = static_cast<int>(shape.sequence_length);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  p.num_query_blocks = (p.sequence_length + C::kBlockM - 1) / C::kBlockM;
  p.num_key_blocks = (p.sequence_length + C::kBlockN - 1) / C::kBlockN;
  p.num_tiles =
      p.num_query_blocks * p.num_heads * static_cast<int>(shape.num_sequences);
  p.heads_per_section = HeadsPerSection(shape);
  p.scale_log2 = static_cast<float>(M_LOG2E / std::sqrt(C::kHeadDim));
  const auto kernel = AttentionForwardFp8Kernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  kernel<<<std::min(limits.num_multiprocessors, p.num_tiles), C::kNumThreads,
           C::kSharedBytes, stream>>>(p);
  return CudaStatus(cudaGetLastError(), "launch AttentionForwardFp8");
}

}  // namespace

absl::Status LaunchAttentionForwardFp8(const AttentionForwardFp8Args& args,
                                       cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionFp8Shape(args.shape));
  if (args.shape.num_sequences == 0) return absl::OkStatus();
  if (args.shape.document_starts != nullptr) {
    return args.shape.head_dim == 128
               ? Launch<Config<128, true, true>>(args, stream)
               : Launch<Config<64, true, true>>(args, stream);
  }
  if (args.shape.head_dim == 128) {
    return args.shape.causal ? Launch<Config<128, true>>(args, stream)
                             : Launch<Config<128, false>>(args, stream);
  }
  return args.shape.causal ? Launch<Config<64, true>>(args, stream)
                           : Launch<Config<64, false>>(args, stream);
}

}  // namespace millrace
