// Attention in 8 bits. A CPU rounds query, key and value to the numbers that a
// GPU has, and the same exponentials
// (kernels/attention/attention_fp8_host.h).

#include <algorithm>
#include <variant>

#include "kernels/attention/attention_fp8_host.h"
#include "kernels/attention/attention_fp8_quantize.h"
#include "worker/cpu/ops.h"

namespace millrace {
namespace {

static_assert(kFp8QueryBlock == kFloat8QueryBlock &&
              kFp8KeyBlock == kFloat8KeyBlock);

AttentionFp8Shape ShapeOf(const Instruction& in) {
  const auto& a = std::get<AttentionAttributes>(in.attributes);
  return {.num_sequences = a.num_sequences,
          .sequence_length = a.sequence_length,
          .num_heads = a.num_heads,
          .num_kv_heads = a.num_kv_heads,
          .head_dim = a.head_dim,
          .causal = true};
}

BoundOp BindQuantizeAttention(const OpContext& context, const Instruction& in) {
  QuantizeQkvArgs args = {.q = context.Output<uint8_t>(in, 0),
                          .k = context.Output<uint8_t>(in, 1),
                          .v = context.Output<uint8_t>(in, 2),
                          .q_scale = context.Output<float>(in, 3),
                          .k_scale = context.Output<float>(in, 4),
                          .v_scale = context.Output<float>(in, 5),
                          .qkv = context.Input<float>(in, 0),
                          .signs = {},
                          .shape = ShapeOf(in)};
  std::copy_n(kFp8Signs, 2, args.signs);
  return [args, num_threads = context.kernels->num_threads()] {
    return QuantizeQkv(args, num_threads);
  };
}

BoundOp BindFloat8AttentionForward(const OpContext& context,
                                   const Instruction& in) {
  const AttentionForwardFp8HostArgs args = {
      .o = context.Output<float>(in, 0),
      .lse = context.Output<float>(in, 1),
      .q = context.Input<uint8_t>(in, 0),
      .k = context.Input<uint8_t>(in, 1),
      .v = context.Input<uint8_t>(in, 2),
      .q_scale = context.Input<float>(in, 3),
      .k_scale = context.Input<float>(in, 4),
      .v_scale = context.Input<float>(in, 5),
      .document_starts = context.Input<int32_t>(in, 6),
      .shape = ShapeOf(in)};
  return [args, num_threads = context.kernels->num_threads()] {
    return AttentionForwardFp8(args, num_threads);
  };
}

}  // namespace

void RegisterFloat8AttentionOps(CpuBinders& binders) {
  binders.Bind(OpKind::kQuantizeAttention, BindQuantizeAttention);
  binders.Bind(OpKind::kFloat8AttentionForward, BindFloat8AttentionForward);
}

}  // namespace millrace
