#include "kernels/c_api/rope.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/rope_bf16.h"

namespace millrace {
namespace {

RopeBf16Shape Shape(const millrace_rope_shape& shape) {
  return {.num_tokens = shape.num_tokens,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .sequence_length = shape.sequence_length,
          .table_length = shape.table_length};
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_rope_forward_bf16(const millrace_rope_forward_args* args,
                               void* stream) {
  return millrace::CResult(millrace::LaunchRopeForwardBf16(
      {.out = args->out,
       .out_token_stride = args->out_token_stride,
       .qkv = args->qkv,
       .qkv_token_stride = args->qkv_token_stride,
       .table = args->table,
       .position_ids = args->position_ids,
       .q_weight = args->q_weight,
       .k_weight = args->k_weight,
       .rstd = args->rstd,
       .epsilon = static_cast<float>(args->epsilon),
       .shape = millrace::Shape(args->shape)},
      static_cast<cudaStream_t>(stream)));
}

int64_t millrace_rope_backward_bf16_workspace_bytes(
    const millrace_rope_shape* shape) {
  return millrace::RopeBackwardBf16WorkspaceBytes(millrace::Shape(*shape));
}

int millrace_rope_backward_bf16(const millrace_rope_backward_args* args,
                                void* stream) {
  return millrace::CResult(millrace::LaunchRopeBackwardBf16(
      {.d_qkv = args->d_qkv,
       .d_qkv_token_stride = args->d_qkv_token_stride,
       .table = args->table,
       .position_ids = args->position_ids,
       .q_weight = args->q_weight,
       .k_weight = args->k_weight,
       .qkv = args->qkv,
       .qkv_token_stride = args->qkv_token_stride,
       .rstd = args->rstd,
       .d_q_weight = args->d_q_weight,
       .d_k_weight = args->d_k_weight,
       .accumulate = args->accumulate != 0,
       .workspace = args->workspace,
       .shape = millrace::Shape(args->shape),
       .amax = args->amax},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
