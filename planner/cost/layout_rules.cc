#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/layer_work.h"

namespace millrace {
namespace {

absl::Status ValidateContext(const ModelSpec& model, const Layout& layout) {
  const int64_t context = layout.context;
  if (context > 1 && model.attention_format == AttentionFormat::kFloat8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.context is ", context,
        ", and training.attention is fp8, which has no kernel for a part of "
        "the queries; set layout.context to 1 or training.attention to bf16"));
  }
  // Causal work is balanced by giving each rank the n-th part and the n-th last
  // of 2 x context ones (Llama 3, 2024).
  if (context > 1 && model.sequence_length % (2 * context) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.sequence_length (", model.sequence_length,
        ") cannot be cut into 2 x ", context,
        " equal parts, two for each context rank; set layout.context to ",
        model.sequence_length % 2 == 0
            ? LargestDivisorUpTo(model.sequence_length / 2, context)
            : 1,
        " or model.sequence_length to ",
        (model.sequence_length + 2 * context - 1) / (2 * context) * 2 *
            context));
  }
  const int64_t tokens =
      layout.micro_batch * model.sequence_length / layout.context;
  if (tokens % layout.tensor != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch has ", tokens, " tokens on each of ", context,
        " context ranks, which ", layout.tensor,
        " tensor ranks cannot share equally; set layout.tensor to ",
        LargestDivisorUpTo(tokens, layout.tensor),
        " or layout.micro_batch to a multiple of ", layout.tensor));
  }
  return absl::OkStatus();
}

absl::Status ValidateExpertTensor(const ModelSpec& model,
                                  const Layout& layout) {
  if (layout.expert_tensor != 1 && layout.expert_tensor != layout.tensor) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.expert_tensor is ", layout.expert_tensor,
        ", but an expert is whole on a rank or cut as the layer is; set it to "
        "1 or to layout.tensor, which is ",
        layout.tensor));
  }
  const struct {
    const char* what;
    int64_t value;
    int32_t shards;
    const char* axis;
  } widths[] = {{"model.moe.expert_hidden", model.moe.expert_hidden,
                 layout.expert_tensor, "expert_tensor"},
                {"the inner width of model.moe.num_shared_experts",
                 model.moe.num_shared_experts * model.moe.expert_hidden,
                 layout.tensor, "tensor"}};
  for (const auto& [what, value, shards, axis] : widths) {
    if (value % shards == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " (", value, ") cannot be cut into ", shards,
                     " equal shards; set layout.", axis, " to ",
                     LargestDivisorUpTo(value, shards)));
  }
  return absl::OkStatus();
}

absl::Status ValidateExpert(const ModelSpec& model, const Layout& layout) {
  if (model.moe.num_experts == 0) {
    if (layout.expert == 1 && layout.expert_tensor == 1) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.expert is ", layout.expert, " and layout.expert_tensor ",
        layout.expert_tensor,
        ", but the model has no experts (model.moe.num_experts); set both to "
        "1"));
  }
  RETURN_IF_ERROR(ValidateExpertTensor(model, layout));
  if (model.moe.num_experts % layout.expert != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.moe.num_experts (", model.moe.num_experts,
                     ") cannot be spread equally over ", layout.expert,
                     " ranks; set layout.expert to ",
                     LargestDivisorUpTo(model.moe.num_experts, layout.expert)));
  }
  const int64_t ranks = int64_t{layout.data} * layout.context * layout.tensor /
                        layout.expert_tensor;
  if (ranks % layout.expert != 0) {
    int64_t size = LargestDivisorUpTo(ranks, layout.expert);
    while (model.moe.num_experts % size != 0) {
      size = LargestDivisorUpTo(ranks, size - 1);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.expert is ", layout.expert,
        ", but layout.data x layout.context",
        layout.expert_tensor == 1 ? " x layout.tensor" : "", " is ", ranks,
        " and experts are spread over these; set layout.expert to ", size,
        " or make them a multiple of ", layout.expert));
  }
  return absl::OkStatus();
}

absl::Status ValidateInterleave(const ModelSpec& model, const Layout& layout) {
  const bool is_interleaved = layout.schedule == Schedule::kInterleaved;
  if (is_interleaved != (layout.interleave > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.interleave is ", layout.interleave, " and layout.schedule ",
        ScheduleName(layout.schedule),
        is_interleaved ? "; set interleave to 2 or more, or schedule to 1f1b"
                       : "; set schedule to interleaved, or interleave to 1"));
  }
  if (is_interleaved && layout.pipeline == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.interleave is ", layout.interleave,
        " and layout.schedule interleaved, but layout.pipeline is 1 and one "
        "stage has no bubble to fill; set layout.interleave to 1 and "
        "layout.schedule to auto"));
  }
  const int64_t chunks = int64_t{layout.pipeline} * layout.interleave;
  if (chunks > model.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.pipeline x layout.interleave is ", chunks,
        ", but the model has ", model.num_layers,
        " layers and each chunk needs one; set layout.interleave to ",
        std::max<int64_t>(1, model.num_layers / layout.pipeline), " or less"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePlannedLayout(const ModelSpec& model, const Layout& layout,
                                   int64_t global_batch) {
  RETURN_IF_ERROR(ValidateLayout(model, layout, global_batch));
  RETURN_IF_ERROR(ValidateContext(model, layout));
  RETURN_IF_ERROR(ValidateExpert(model, layout));
  if (layout.data_groups > 1 && model.moe.num_experts > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.data_groups is ", layout.data_groups,
        ", but the model has experts (model.moe.num_experts), which have "
        "replicas of their own; set layout.data_groups to 1"));
  }
  return ValidateInterleave(model, layout);
}

}  // namespace millrace
