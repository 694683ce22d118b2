#include "kernels/c_api/attention.h"

#include "kernels/attention_bf16.h"
#include "kernels/c_api/result.h"

namespace millrace {
namespace {

Bf16Heads Heads(const millrace_heads& heads) {
  return {.data = heads.data,
          .token_stride = heads.token_stride,
          .head_stride = heads.head_stride,
          .sequence_stride = heads.sequence_stride};
}

AttentionBf16Shape Shape(const millrace_attention_shape& shape) {
  return {.num_sequences = shape.num_sequences,
          .sequence_length = shape.sequence_length,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .causal = shape.causal != 0,
          .window = shape.window,
          .document_offsets = shape.document_offsets,
          .total_tokens = shape.total_tokens};
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_attention_forward_bf16(const millrace_attention_forward_args* args,
                                    void* stream) {
  return millrace::CResult(millrace::LaunchAttentionForwardBf16(
      {.o = millrace::Heads(args->o),
       .lse = args->lse,
       .q = millrace::Heads(args->q),
       .k = millrace::Heads(args->k),
       .v = millrace::Heads(args->v),
       .tile_counter = args->tile_counter,
       .shape = millrace::Shape(args->shape)},
      static_cast<cudaStream_t>(stream)));
}

int64_t millrace_attention_backward_bf16_workspace_bytes(
    const millrace_attention_shape* shape) {
  return millrace::AttentionBackwardBf16WorkspaceBytes(
      millrace::Shape(*shape));
}

int millrace_attention_backward_bf16(
    const millrace_attention_backward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchAttentionBackwardBf16(
      {.d_q = millrace::Heads(args->d_q),
       .d_k = millrace::Heads(args->d_k),
       .d_v = millrace::Heads(args->d_v),
       .q = millrace::Heads(args->q),
       .k = millrace::Heads(args->k),
       .v = millrace::Heads(args->v),
       .o = millrace::Heads(args->o),
       .d_o = millrace::Heads(args->d_o),
       .lse = args->lse,
       .workspace = args->workspace,
       .shape = millrace::Shape(args->shape),
       .deterministic = args->deterministic != 0},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
