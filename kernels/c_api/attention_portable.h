/* The portable way of bf16 attention, whatever the device: for comparing it
   with the way that the device would be given. Arguments and results as in
   attention.h; num_sequences is not zero. */

#ifndef MILLRACE_KERNELS_C_API_ATTENTION_PORTABLE_H_
#define MILLRACE_KERNELS_C_API_ATTENTION_PORTABLE_H_

#include "kernels/c_api/attention.h"
#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

MILLRACE_API int millrace_attention_forward_bf16_portable(
    const millrace_attention_forward_args* args, void* stream);
MILLRACE_API int64_t millrace_attention_backward_bf16_portable_workspace_bytes(
    const millrace_attention_shape* shape);
MILLRACE_API int millrace_attention_backward_bf16_portable(
    const millrace_attention_backward_args* args, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_ATTENTION_PORTABLE_H_ */
