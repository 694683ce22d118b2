#include <cmath>

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_forward_tile.cuh"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/wgmma_attention.cuh"

namespace millrace {
namespace {

using namespace attention_forward;  // NOLINT: the vocabulary of this kernel.

// A block has 64 queries of one head, and its warpgroups share out the blocks
// of keys.
template <int kHeadDim_, int kNumWarpgroups_, Visible kVisible_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kNumWarpgroups = kNumWarpgroups_;
  static constexpr Visible kVisible = kVisible_;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 64;
  static constexpr int kStages = 2;  // For keys and for values, each warpgroup.
  static constexpr int kColumnGroups = kHeadDim / 64;
  static constexpr int kTileBytes = 64 * kHeadDim * 2;
  // A warpgroup's keys and values; in the end its unnormalized output.
  static constexpr int kWarpgroupBytes = 2 * kStages * kTileBytes;
  static constexpr int kNumThreads = kNumWarpgroups * kWarpgroupSize;
  static constexpr int kSharedBytes =
      1024 + kTileBytes + kNumWarpgroups * kWarpgroupBytes;
  static constexpr int kPerThread = kHeadDim / 2;  // Columns of the output.
  static_assert(kPerThread % (4 * kNumWarpgroups) == 0);
};

// Every warpgroup walks over its keys and has its own softmax; in the end all
// put theirs together. Limited by latency: of the launch, of the first keys,
// and from a block's scores to its output.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    AttentionForwardSplitKernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t unaligned_shared[];
  uint8_t* const q_tile = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned_shared) + 1023) &
      ~uintptr_t{1023});
  __shared__ uint64_t q_full;
  __shared__ uint64_t k_full[C::kNumWarpgroups][C::kStages];
  __shared__ uint64_t v_full[C::kNumWarpgroups][C::kStages];
  // For each row, the reference of a warpgroup's terms, and their sum.
  __shared__ float references[C::kNumWarpgroups][64];
  __shared__ float sums[C::kNumWarpgroups][64];

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroupSize, 0);
  const int thread = threadIdx.x % kWarpgroupSize;
  const int lane = threadIdx.x % kWarpSize;
  const bool leader = thread == 0;
  uint8_t* const mine = q_tile + C::kTileBytes + warpgroup * C::kWarpgroupBytes;

  const int head = blockIdx.y % p.num_heads;
  const int sequence = blockIdx.y / p.num_heads;
  const int first_row = blockIdx.x * 64;
  const int length = p.sequence_length;
  const int end =
      C::kVisible == Visible::kCausal ? min(length, first_row + 64) : length;
  const int num_blocks = (end + 63) / 64;

  // From here on another launch may begin, up to the same line.
  GridDependencyRelease();
  auto load = [&](const CUtensorMap& map, uint8_t* to, uint64_t* full, int row,
                  int map_head, CachePolicy policy) {
    BarrierArriveExpect(full, C::kTileBytes);
    for (int group = 0; group < C::kColumnGroups; ++group) {
      LoadTensor4(to + group * 64 * 128, &map, full, group * 64, row, map_head,
                  sequence, policy);
    }
  };
  const int kv_head = head / p.heads_per_kv;
  auto load_keys = [&](int block, int stage) {
    load(p.k, mine + stage * C::kTileBytes, &k_full[warpgroup][stage],
         block * 64, kv_head, CachePolicy::kEvictLast);
  };
  auto load_values = [&](int block, int stage) {
    load(p.v, mine + (C::kStages + stage) * C::kTileBytes,
         &v_full[warpgroup][stage], block * 64, kv_head,
         CachePolicy::kEvictLast);
  };
  if (leader) {
    if (warpgroup == 0) {
      PrefetchTensorMap(&p.q);
      BarrierInit(&q_full, 1);
    }
    PrefetchTensorMap(&p.k);
    PrefetchTensorMap(&p.v);
    for (int stage = 0; stage < C::kStages; ++stage) {
      BarrierInit(&k_full[warpgroup][stage], 1);
      BarrierInit(&v_full[warpgroup][stage], 1);
    }
    BarrierInitFence();
  }
  // From here on, the results of earlier launches are visible.
  GridDependencyWait();
  if (leader) {
    FenceSharedForAsync();
    if (warpgroup == 0) {
      load(p.q, q_tile, &q_full, first_row, head, CachePolicy::kEvictFirst);
    }
    for (int stage = 0; stage < C::kStages; ++stage) {
      const int block = warpgroup + stage * C::kNumWarpgroups;
      if (block < num_blocks) load_keys(block, stage);
    }
    for (int stage = 0; stage < C::kStages; ++stage) {
      const int block = warpgroup + stage * C::kNumWarpgroups;
      if (block < num_blocks) load_values(block, stage);
    }
  }
  __syncthreads();

  float s[C::kBlockN / 2];
  float o[C::kPerThread];
  uint32_t probabilities[C::kBlockN / 16][4];
#pragma unroll
  for (int i = 0; i < C::kPerThread; ++i) o[i] = 0.0f;
  RowState rows;
  const int row = thread / kWarpSize * 16 + lane / 4;  // And 8 after it.
  BarrierWait(&q_full, 0);
  int stage = 0;
  int parity = 0;
#pragma unroll 1
  for (int block = warpgroup; block < num_blocks; block += C::kNumWarpgroups) {
    const int later = block + C::kStages * C::kNumWarpgroups;
    const uint32_t keys = SharedAddress(mine) + stage * C::kTileBytes;
    const uint32_t values = keys + C::kStages * C::kTileBytes;
    BarrierWait(&k_full[warpgroup][stage], parity);
    RegisterFence(s);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < C::kHeadDim / 16; ++k) {
      const int offset = k / 4 * 64 * 128 + k % 4 * 32;
      MultiplyShared<C::kBlockN, false, false>(
          s, SwizzledDescriptor(SharedAddress(q_tile) + offset, 0),
          SwizzledDescriptor(keys + offset, 0), k != 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    RegisterFence(s);
    if (later < num_blocks) {
      NamedBarrierSync(1 + warpgroup, kWarpgroupSize);
      if (leader) load_keys(later, stage);
    }
    if ((block + 1) * C::kBlockN >
        (C::kVisible == Visible::kCausal ? first_row + 1 : length)) {
      MaskBlock<C>(p, block, first_row + row, length, s);
    }
    SoftmaxBlock<C, true>(p, s, rows);
#pragma unroll
    for (int i = 0; i < C::kPerThread; ++i) {
      if (rows.must_rescale) o[i] *= rows.rescale[i / 2 % 2];
    }
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        probabilities[k][r] =
            PackBfloat16(s[8 * k + 2 * r], s[8 * k + 2 * r + 1]);
      }
    }
    BarrierWait(&v_full[warpgroup][stage], parity);
    RegisterFence(o);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < C::kBlockN / 16; ++k) {
      MultiplyValues<C::kHeadDim>(
          o, probabilities[k],
          SwizzledDescriptor(values + k * 2048, C::kBlockN * 128), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    RegisterFence(o);
    if (later < num_blocks) {
      NamedBarrierSync(1 + warpgroup, kWarpgroupSize);
      if (leader) load_values(later, stage);
    }
    stage ^= 1;
    if (stage == 0) parity ^= 1;
  }

  // All of this warpgroup's products have read its keys and values.
  NamedBarrierSync(1 + warpgroup, kWarpgroupSize);
  float* const partial = reinterpret_cast<float*>(mine);
#pragma unroll
  for (int i = 0; i < C::kPerThread; ++i) {
    partial[i * kWarpgroupSize + thread] = o[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) {
      references[warpgroup][row + 8 * r] = rows.reference[r];
      sums[warpgroup][row + 8 * r] = sum;
    }
  }
  __syncthreads();

  // Each warpgroup puts together its share of the columns.
  constexpr int kShare = C::kPerThread / C::kNumWarpgroups;
  float weights[2][C::kNumWarpgroups];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float maximum = -INFINITY;
#pragma unroll
    for (int w = 0; w < C::kNumWarpgroups; ++w) {
      maximum = fmaxf(maximum, references[w][row + 8 * r]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < C::kNumWarpgroups; ++w) {
      weights[r][w] = Exp2(references[w][row + 8 * r] - maximum);
      sum += weights[r][w] * sums[w][row + 8 * r];
    }
#pragma unroll
    for (int w = 0; w < C::kNumWarpgroups; ++w) weights[r][w] /= sum;
    if (warpgroup == 0 && lane % 4 == 0 && first_row + row + 8 * r < length) {
      p.lse[sequence * p.lse_sequence_stride + head * p.lse_head_stride +
            first_row + row + 8 * r] =
          (maximum + Log2(sum)) * static_cast<float>(M_LN2);
    }
  }
#pragma unroll
  for (int i = 0; i < kShare; i += 2) {
    const int element = warpgroup * kShare + i;
    const int r = i / 2 % 2;
    float low = 0.0f;
    float high = 0.0f;
#pragma unroll
    for (int w = 0; w < C::kNumWarpgroups; ++w) {
      const float* from = reinterpret_cast<const float*>(
                              q_tile + C::kTileBytes + w * C::kWarpgroupBytes) +
                          element * kWarpgroupSize + thread;
      low += weights[r][w] * from[0];
      high += weights[r][w] * from[kWarpgroupSize];
    }
    const int output_row = first_row + row + 8 * r;
    if (output_row < length) {
      *reinterpret_cast<uint32_t*>(p.o_rows + sequence * p.o_sequence_stride +
                                   output_row * p.o_token_stride +
                                   head * p.o_head_stride + element / 4 * 8 +
                                   lane % 4 * 2) = PackBfloat16(low, high);
    }
  }
}

template <typename C>
absl::Status Launch(const AttentionForwardBf16Args& args, cudaStream_t stream) {
  const AttentionBf16Shape& shape = args.shape;
  ASSIGN_OR_RETURN(const Params p, ParamsOf<C>(args, /*num_heads_at_once=*/1));
  const auto kernel = AttentionForwardSplitKernel<C>;
  RETURN_IF_ERROR(
      AllowSharedBytes(reinterpret_cast<const void*>(kernel), C::kSharedBytes));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(p.num_query_blocks,
                        static_cast<int>(shape.num_sequences) * p.num_heads);
  config.blockDim = C::kNumThreads;
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, p),
                    "launch AttentionForwardBf16Split");
}

template <Visible kVisible>
absl::Status LaunchHeadDim(const AttentionForwardBf16Args& args,
                           cudaStream_t stream) {
  return args.shape.head_dim == 64
             ? Launch<Config<64, 4, kVisible>>(args, stream)
             : Launch<Config<128, 2, kVisible>>(args, stream);
}

}  // namespace

namespace attention_forward {

bool SplitTakes(const AttentionBf16Shape& shape) {
  return (shape.head_dim == 64 || shape.head_dim == 128) && shape.window == 0 &&
         shape.document_offsets == nullptr;
}

absl::Status LaunchSplit(const AttentionForwardBf16Args& args,
                         cudaStream_t stream) {
  return args.shape.causal ? LaunchHeadDim<Visible::kCausal>(args, stream)
                           : LaunchHeadDim<Visible::kAll>(args, stream);
}

}  // namespace attention_forward
}  // namespace millrace
