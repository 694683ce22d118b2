#include "kernels/c_api/attention_portable.h"

#include "base/status_macros.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/c_api/attention_convert.h"
#include "kernels/c_api/result.h"

namespace millrace {
namespace {

absl::Status Forward(const AttentionForwardBf16Args& args,
                     cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  RETURN_IF_ERROR(LaunchAttentionForwardBf16Portable(args, stream));
  return LaunchAmaxOfOutput(args, stream);
}

absl::Status Backward(const AttentionBackwardBf16Args& args,
                      cudaStream_t stream) {
  RETURN_IF_ERROR(CheckAttentionBf16Shape(args.shape));
  return LaunchAttentionBackwardBf16Portable(args, stream);
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_attention_forward_bf16_portable(
    const millrace_attention_forward_args* args, void* stream) {
  return millrace::CResult(millrace::Forward(
      millrace::FromC(*args), static_cast<cudaStream_t>(stream)));
}

int64_t millrace_attention_backward_bf16_portable_workspace_bytes(
    const millrace_attention_shape* shape) {
  return millrace::AttentionBackwardBf16PortableWorkspaceBytes(
      millrace::FromC(*shape));
}

int millrace_attention_backward_bf16_portable(
    const millrace_attention_backward_args* args, void* stream) {
  return millrace::CResult(millrace::Backward(
      millrace::FromC(*args), static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
