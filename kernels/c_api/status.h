/* The rules that all functions of libmillrace_kernels.so share.

   A function takes one struct of device pointers and sizes and a CUDA stream
   (a cudaStream_t; null is the default stream), enqueues its work there on the
   current device, allocates nothing and returns without waiting. It returns 0,
   or a code other than 0 and leaves the reason in millrace_last_error(): 3 for
   an argument that cannot be, 8 for memory that is lacking, 13 for an error of
   CUDA, 14 for a device that cannot run it (the codes of absl::StatusCode). */

#ifndef MILLRACE_KERNELS_C_API_STATUS_H_
#define MILLRACE_KERNELS_C_API_STATUS_H_

#include <stdint.h>

#if defined(__GNUC__)
#define MILLRACE_API __attribute__((visibility("default")))
#else
#define MILLRACE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a struct or a meaning changes; new functions leave it. */
#define MILLRACE_KERNELS_ABI_VERSION 2
MILLRACE_API int millrace_kernels_abi_version(void);

/* The last failure of the calling thread, or "". Valid until its next call. */
MILLRACE_API const char* millrace_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_STATUS_H_ */
