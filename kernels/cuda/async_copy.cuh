// Copies from global to shared memory that run while a thread computes
// (cp.async, from compute capability 8.0 on).

#ifndef MILLRACE_KERNELS_CUDA_ASYNC_COPY_CUH_
#define MILLRACE_KERNELS_CUDA_ASYNC_COPY_CUH_

#include <cstdint>

namespace millrace::gpu {

// 16 bytes, past the first-level cache; both addresses are multiples of 16.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

// The same to a shared address, or zeros that read nothing.
__device__ __forceinline__ void CopyAsync16OrZero(uint32_t shared_address,
                                                  const void* global,
                                                  bool copy) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address),
      "l"(global), "r"(copy ? 16 : 0)
      : "memory");
}

// Closes the group of the copies this thread has issued since the last group.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of this thread but the last N. The copies are then
// visible to this thread; to others after a block barrier.
template <int N>
__device__ __forceinline__ void WaitCopiesAllBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_ASYNC_COPY_CUH_
