#include "kernels/c_api/attention.h"

#include "kernels/attention/attention_bf16.h"
#include "kernels/c_api/attention_convert.h"
#include "kernels/c_api/result.h"

extern "C" {

int millrace_attention_forward_bf16(const millrace_attention_forward_args* args,
                                    void* stream) {
  return millrace::CResult(millrace::LaunchAttentionForwardBf16(
      millrace::FromC(*args), static_cast<cudaStream_t>(stream)));
}

int64_t millrace_attention_backward_bf16_workspace_bytes(
    const millrace_attention_shape* shape) {
  return millrace::AttentionBackwardBf16WorkspaceBytes(millrace::FromC(*shape));
}

int millrace_attention_backward_bf16(
    const millrace_attention_backward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchAttentionBackwardBf16(
      millrace::FromC(*args), static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
