// Hopper (sm_90a) primitives that kernels share: a thin layer over PTX. Each
// function is one instruction or the shortest sequence that is safe to use.
// Names follow the PTX ISA.

#ifndef MILLRACE_KERNELS_CUDA_HOPPER_CUH_
#define MILLRACE_KERNELS_CUDA_HOPPER_CUH_

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace millrace::hopper {

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpgroupSize = 128;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier: counts arrivals and bytes of asynchronous copies
// --------------

__device__ __forceinline__ void BarrierInit(uint64_t* barrier, uint32_t count) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(count));
}

// Makes initialized barriers visible to the copy engine and to other CTAs of
// the cluster; follow it with a block or cluster barrier.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
      : "memory");
}

// Arrives and announces `num_bytes` that copies will complete on the barrier.
__device__ __forceinline__ void BarrierArriveExpect(uint64_t* barrier,
                                                    uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(num_bytes)
               : "memory");
}

// Waits until the phase of parity `parity` has completed. A fresh barrier
// counts as having completed parity 1, so producers wait on parity 1 first.
__device__ __forceinline__ void BarrierWait(uint64_t* barrier,
                                            uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// ---- Tensor memory access
// -----------------------------------------------------

enum class CachePolicy : uint64_t {
  kEvictNormal = 0x1000000000000000ull,
  kEvictFirst = 0x12F0000000000000ull,
  kEvictLast = 0x14F0000000000000ull,
};

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies one box of a 4-D tensor into shared memory; its bytes complete on
// `barrier`. Coordinates are elements, innermost first; what lies outside the
// tensor arrives as zeros.
__device__ __forceinline__ void LoadTensor4(void* shared,
                                            const CUtensorMap* map,
                                            uint64_t* barrier, int x0, int x1,
                                            int x2, int x3,
                                            CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x0), "r"(x1), "r"(x2), "r"(x3),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// Copies one box from shared memory into a 4-D tensor, clipped to it.
__device__ __forceinline__ void StoreTensor4(const CUtensorMap* map,
                                             const void* shared, int x0, int x1,
                                             int x2, int x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
      "r"(SharedAddress(shared)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// Copies `num_bytes` (a multiple of 16) of contiguous memory.
__device__ __forceinline__ void LoadBulk(void* shared, const void* global,
                                         uint32_t num_bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(num_bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// Copies them the other way; a store, to be committed and waited for.
__device__ __forceinline__ void StoreBulk(void* global, const void* shared,
                                          uint32_t num_bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
          global),
      "r"(SharedAddress(shared)), "r"(num_bytes)
      : "memory");
}

// Adds floats from shared to global memory, contiguous.
__device__ __forceinline__ void ReduceAddBulk(float* global, const void* shared,
                                              uint32_t num_bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
      "[%0], [%1], %2;" ::"l"(global),
      "r"(SharedAddress(shared)), "r"(num_bytes)
      : "memory");
}

__device__ __forceinline__ void CommitStores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until shared memory of all but the last N store groups may be reused.
// The stores need not be visible in global memory yet.
template <int N>
__device__ __forceinline__ void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

template <int N>
__device__ __forceinline__ void WaitStores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// Orders this thread's ordinary shared-memory accesses before later ones by the
// copy engine or the tensor cores.
__device__ __forceinline__ void FenceSharedForAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Named barriers, registers
// ------------------------------------------------

// Id 0 belongs to __syncthreads().
__device__ __forceinline__ void NamedBarrierSync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Programmatic dependent launch: a kernel may start while the one before
// it in its stream still runs
// ---------------------------------------------------

// Waits until the kernels this one depends on have ended and their writes show.
__device__ __forceinline__ void GridDependencyWait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the dependent kernel start once every block has called this or ended.
// It promises nothing about memory; the dependent waits as above.
__device__ __forceinline__ void GridDependencyRelease() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- stmatrix and conversions
// -------------------------------------------------

// Stores four 8x8 matrices of 16-bit elements: lane l gives the address of row
// l % 8 of matrix l / 8; register i holds this lane's pair of matrix i.
__device__ __forceinline__ void StoreMatrix4(uint32_t shared_address,
                                             uint32_t r0, uint32_t r1,
                                             uint32_t r2, uint32_t r3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          shared_address),
      "r"(r0), "r"(r1), "r"(r2), "r"(r3)
      : "memory");
}

// The same with every matrix transposed: register i holds, of lane l, elements
// l % 4 * 2 and the next of column l / 4.
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t shared_address,
                                                       uint32_t r0, uint32_t r1,
                                                       uint32_t r2,
                                                       uint32_t r3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
      "[%0], {%1, %2, %3, %4};" ::"r"(shared_address),
      "r"(r0), "r"(r1), "r"(r2), "r"(r3)
      : "memory");
}

// Two floats as bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBfloat16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace millrace::hopper

#endif  // MILLRACE_KERNELS_CUDA_HOPPER_CUH_
