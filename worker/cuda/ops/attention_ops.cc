// Rotary positions and attention.

#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/attention_fp8_quantize.h"
#include "kernels/attention/attention_plain.h"
#include "kernels/cuda/device.h"
#include "kernels/pointwise/qk_norm_rope_plain.h"
#include "kernels/pointwise/rope_bf16.h"
#include "kernels/pointwise/rope_plain.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"

namespace millrace {
namespace {

int64_t NumTokens(const AttentionAttributes& attributes) {
  return attributes.num_sequences * attributes.sequence_length;
}

// Elements of a token's row of the packed projection.
int64_t RowElements(const AttentionAttributes& attributes) {
  return (attributes.num_heads + 2 * attributes.num_kv_heads) *
         attributes.head_dim;
}

RopeBf16Shape FastRopeShapeOf(const AttentionAttributes& attributes) {
  return {.num_tokens = NumTokens(attributes),
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .sequence_length = attributes.sequence_length,
          .table_length = attributes.sequence_length,
          .rotary_dim = attributes.rotary_dim};
}

// The condition under which rope_bf16.h can read the heads.
bool HasFastRope(const CudaOpContext& context,
                 const AttentionAttributes& attributes) {
  return IsBf16(context) && attributes.head_dim % 16 == 0 &&
         attributes.head_dim <= 512 && attributes.rotary_dim % 16 == 0;
}

// `amax`: of the gradient; may be null.
absl::StatusOr<CudaOp> BindFastRope(const AttentionAttributes& attributes,
                                    void* qkv, const float* table,
                                    float* amax) {
  const RopeBf16Shape shape = FastRopeShapeOf(attributes);
  const int64_t stride = RowElements(attributes);
  if (attributes.inverse) {
    const RopeBackwardBf16Args args = {.d_qkv = qkv,
                                       .d_qkv_token_stride = stride,
                                       .table = table,
                                       .shape = shape,
                                       .amax = amax};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchRopeBackwardBf16(args, stream);
    });
  }
  const RopeForwardBf16Args args = {.out = qkv,
                                    .out_token_stride = stride,
                                    .qkv = qkv,
                                    .qkv_token_stride = stride,
                                    .table = table,
                                    .shape = shape};
  return CudaOp([args](cudaStream_t stream) {
    return LaunchRopeForwardBf16(args, stream);
  });
}

absl::StatusOr<CudaOp> BindRope(const CudaOpContext& context,
                                const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  void* qkv = context.Output<void>(in, 0);
  if (HasFastRope(context, attributes)) {
    return BindFastRope(attributes, qkv, table, AmaxOf(context, in));
  }
  const PlainRopeArgs args = {.qkv = qkv,
                              .table = table,
                              .num_tokens = NumTokens(attributes),
                              .sequence_length = attributes.sequence_length,
                              .num_heads = attributes.num_heads,
                              .num_kv_heads = attributes.num_kv_heads,
                              .head_dim = attributes.head_dim,
                              .inverse = attributes.inverse,
                              .rotary_dim = attributes.rotary_dim};
  return ThenAmax(context, in,
                  [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                    return LaunchPlainRope(args, type, stream);
                  });
}

QkNormRopeShape PlainNormShapeOf(const AttentionAttributes& attributes) {
  return {.num_tokens = NumTokens(attributes),
          .sequence_length = attributes.sequence_length,
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .adds_one = attributes.adds_one};
}

absl::StatusOr<CudaOp> BindQkNormRopeForward(const CudaOpContext& context,
                                             const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  void* qkv = context.Output<void>(in, 0);
  void* raw = context.Output<void>(in, 1);
  float* rstd = context.Output<float>(in, 2);
  const float* q_weight = context.Input<float>(in, 1);
  const float* k_weight = context.Input<float>(in, 2);
  const auto epsilon = static_cast<float>(attributes.norm_epsilon);
  if (HasFastRope(context, attributes)) {
    const int64_t stride = RowElements(attributes);
    const RopeForwardBf16Args args = {.out = qkv,
                                      .out_token_stride = stride,
                                      .qkv = qkv,
                                      .qkv_token_stride = stride,
                                      .table = table,
                                      .q_weight = q_weight,
                                      .k_weight = k_weight,
                                      .rstd = rstd,
                                      .raw = raw,
                                      .epsilon = epsilon,
                                      .fp32_weight = true,
                                      .adds_one = attributes.adds_one,
                                      .shape = FastRopeShapeOf(attributes)};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchRopeForwardBf16(args, stream);
    });
  }
  const PlainQkNormRopeForwardArgs args = {
      .qkv = qkv,
      .raw = raw,
      .rstd = rstd,
      .q_weight = q_weight,
      .k_weight = k_weight,
      .table = table,
      .epsilon = epsilon,
      .shape = PlainNormShapeOf(attributes)};
  return CudaOp([args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainQkNormRopeForward(args, type, stream);
  });
}

absl::StatusOr<CudaOp> BindQkNormRopeBackward(const CudaOpContext& context,
                                              const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  ASSIGN_OR_RETURN(const float* table, context.kernels->RopeTable(attributes));
  void* d_qkv = context.Output<void>(in, 0);
  float* d_q_weight = context.Output<float>(in, 1);
  float* d_k_weight = context.Output<float>(in, 2);
  const void* raw = context.Input<void>(in, 1);
  const float* rstd = context.Input<float>(in, 2);
  const float* q_weight = context.Input<float>(in, 3);
  const float* k_weight = context.Input<float>(in, 4);
  if (HasFastRope(context, attributes)) {
    const RopeBf16Shape shape = FastRopeShapeOf(attributes);
    ASSIGN_OR_RETURN(void* workspace,
                     ScratchOf(context, RopeBackwardBf16WorkspaceBytes(shape)));
    const RopeBackwardBf16Args args = {
        .d_qkv = d_qkv,
        .d_qkv_token_stride = RowElements(attributes),
        .table = table,
        .q_weight = q_weight,
        .k_weight = k_weight,
        .qkv = raw,
        .qkv_token_stride = (attributes.num_heads + attributes.num_kv_heads) *
                            attributes.head_dim,
        .rstd = rstd,
        .d_q_weight = d_q_weight,
        .d_k_weight = d_k_weight,
        .accumulate = attributes.accumulate,
        .fp32_weight = true,
        .adds_one = attributes.adds_one,
        .workspace = workspace,
        .shape = shape};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchRopeBackwardBf16(args, stream);
    });
  }
  const QkNormRopeShape shape = PlainNormShapeOf(attributes);
  ASSIGN_OR_RETURN(
      void* workspace,
      ScratchOf(context, PlainQkNormRopeBackwardWorkspaceBytes(shape)));
  const PlainQkNormRopeBackwardArgs args = {
      .d_qkv = d_qkv,
      .d_q_weight = d_q_weight,
      .d_k_weight = d_k_weight,
      .raw = raw,
      .rstd = rstd,
      .q_weight = q_weight,
      .k_weight = k_weight,
      .table = table,
      .workspace = static_cast<float*>(workspace),
      .shape = shape,
      .accumulate = attributes.accumulate};
  return CudaOp([args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainQkNormRopeBackward(args, type, stream);
  });
}

// Forward and backward must choose alike: LSE of whole sequences is laid out
// sequence by sequence by the fast kernels.
bool HasFastAttention(const CudaOpContext& context,
                      const AttentionAttributes& attributes) {
  const int64_t dim = attributes.head_dim;
  return IsBf16(context) && context.num_documents >= 0 &&
         (dim == 64 || dim == 96 || dim == 128 || dim == 256);
}

absl::StatusOr<AttentionBf16Shape> FastShapeOf(
    const CudaOpContext& context, const Instruction& in,
    const AttentionAttributes& attributes) {
  AttentionBf16Shape shape = {
      .num_sequences = attributes.num_sequences,
      .sequence_length = attributes.sequence_length,
      .num_heads = attributes.num_heads,
      .num_kv_heads = attributes.num_kv_heads,
      .head_dim = attributes.head_dim,
      .causal = true,
      .window = attributes.window,
      .softcap = static_cast<float>(attributes.softcap)};
  if (context.num_documents == 0) return shape;
  const CudaStepInputs& inputs = *context.inputs;
  if (context.num_documents > inputs.max_documents) {
    return absl::InternalError(absl::StrCat("attention of ",
                                            context.num_documents,
                                            " documents, but the inputs "
                                            "of a step hold ",
                                            inputs.max_documents));
  }
  shape.num_sequences = context.num_documents;
  shape.total_tokens = NumTokens(attributes);
  shape.document_offsets =
      inputs.document_offsets + in.microbatch_idx * (inputs.max_documents + 1);
  return shape;
}

AttentionShape PlainShapeOf(const AttentionAttributes& attributes) {
  return {.num_sequences = attributes.num_sequences,
          .sequence_length = attributes.sequence_length,
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .window = attributes.window,
          .softcap = static_cast<float>(attributes.softcap)};
}

// Heads from `first` on of a packed tensor whose rows have `all_heads`.
Bf16Heads HeadsOf(void* packed, const AttentionAttributes& attributes,
                  int64_t all_heads, int64_t first) {
  const int64_t stride = all_heads * attributes.head_dim;
  return {.data = static_cast<uint16_t*>(packed) + first * attributes.head_dim,
          .token_stride = stride,
          .head_stride = attributes.head_dim,
          .sequence_stride = attributes.sequence_length * stride};
}

struct PackedHeads {
  Bf16Heads q, k, v;
};
PackedHeads SplitHeads(void* qkv, const AttentionAttributes& attributes) {
  const int64_t num_heads = attributes.num_heads;
  const int64_t num_kv_heads = attributes.num_kv_heads;
  const int64_t all = num_heads + 2 * num_kv_heads;
  return {.q = HeadsOf(qkv, attributes, all, 0),
          .k = HeadsOf(qkv, attributes, all, num_heads),
          .v = HeadsOf(qkv, attributes, all, num_heads + num_kv_heads)};
}

absl::StatusOr<CudaOp> BindAttentionForward(const CudaOpContext& context,
                                            const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  void* qkv = context.Input<void>(in, 0);
  void* o = context.Output<void>(in, 0);
  float* lse = context.Output<float>(in, 1);
  if (HasFastAttention(context, attributes)) {
    ASSIGN_OR_RETURN(const AttentionBf16Shape shape,
                     FastShapeOf(context, in, attributes));
    const PackedHeads heads = SplitHeads(qkv, attributes);
    const AttentionForwardBf16Args args = {
        .o = HeadsOf(o, attributes, attributes.num_heads, 0),
        .lse = lse,
        .q = heads.q,
        .k = heads.k,
        .v = heads.v,
        .tile_counter = context.kernels->attention_tile_counter(),
        .shape = shape,
        .amax = AmaxOf(context, in)};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchAttentionForwardBf16(args, stream);
    });
  }
  const PlainAttentionForwardArgs args = {
      .o = o,
      .lse = lse,
      .qkv = qkv,
      .document_starts = context.Input<int32_t>(in, 1),
      .shape = PlainShapeOf(attributes)};
  return ThenAmax(context, in,
                  [args, type = ElementTypeOf(context)](cudaStream_t stream) {
                    return LaunchPlainAttentionForward(args, type, stream);
                  });
}

static_assert(kFp8QueryBlock == kFloat8QueryBlock &&
              kFp8KeyBlock == kFloat8KeyBlock);

absl::Status CheckAttendsInFloat8(const CudaOpContext& context) {
  if (!IsBf16(context)) {
    return absl::InvalidArgumentError(
        "attention in 8 bits reads copies of bf16 tensors on GPUs, and the "
        "layout stores fp32");
  }
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (limits.IsHopper()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "training.attention fp8 runs on Hopper (compute capability 9.0), and the "
      "device has ",
      limits.compute_capability / 10, ".", limits.compute_capability % 10,
      "; set training.attention to bf16"));
}

AttentionFp8Shape Float8ShapeOf(const AttentionAttributes& attributes) {
  return {.num_sequences = attributes.num_sequences,
          .sequence_length = attributes.sequence_length,
          .num_heads = attributes.num_heads,
          .num_kv_heads = attributes.num_kv_heads,
          .head_dim = attributes.head_dim,
          .causal = true};
}

// A tensor of `num_heads` heads in e4m3.
Fp8Heads Float8HeadsOf(void* data, const AttentionAttributes& attributes,
                       int64_t num_heads) {
  const int64_t stride = num_heads * attributes.head_dim;
  return {.data = data,
          .token_stride = stride,
          .head_stride = attributes.head_dim,
          .sequence_stride = attributes.sequence_length * stride};
}

absl::StatusOr<CudaOp> BindQuantizeAttention(const CudaOpContext& context,
                                             const Instruction& in) {
  RETURN_IF_ERROR(CheckAttendsInFloat8(context));
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  const PackedHeads heads = SplitHeads(context.Input<void>(in, 0), attributes);
  const QuantizeQkvFp8Args args = {
      .q = Float8HeadsOf(context.Output<void>(in, 0), attributes,
                         attributes.num_heads),
      .k = Float8HeadsOf(context.Output<void>(in, 1), attributes,
                         attributes.num_kv_heads),
      .v = context.Output<void>(in, 2),
      .q_scale = context.Output<float>(in, 3),
      .k_scale = context.Output<float>(in, 4),
      .v_scale = context.Output<float>(in, 5),
      .q_in = heads.q,
      .k_in = heads.k,
      .v_in = heads.v,
      .rope_table = nullptr,
      .hadamard = true,
      .signs = {kFp8Signs[0], kFp8Signs[1]},
      .shape = Float8ShapeOf(attributes)};
  return CudaOp([args](cudaStream_t stream) {
    return LaunchQuantizeQkvFp8(args, stream);
  });
}

absl::StatusOr<CudaOp> BindFloat8AttentionForward(const CudaOpContext& context,
                                                  const Instruction& in) {
  RETURN_IF_ERROR(CheckAttendsInFloat8(context));
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  AttentionFp8Shape shape = Float8ShapeOf(attributes);
  // The backward pass expects its LSE where it lies then.
  if (!KeepsLseBySequence(context, attributes)) {
    shape.document_starts = context.Input<int32_t>(in, 6);
  }
  const AttentionForwardFp8Args args = {
      .o = HeadsOf(context.Output<void>(in, 0), attributes,
                   attributes.num_heads, 0),
      .lse = context.Output<float>(in, 1),
      .q = Float8HeadsOf(context.Input<void>(in, 0), attributes,
                         attributes.num_heads),
      .k = Float8HeadsOf(context.Input<void>(in, 1), attributes,
                         attributes.num_kv_heads),
      .v = context.Input<void>(in, 2),
      .q_scale = context.Input<float>(in, 3),
      .k_scale = context.Input<float>(in, 4),
      .v_scale = context.Input<float>(in, 5),
      .tile_counter = context.kernels->attention_tile_counter(),
      .shape = shape};
  return CudaOp([args](cudaStream_t stream) {
    return LaunchAttentionForwardFp8(args, stream);
  });
}

absl::StatusOr<CudaOp> BindAttentionBackward(const CudaOpContext& context,
                                             const Instruction& in) {
  const auto& attributes = std::get<AttentionAttributes>(in.attributes);
  void* d_qkv = context.Output<void>(in, 0);
  void* qkv = context.Input<void>(in, 0);
  void* o = context.Input<void>(in, 2);
  const float* lse = context.Input<float>(in, 3);
  void* d_o = context.Input<void>(in, 4);
  if (HasFastAttention(context, attributes)) {
    ASSIGN_OR_RETURN(const AttentionBf16Shape shape,
                     FastShapeOf(context, in, attributes));
    ASSIGN_OR_RETURN(void* workspace,
                     WorkspaceOf(context, in, 1,
                                 AttentionBackwardBf16WorkspaceBytes(shape)));
    const PackedHeads heads = SplitHeads(qkv, attributes);
    const PackedHeads d_heads = SplitHeads(d_qkv, attributes);
    const AttentionBackwardBf16Args args = {
        .d_q = d_heads.q,
        .d_k = d_heads.k,
        .d_v = d_heads.v,
        .q = heads.q,
        .k = heads.k,
        .v = heads.v,
        .o = HeadsOf(o, attributes, attributes.num_heads, 0),
        .d_o = HeadsOf(d_o, attributes, attributes.num_heads, 0),
        .lse = lse,
        .workspace = workspace,
        .shape = shape,
        .deterministic = context.deterministic};
    return CudaOp([args](cudaStream_t stream) {
      return LaunchAttentionBackwardBf16(args, stream);
    });
  }
  const PlainAttentionBackwardArgs args = {
      .d_qkv = d_qkv,
      .delta = context.Output<float>(in, 1),
      .qkv = qkv,
      .document_starts = context.Input<int32_t>(in, 1),
      .o = o,
      .lse = lse,
      .d_o = d_o,
      .shape = PlainShapeOf(attributes)};
  return CudaOp([args, type = ElementTypeOf(context)](cudaStream_t stream) {
    return LaunchPlainAttentionBackward(args, type, stream);
  });
}

}  // namespace

bool KeepsLseBySequence(const CudaOpContext& context,
                        const AttentionAttributes& attributes) {
  return HasFastAttention(context, attributes) && context.num_documents == 0;
}

void RegisterCudaAttentionOps(CudaBinders& binders) {
  binders.Bind(OpKind::kRope, BindRope);
  binders.Bind(OpKind::kQkNormRopeForward, BindQkNormRopeForward);
  binders.Bind(OpKind::kQkNormRopeBackward, BindQkNormRopeBackward);
  binders.Bind(OpKind::kQuantizeAttention, BindQuantizeAttention);
  binders.Bind(OpKind::kFloat8AttentionForward, BindFloat8AttentionForward);
  binders.Bind(OpKind::kAttentionForward, BindAttentionForward);
  binders.Bind(OpKind::kAttentionBackward, BindAttentionBackward);
}

}  // namespace millrace
