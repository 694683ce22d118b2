// Keeping a multiprocessor full.

#ifndef MILLRACE_KERNELS_CUDA_OCCUPANCY_CUH_
#define MILLRACE_KERNELS_CUDA_OCCUPANCY_CUH_

namespace millrace::gpu {

// As second argument of __launch_bounds__: how many blocks of num_threads fill
// a multiprocessor. The compiler then finds the registers for them, 32 or 40 a
// thread; kernels that memory bandwidth limits need the loads of them all.
constexpr int FullBlocks(int num_threads) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || \
                               __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
  return 1536 / num_threads;
#else
  return 2048 / num_threads;
#endif
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_OCCUPANCY_CUH_
