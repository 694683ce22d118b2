// Thread block clusters of Hopper, and matrices (2-D tensors) for the copy
// engine: what a GEMM needs beyond hopper.cuh.

#ifndef MILLRACE_KERNELS_CUDA_CLUSTER_CUH_
#define MILLRACE_KERNELS_CUDA_CLUSTER_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/hopper.cuh"

namespace millrace::hopper {

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of all blocks of the cluster.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Arrives on the barrier that block `rank` of the cluster has where this block
// has `barrier`. Orders what the tensor cores and the copy engine have finished
// reading, and no ordinary writes to global memory: release at the scope of the
// cluster would wait for those every time.
__device__ __forceinline__ void BarrierArriveAt(uint64_t* barrier,
                                                uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}

// Copies one box of a matrix into shared memory; its bytes complete on
// `barrier`. Elements outside the matrix arrive as zeros.
__device__ __forceinline__ void LoadMatrix(void* shared, const CUtensorMap* map,
                                           uint64_t* barrier, int column,
                                           int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(column), "r"(row)
      : "memory");
}

// The same into every block of the cluster whose bit is set in `blocks`, each
// at the same place and completing on its own barrier.
__device__ __forceinline__ void LoadMatrixMulticast(void* shared,
                                                    const CUtensorMap* map,
                                                    uint64_t* barrier,
                                                    int column, int row,
                                                    uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
          SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}

// Copies one box from shared memory into a matrix, clipped to it.
__device__ __forceinline__ void StoreMatrix(const CUtensorMap* map,
                                            const void* shared, int column,
                                            int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], "
      "[%1];" ::"l"(map),
      "r"(SharedAddress(shared)), "r"(column), "r"(row)
      : "memory");
}

// Adds one box to a matrix instead, in its element type.
__device__ __forceinline__ void ReduceAddMatrix(const CUtensorMap* map,
                                                const void* shared, int column,
                                                int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group "
      "[%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(SharedAddress(shared)), "r"(column), "r"(row)
      : "memory");
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_CLUSTER_CUH_
