#include "kernels/c_api/attention_fp8.h"

#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/attention_fp8_quantize.h"
#include "kernels/c_api/result.h"

namespace millrace {
namespace {

AttentionFp8Shape Shape(const millrace_attention_fp8_shape& shape) {
  return {.num_sequences = shape.num_sequences,
          .sequence_length = shape.sequence_length,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .causal = shape.causal != 0};
}

Fp8Heads Fp8(const millrace_heads& heads) {
  return {.data = heads.data,
          .token_stride = heads.token_stride,
          .head_stride = heads.head_stride,
          .sequence_stride = heads.sequence_stride};
}

Bf16Heads Bf16(const millrace_heads& heads) {
  return {.data = heads.data,
          .token_stride = heads.token_stride,
          .head_stride = heads.head_stride,
          .sequence_stride = heads.sequence_stride};
}

}  // namespace
}  // namespace millrace

extern "C" {

int64_t millrace_fp8_value_bytes(const millrace_attention_fp8_shape* shape) {
  return millrace::Fp8ValueBytes(millrace::Shape(*shape));
}

int64_t millrace_fp8_num_query_scales(
    const millrace_attention_fp8_shape* shape) {
  return shape->num_sequences * shape->num_heads *
         millrace::NumFp8QueryBlocks(millrace::Shape(*shape));
}

int64_t millrace_fp8_num_key_scales(const millrace_attention_fp8_shape* shape) {
  return shape->num_sequences * shape->num_kv_heads *
         millrace::NumFp8KeyBlocks(millrace::Shape(*shape));
}

int millrace_attention_forward_fp8(
    const millrace_attention_forward_fp8_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchAttentionForwardFp8(
      {.o = millrace::Bf16(args->o),
       .lse = args->lse,
       .q = millrace::Fp8(args->q),
       .k = millrace::Fp8(args->k),
       .v = args->v,
       .q_scale = args->q_scale,
       .k_scale = args->k_scale,
       .v_scale = args->v_scale,
       .tile_counter = args->tile_counter,
       .shape = millrace::Shape(args->shape)},
      static_cast<cudaStream_t>(stream)));
}

int millrace_quantize_qkv_fp8(const millrace_quantize_qkv_fp8_args* args,
                              void* stream) {
  return millrace::CResult(
      millrace::LaunchQuantizeQkvFp8({.q = millrace::Fp8(args->q),
                                      .k = millrace::Fp8(args->k),
                                      .v = args->v,
                                      .q_scale = args->q_scale,
                                      .k_scale = args->k_scale,
                                      .v_scale = args->v_scale,
                                      .q_in = millrace::Bf16(args->q_in),
                                      .k_in = millrace::Bf16(args->k_in),
                                      .v_in = millrace::Bf16(args->v_in),
                                      .rope_table = args->rope_table,
                                      .hadamard = args->hadamard != 0,
                                      .signs = {args->signs[0], args->signs[1]},
                                      .shape = millrace::Shape(args->shape)},
                                     static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
