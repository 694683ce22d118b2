// Keeps a row of logits in the shared memory and registers of a cluster between
// its sum and its gradient, so that device memory is read once and written once
// (Hopper and later).

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/tuning/tuned_choice.h"
#include "kernels/vocabulary/cross_entropy_bf16_rows.h"
#include "kernels/vocabulary/cross_entropy_bf16_softmax.cuh"

namespace millrace {
namespace {

constexpr int kMaxCluster = 8;  // The portable limit.

// Each block of a cluster has an equal share of a row and room for kStages of
// them: one at work, one on its way out and the others on their way in.
constexpr int kThreads = 512;
constexpr int kVecs = 8;  // Accesses of a row that a thread keeps.
constexpr int kStages = 3;
constexpr int64_t kMostElements = int64_t{kThreads} * kVecs * ce::kElements;

// Earlier chips have no clusters and an empty kernel.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kWarps = kThreads / gpu::kWarpSize;

// Writes to where block `rank` of the cluster has `sum`; the bytes complete on
// its barrier `heard`.
__device__ __forceinline__ void Tell(uint32_t rank, ce::SoftmaxSum* sum,
                                     uint64_t* heard, ce::SoftmaxSum value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 barrier, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
      "[remote], {%3, %4}, [barrier];\n"
      "}\n" ::"r"(hopper::SharedAddress(sum)),
      "r"(hopper::SharedAddress(heard)), "r"(rank), "f"(value.maximum),
      "f"(value.sum)
      : "memory");
}

// As hopper::BarrierWait(), and what other blocks of the cluster told shows.
__device__ __forceinline__ void WaitHeard(uint64_t* heard, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "
      "done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(hopper::SharedAddress(heard)),
      "r"(parity)
      : "memory");
}

// Combines the sums of a whole warp; every lane gets the same bits.
__device__ __forceinline__ ce::SoftmaxSum CombineWarp(ce::SoftmaxSum mine) {
  const float maximum = gpu::WarpMax(mine.maximum);
  return {maximum, gpu::WarpSum(mine.sum *
                                ce::Exp2((mine.maximum - ce::Finite(maximum)) *
                                         ce::kLog2E))};
}

// Combines `count` sums; every lane of every warp gets the same bits.
__device__ __forceinline__ ce::SoftmaxSum CombineAll(const ce::SoftmaxSum* sums,
                                                     int count, int lane) {
  float maximum = -INFINITY;
  for (int i = lane; i < count; i += gpu::kWarpSize) {
    maximum = fmaxf(maximum, sums[i].maximum);
  }
  maximum = gpu::WarpMax(maximum);
  const float finite = ce::Finite(maximum);
  float sum = 0.0f;
  for (int i = lane; i < count; i += gpu::kWarpSize) {
    sum += sums[i].sum * ce::Exp2((sums[i].maximum - finite) * ce::kLog2E);
  }
  return {maximum, gpu::WarpSum(sum)};
}
#endif

// One cluster walks over every num_clusters-th row, and the copy engine brings
// the next rows meanwhile. A thread takes its logits into registers, as
// exponentials against its own maximum; the warps of all blocks then tell each
// other their sums. Memory limits: the row is read once and written once.
//
// A sum is not overwritten before it is used: a block tells of row i + 2 once
// it has heard of row i + 1 from every warp, and each tells that after having
// used the sums of row i.
__global__ void __launch_bounds__(kThreads, 1)
    ResidentRowsKernel(CrossEntropyFusedRowsArgs args, int cluster_size) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint4 stages[];
  __shared__ uint64_t full[kStages];
  __shared__ uint64_t heard[2];
  __shared__ ce::SoftmaxSum sums[2][kMaxCluster * kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / gpu::kWarpSize;
  const int lane = thread % gpu::kWarpSize;
  const int rank = static_cast<int>(hopper::ClusterRank());
  const int64_t first_row = blockIdx.x / cluster_size;
  const int64_t num_clusters = gridDim.x / cluster_size;
  const int vocab = static_cast<int>(args.rows.vocab_rows);
  const int row_vecs = (vocab + ce::kElements - 1) / ce::kElements;
  const int share = (row_vecs + cluster_size - 1) / cluster_size;
  const int begin = min(row_vecs, rank * share);
  const int num_vecs = min(row_vecs, begin + share) - begin;
  // The access that reaches beyond the vocabulary, if this block has it.
  const int tail_vec =
      vocab % ce::kElements != 0 && begin + num_vecs == row_vecs ? num_vecs - 1
                                                                 : -1;
  auto vecs_of = [&](int64_t row) {
    return reinterpret_cast<uint4*>(
               static_cast<__nv_bfloat16*>(args.rows.logits) +
               row * args.rows.row_stride) +
           begin;
  };
  auto load = [&](int64_t row, int stage) {
    if (row >= args.rows.num_rows) return;
    const uint32_t num_bytes = num_vecs * sizeof(uint4);
    hopper::BarrierArriveExpect(&full[stage], num_bytes);
    if (num_bytes == 0) return;
    hopper::LoadBulk(stages + stage * share, vecs_of(row), num_bytes,
                     &full[stage]);
  };
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::BarrierInit(&full[stage], 1);
    }
    hopper::BarrierInit(&heard[0], 1);
    hopper::BarrierInit(&heard[1], 1);
    hopper::BarrierInitFence();
    for (int stage = 0; stage < kStages; ++stage) {
      load(first_row + stage * num_clusters, stage);
    }
  }
  hopper::ClusterSync();

  int stage = 0;
  uint32_t parity = 0;
  int turn = 0;
  uint32_t heard_parity = 0;
  for (int64_t row = first_row; row < args.rows.num_rows; row += num_clusters) {
    const int target = args.rows.targets[row];
    hopper::BarrierWait(&full[stage], parity);
    uint4* const shared = stages + stage * share;
    uint4 raw[kVecs];
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int vec = i * kThreads + thread;
      raw[i] = {ce::kMinusInfinities, ce::kMinusInfinities,
                ce::kMinusInfinities, ce::kMinusInfinities};
      if (vec < num_vecs) raw[i] = shared[vec];
      if (vec == tail_vec) {
        raw[i] = ce::MaskLogits(raw[i], (begin + vec) * ce::kElements, vocab);
      }
    }
    float maximum = ce::Maximum(raw[0]);
#pragma unroll
    for (int i = 1; i < kVecs; ++i) {
      maximum = fmaxf(maximum, ce::Maximum(raw[i]));
    }
    const float base = ce::Finite(maximum) * ce::kLog2E;
    gpu::Float8 exponentials[kVecs];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      exponentials[i] = gpu::Unpack8(raw[i]);
      float part = 0.0f;
#pragma unroll
      for (float& x : exponentials[i].v) {
        x = ce::Exp2(fmaf(x, ce::kLog2E, -base));
        part += x;
      }
      sum += part;
    }
    const ce::SoftmaxSum of_warp = CombineWarp({maximum, sum});
    if (cluster_size == 1) {  // Nobody else to tell.
      if (lane == 0) sums[turn][warp] = of_warp;
      __syncthreads();
    } else {
      if (thread == 0) {
        hopper::BarrierArriveExpect(
            &heard[turn], cluster_size * kWarps * sizeof(ce::SoftmaxSum));
      }
      if (lane < cluster_size) {
        Tell(lane, &sums[turn][rank * kWarps + warp], &heard[turn], of_warp);
      }
      __syncwarp();
      WaitHeard(&heard[turn], heard_parity);
    }
    const ce::SoftmaxSum all =
        CombineAll(sums[turn], cluster_size * kWarps, lane);
    const float log_sum = logf(all.sum);
    const ce::RowGradient gradient =
        ce::MakeGradient(args.weights, all.maximum, log_sum);
    const float factor = gradient.factor * ce::Exp2(base - gradient.base);
    const int target_vec = target / ce::kElements - begin;
    const bool has_target = target >= 0 && target < vocab && target_vec >= 0 &&
                            target_vec < num_vecs &&
                            target_vec % kThreads == thread;
    auto* const target_place = reinterpret_cast<__nv_bfloat16*>(shared) +
                               (target - begin * ce::kElements);
    const float target_logit =
        has_target ? __bfloat162float(*target_place) : 0.0f;
    if (target >= 0) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const int vec = i * kThreads + thread;
#pragma unroll
        for (float& x : exponentials[i].v) x *= factor;
        if (vec < num_vecs) {
          gpu::Store16(shared + vec, gpu::Pack8(exponentials[i]));
        }
      }
    } else {
      for (int vec = thread; vec < num_vecs; vec += kThreads) {
        gpu::Store16(shared + vec, {0, 0, 0, 0});
      }
    }
    // By the thread that has just written its neighbours.
    if (has_target) *target_place = ce::TargetGradient(target_logit, gradient);
    hopper::FenceSharedForAsync();
    __syncthreads();
    if (thread == 0) {
      if (num_vecs > 0) {
        hopper::StoreBulk(vecs_of(row), shared, num_vecs * sizeof(uint4));
      }
      hopper::CommitStores();
      if (row != first_row) {  // Once the row before this has left its stage.
        hopper::WaitStoresRead<1>();
        load(row + (kStages - 1) * num_clusters,
             stage == 0 ? kStages - 1 : stage - 1);
      }
    }
    if (has_target) {
      args.losses[row] =
          ce::Loss(args.weights, all.maximum, log_sum, target_logit);
    } else if (rank == 0 && thread == 0 && (target < 0 || target >= vocab)) {
      args.losses[row] = target < 0 ? 0.0 : NAN;
    }
    if (turn == 1) heard_parity ^= 1;
    turn ^= 1;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (thread == 0) hopper::WaitStores<0>();
#endif
}

}  // namespace

absl::StatusOr<bool> LaunchCrossEntropyResidentRows(
    const CrossEntropyFusedRowsArgs& args, cudaStream_t stream) {
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (limits.compute_capability < 90) return false;
  const int64_t least =
      (args.rows.vocab_rows + kMostElements - 1) / kMostElements;
  if (least > kMaxCluster) return false;
  const int cluster_size = static_cast<int>(std::max(
      least, TunedChoice(TunedKernel::kCrossEntropyRows,
                         {SizeClass(args.rows.vocab_rows)}, {least})[0]));
  const void* kernel = reinterpret_cast<const void*>(&ResidentRowsKernel);
  const int64_t row_vecs =
      (args.rows.vocab_rows + ce::kElements - 1) / ce::kElements;
  const int shared_bytes = static_cast<int>(
      kStages * ((row_vecs + cluster_size - 1) / cluster_size) * sizeof(uint4));
  RETURN_IF_ERROR(AllowSharedBytes(kernel, shared_bytes));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {
      .gridDim = dim3(cluster_size),
      .blockDim = dim3(kThreads),
      .dynamicSmemBytes = static_cast<size_t>(shared_bytes),
      .stream = stream,
      .attrs = &cluster,
      .numAttrs = 1};
  int num_clusters = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaOccupancyMaxActiveClusters(&num_clusters, kernel, &config),
                 "count the clusters of CrossEntropyResidentRows"));
  if (num_clusters == 0) return false;
  if (num_clusters > args.rows.num_rows) {
    num_clusters = static_cast<int>(args.rows.num_rows);
  }
  config.gridDim = dim3(cluster_size * num_clusters);
  RETURN_IF_ERROR(CudaStatus(
      cudaLaunchKernelEx(&config, ResidentRowsKernel, args, cluster_size),
      "launch CrossEntropyResidentRows"));
  return true;
}

}  // namespace millrace
