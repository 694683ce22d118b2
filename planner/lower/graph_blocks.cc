#include "planner/lower/graph_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

// How a block and its products are called, and the parameters that they read.
struct BlockNames {
  const char* block;
  const char* inner;
  const char* outer;
  const char* inner_parameter;
  const char* outer_parameter;
};
constexpr BlockNames kBlockNames[] = {
    {"attention", "qkv", "output", "self_attn.q_proj", "self_attn.o_proj"},
    {"feed_forward", "gate_up", "down", "mlp.gate_proj", "mlp.down_proj"}};

const BlockNames& NamesOf(LayerBlock block) {
  return kBlockNames[static_cast<size_t>(block)];
}

const char* ActivationName(OpKind kind) {
  return kind == OpKind::kGeluForward || kind == OpKind::kGeluBackward ? "gelu"
         : kind == OpKind::kGegluForward || kind == OpKind::kGegluBackward
             ? "geglu"
             : "swiglu";
}

const char* PassName(Phase phase) {
  if (phase == Phase::kForward) return "";
  return phase == Phase::kRecompute ? "recompute/" : "backward/";
}

}  // namespace

std::string LayerEmitter::NameOf(const LayerOp& op,
                                 absl::string_view name) const {
  return absl::StrCat("layers.", layer_, "/", NamesOf(op.block).block, "/",
                      PassName(op.phase), name);
}

void LayerEmitter::AddWeights(GraphBuilder& builder, LayerBlock block) {
  const StageShapes& s = builder.shapes();
  const BlockNames& names = NamesOf(block);
  const bool is_attention = block == LayerBlock::kAttention;
  auto add = [&](const char* name, const char* parameter, int64_t rows,
                 int64_t cols, const char* kind = "weight") {
    return builder.AddWeight(
        absl::StrCat("layers.", layer_, "/", names.block, "/", name),
        absl::StrCat("model.layers.", layer_, ".", parameter, ".", kind), rows,
        cols);
  };
  Block& tensors = blocks_[static_cast<size_t>(block)];
  const ModelSpec& model = builder.model();
  const auto add_norm = [&](const char* name, const char* parameter) {
    return builder.AddNormWeights(
        absl::StrCat("layers.", layer_, "/", names.block, "/", name),
        absl::StrCat("model.layers.", layer_, ".", parameter));
  };
  const BlockNorms norms = NormsOfBlock(model, is_attention);
  tensors.norm = add_norm("norm", norms.input);
  if (model.output_norms) {
    tensors.output_norm = add_norm("output_norm", norms.output);
  }
  const int64_t num_inner = model.num_inner_projections();
  const char* inner =
      is_attention || num_inner == 2 ? names.inner_parameter : "mlp.up_proj";
  const int64_t inner_rows =
      is_attention ? s.qkv_width() : num_inner * s.ffn_hidden;
  tensors.inner_weight = add(names.inner, inner, inner_rows, s.hidden);
  tensors.outer_weight = add(names.outer, names.outer_parameter, s.hidden,
                             is_attention ? s.query_width() : s.ffn_hidden);
  if (is_attention ? model.qkv_bias : model.linear_bias) {
    tensors.inner_bias = add(is_attention ? "qkv_bias" : "gate_up_bias", inner,
                             1, inner_rows, "bias");
  }
  if (model.linear_bias) {
    tensors.outer_bias = add(is_attention ? "output_bias" : "down_bias",
                             names.outer_parameter, 1, s.hidden, "bias");
  }
  if (is_attention && model.qk_norm) {
    tensors.query_norm = add("query_norm", "self_attn.q_norm", 1, s.head_dim);
    tensors.key_norm = add("key_norm", "self_attn.k_norm", 1, s.head_dim);
  }
}

void LayerEmitter::EmitForward(GraphBuilder& builder, ResidualStream* stream) {
  stream_ = *stream;
  for (const LayerOp& op : graph_->ops) {
    if (op.phase != Phase::kForward) break;
    if (op.step == LayerStep::kNorm) AddWeights(builder, op.block);
    EmitForwardOp(builder, op);
  }
  *stream = stream_;
}

void LayerEmitter::EmitForwardOp(GraphBuilder& builder, const LayerOp& op) {
  Block& block = BlockOf(op);
  const BlockNames& names = NamesOf(op.block);
  switch (op.step) {
    case LayerStep::kNorm: {
      const bool adds = AddsToStream(op.kind);
      // The sum of the stream was kept where it is not added up again.
      const bool is_kept = op.phase == Phase::kRecompute && !adds;
      block.norm =
          builder.EmitNorm(NameOf(op, "norm"), op,
                           is_kept ? block.norm.residual : stream_.residual,
                           adds ? stream_.delta : -1, block.norm);
      block.input = block.norm.output;
      return;
    }
    case LayerStep::kGather:
      block.input = builder.EmitTensorGather(NameOf(op, "gather_input"), op,
                                             block.norm.output);
      return;
    case LayerStep::kInner:
      if (MakesFloat8Copies(op.kind)) {
        builder.EmitQuantize(NameOf(op, "quantize_input"), op, block.input,
                             &block.input_copies);
      } else if (IsFloat8Product(op.kind)) {
        block.inner = builder.EmitFloat8Linear(
            NameOf(op, names.inner), op, block.input_copies, block.inner_weight,
            block.inner_bias);
      } else {
        block.inner =
            builder.EmitLinear(NameOf(op, names.inner), op, block.input,
                               block.inner_weight, block.inner_bias);
      }
      return;
    case LayerStep::kRope:
      if (op.kind == OpKind::kRope) {
        builder.Emit(NameOf(op, "rope"), op, {block.inner}, {block.inner});
        return;
      }
      block.raw = builder.AddOutput(NameOf(op, "raw"), op, 1);
      block.rstd = builder.AddOutput(NameOf(op, "qk_rstd"), op, 2);
      builder.Emit(
          NameOf(op, "rope"), op,
          {block.inner, builder.ParameterOf(block.query_norm, op.phase),
           builder.ParameterOf(block.key_norm, op.phase)},
          {block.inner, block.raw, block.rstd});
      return;
    case LayerStep::kAttend:
      EmitAttendForward(builder, op);
      return;
    case LayerStep::kActivation:
      block.outer_input = builder.AddOutput(NameOf(op, "activation"), op, 0);
      builder.Emit(NameOf(op, ActivationName(op.kind)), op, {block.inner},
                   {block.outer_input});
      return;
    case LayerStep::kOuter:
      if (MakesFloat8Copies(op.kind)) {
        builder.EmitQuantize(NameOf(op, "quantize_outer_input"), op,
                             block.outer_input, &block.outer_input_copies);
        return;
      }
      stream_ = {
          .residual = block.norm.residual,
          .delta =
              IsFloat8Product(op.kind)
                  ? builder.EmitFloat8Linear(
                        NameOf(op, names.outer), op, block.outer_input_copies,
                        block.outer_weight, block.outer_bias)
                  : builder.EmitLinear(NameOf(op, names.outer), op,
                                       block.outer_input, block.outer_weight,
                                       block.outer_bias)};
      return;
    case LayerStep::kReduce:
      stream_.delta = builder.EmitTensorReduceScatter(
          NameOf(op, "reduce_output"), op, stream_.delta);
      return;
    case LayerStep::kOutputNorm:
      block.output_norm = builder.EmitNorm(
          NameOf(op, "output_norm"), op, stream_.delta, -1, block.output_norm);
      stream_.delta = block.output_norm.output;
      return;
    case LayerStep::kOther:
      break;
  }
  CHECK(false) << "no worker runs " << OpKindName(op.kind);
}

void LayerEmitter::EmitAttendForward(GraphBuilder& builder, const LayerOp& op) {
  Block& block = BlockOf(op);
  if (op.kind == OpKind::kQuantizeAttention) {
    constexpr const char* kNames[] = {"q8",      "k8",      "v8",
                                      "q_units", "k_units", "v_units"};
    block.attention_copies.clear();
    for (size_t i = 0; i < std::size(kNames); ++i) {
      block.attention_copies.push_back(
          builder.AddOutput(NameOf(op, kNames[i]), op, i));
    }
    builder.Emit(NameOf(op, "quantize"), op, {block.inner},
                 block.attention_copies);
    return;
  }
  std::vector<TensorId> inputs = {block.inner};
  if (op.kind == OpKind::kFloat8AttentionForward) {
    inputs = block.attention_copies;
  }
  inputs.push_back(document_starts_);
  block.outer_input = builder.AddOutput(NameOf(op, "attended"), op, 0);
  block.lse = builder.AddOutput(NameOf(op, "lse"), op, 1);
  builder.Emit(NameOf(op, "attend"), op, std::move(inputs),
               {block.outer_input, block.lse});
}

TensorId LayerEmitter::EmitBackward(GraphBuilder& builder, TensorId d_stream) {
  const auto is_recompute = [](const LayerOp& op) {
    return op.phase == Phase::kRecompute;
  };
  const auto end = graph_->ops.end();
  auto op = std::find_if(graph_->ops.begin(), end, [](const LayerOp& op) {
    return op.phase != Phase::kForward;
  });
  while (op != end) {
    const auto backward = std::find_if_not(op, end, is_recompute);
    // Weight gradients that were to hide communication would only keep what
    // they read alive: products that are recomputed hide it as well.
    const bool has_products =
        std::any_of(op, backward, [](const LayerOp& repeated) {
          return Describe(repeated.kind).fills_device;
        });
    if (has_products) builder.EmitDeferred();
    for (; op != backward; ++op) EmitForwardOp(builder, *op);
    const auto next = std::find_if(backward, end, [&](const LayerOp& other) {
      return is_recompute(other) || other.block != backward->block;
    });
    d_stream = EmitBlockBackward(builder, {backward, next}, d_stream);
    op = next;
  }
  return d_stream;
}

TensorId LayerEmitter::EmitBlockBackward(GraphBuilder& builder,
                                         std::span<const LayerOp> ops,
                                         TensorId d_stream) {
  Block& block = BlockOf(ops.front());
  const BlockNames& names = NamesOf(ops.front().block);
  // The gradient of this rank's part of the block's output.
  TensorId d_part = d_stream;
  if (ops.front().step == LayerStep::kOutputNorm) {
    d_part =
        builder.EmitNormBackward(NameOf(ops.front(), "output_norm"),
                                 ops.front(), block.output_norm, d_stream, -1);
  }
  TensorId d_output = d_part;
  TensorId input = block.norm.output;
  // The gathers of this block run under the weight gradients of the last one.
  for (const LayerOp& op : ops) {
    if (op.step == LayerStep::kReduce) {
      d_output = builder.EmitTensorGather(NameOf(op, "gather_output_gradient"),
                                          op, d_part);
    } else if (op.step == LayerStep::kGather &&
               op.phase == Phase::kWeightGradient) {
      input = builder.EmitTensorGather(NameOf(op, "gather_input"), op, input);
    }
  }
  builder.EmitDeferred();

  TensorId d_inner = -1;
  TensorId d_input = -1;
  Float8Copies d_output_copies, d_inner_copies;
  GraphOp inner_weight_gradient;
  for (const LayerOp& op : ops) {
    const bool is_weight_gradient = op.phase == Phase::kWeightGradient;
    switch (op.step) {
      case LayerStep::kOuter:
        if (op.kind == OpKind::kBiasGradient) {
          // This sums the rank's own tokens; reducing over ranks adds the rest.
          builder.Emit(NameOf(op, absl::StrCat(names.outer, "_bias")), op,
                       {d_part}, {block.outer_bias.gradient});
        } else if (MakesFloat8Copies(op.kind)) {
          builder.EmitQuantize(NameOf(op, "quantize_output_gradient"), op,
                               d_output, &d_output_copies);
        } else if (IsFloat8Product(op.kind) && is_weight_gradient) {
          builder.Defer(builder.Float8WeightGradient(
              NameOf(op, absl::StrCat(names.outer, "_weight")), op,
              d_output_copies, block.outer_input_copies, block.outer_weight));
        } else if (IsFloat8Product(op.kind)) {
          d_inner = builder.EmitFloat8InputGradient(
              NameOf(op, names.outer), op, d_output_copies, block.outer_weight);
        } else if (is_weight_gradient) {
          builder.Defer(builder.WeightGradient(
              NameOf(op, absl::StrCat(names.outer, "_weight")), op, d_output,
              block.outer_input, block.outer_weight));
        } else {
          d_inner = builder.EmitInputGradient(NameOf(op, names.outer), op,
                                              d_output, block.outer_weight);
        }
        break;
      case LayerStep::kAttend:
      case LayerStep::kActivation:
        d_inner = EmitMiddleBackward(builder, op, d_inner);
        break;
      case LayerStep::kRope:
        EmitRopeBackward(builder, op, d_inner);
        break;
      case LayerStep::kInner:
        if (op.kind == OpKind::kBiasGradient) {
          builder.Emit(NameOf(op, absl::StrCat(names.inner, "_bias")), op,
                       {d_inner}, {block.inner_bias.gradient});
        } else if (MakesFloat8Copies(op.kind)) {
          builder.EmitQuantize(NameOf(op, "quantize_inner_gradient"), op,
                               d_inner, &d_inner_copies);
        } else if (IsFloat8Product(op.kind) && is_weight_gradient) {
          inner_weight_gradient = builder.Float8WeightGradient(
              NameOf(op, absl::StrCat(names.inner, "_weight")), op,
              d_inner_copies, block.input_copies, block.inner_weight);
        } else if (IsFloat8Product(op.kind)) {
          d_input = builder.EmitFloat8InputGradient(
              NameOf(op, names.inner), op, d_inner_copies, block.inner_weight);
        } else if (is_weight_gradient) {
          inner_weight_gradient = builder.WeightGradient(
              NameOf(op, absl::StrCat(names.inner, "_weight")), op, d_inner,
              input, block.inner_weight);
        } else {
          d_input = builder.EmitInputGradient(NameOf(op, names.inner), op,
                                              d_inner, block.inner_weight);
        }
        break;
      case LayerStep::kGather:
        if (is_weight_gradient) break;
        d_input = builder.EmitTensorReduceScatter(
            NameOf(op, "reduce_input_gradient"), op, d_input);
        break;
      case LayerStep::kNorm:
        // Where the input gradient still has to be summed over tensor ranks,
        // the weight gradient runs under that sum. Otherwise others wait for
        // the gradient of the stream, and the weight gradient comes after it.
        if (builder.layout().tensor > 1) {
          builder.Emit(std::move(inner_weight_gradient));
        } else {
          builder.Defer(std::move(inner_weight_gradient));
        }
        return builder.EmitNormBackward(NameOf(op, "norm"), op, block.norm,
                                        d_input, d_stream);
      case LayerStep::kReduce:
      case LayerStep::kOutputNorm:
        break;
      case LayerStep::kOther:
        CHECK(false) << "no worker runs " << OpKindName(op.kind);
    }
  }
  CHECK(false) << "a block without a norm";
  return -1;
}

void LayerEmitter::EmitRopeBackward(GraphBuilder& builder, const LayerOp& op,
                                    TensorId d_qkv) {
  if (op.kind == OpKind::kRope) {
    builder.Emit(NameOf(op, "rope"), op, {d_qkv}, {d_qkv});
    return;
  }
  const Block& block = BlockOf(op);
  builder.Emit(
      NameOf(op, "rope"), op,
      {d_qkv, block.raw, block.rstd, block.query_norm.backward_parameter,
       block.key_norm.backward_parameter},
      {d_qkv, block.query_norm.gradient, block.key_norm.gradient});
}

TensorId LayerEmitter::EmitMiddleBackward(GraphBuilder& builder,
                                          const LayerOp& op,
                                          TensorId d_output) {
  const Block& block = BlockOf(op);
  if (op.step == LayerStep::kActivation) {
    const TensorId d_gate_up =
        builder.AddOutput(NameOf(op, "d_gate_up"), op, 0);
    builder.Emit(NameOf(op, ActivationName(op.kind)), op,
                 {block.inner, d_output}, {d_gate_up});
    return d_gate_up;
  }
  const TensorId d_qkv = builder.AddOutput(NameOf(op, "d_qkv"), op, 0);
  const TensorId workspace = builder.AddOutput(NameOf(op, "delta"), op, 1);
  builder.Emit(
      NameOf(op, "attend"), op,
      {block.inner, document_starts_, block.outer_input, block.lse, d_output},
      {d_qkv, workspace});
  return d_qkv;
}

}  // namespace millrace
