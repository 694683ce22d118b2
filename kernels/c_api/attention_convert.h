// The C structures of attention as the C++ ones.

#ifndef MILLRACE_KERNELS_C_API_ATTENTION_CONVERT_H_
#define MILLRACE_KERNELS_C_API_ATTENTION_CONVERT_H_

#include "kernels/attention/attention_bf16.h"
#include "kernels/c_api/attention.h"

namespace millrace {

inline Bf16Heads FromC(const millrace_heads& heads) {
  return {.data = heads.data,
          .token_stride = heads.token_stride,
          .head_stride = heads.head_stride,
          .sequence_stride = heads.sequence_stride};
}

inline AttentionBf16Shape FromC(const millrace_attention_shape& shape) {
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

inline AttentionForwardBf16Args FromC(
    const millrace_attention_forward_args& args) {
  return {.o = FromC(args.o),
          .lse = args.lse,
          .q = FromC(args.q),
          .k = FromC(args.k),
          .v = FromC(args.v),
          .tile_counter = args.tile_counter,
          .shape = FromC(args.shape),
          .amax = args.amax};
}

inline AttentionBackwardBf16Args FromC(
    const millrace_attention_backward_args& args) {
  return {.d_q = FromC(args.d_q),
          .d_k = FromC(args.d_k),
          .d_v = FromC(args.d_v),
          .q = FromC(args.q),
          .k = FromC(args.k),
          .v = FromC(args.v),
          .o = FromC(args.o),
          .d_o = FromC(args.d_o),
          .lse = args.lse,
          .workspace = args.workspace,
          .shape = FromC(args.shape),
          .deterministic = args.deterministic != 0};
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_C_API_ATTENTION_CONVERT_H_
