// The rules for the layouts of layout.h.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/layout/layout.h"

namespace millrace {
namespace {

absl::Status RequireAtLeastOne(absl::string_view axis, int32_t size) {
  if (size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layout.", axis, " is ", size, "; it must be at least 1"));
}

absl::Status RequireDivisibleByTensor(absl::string_view what, int64_t value,
                                      int32_t tensor) {
  if (value % tensor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " (", value, ") cannot be cut into ", tensor,
                   " equal tensor shards; set layout.tensor to ",
                   LargestDivisorUpTo(value, tensor), " or ", what, " to ",
                   (value + tensor - 1) / tensor * tensor));
}

absl::Status ValidateTensor(const ModelSpec& model, const Layout& layout) {
  const struct {
    absl::string_view what;
    int64_t value;
  } divisible[] = {
      {"model.heads", model.num_heads},
      {"model.kv_heads", model.num_kv_heads},
      {"model.ffn_hidden", model.ffn_hidden},
      {"model.vocab_size", model.vocab_size},
      {"model.learned_positions", model.learned_positions},
  };
  for (const auto& [what, value] : divisible) {
    absl::Status status = RequireDivisibleByTensor(what, value, layout.tensor);
    if (!status.ok()) return status;
  }
  const int64_t num_tokens = layout.micro_batch * model.sequence_length;
  if (num_tokens % layout.tensor != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of ", layout.micro_batch, " sequences of ",
        model.sequence_length, " tokens cannot be cut into ", layout.tensor,
        " equal parts for sequence parallelism; set layout.tensor to ",
        LargestDivisorUpTo(num_tokens, layout.tensor),
        " or layout.micro_batch to ", layout.tensor));
  }
  return absl::OkStatus();
}

// Products of 8-bit copies read rows of whole 16 bytes, or of whole blocks that
// share a scale. Every dim of a layer's products is the length of a row in one
// of them.
absl::Status ValidateFloat8(const ModelSpec& model, const Layout& layout) {
  constexpr int64_t kAlignment = 16;
  const bool has_blocks = layout.gemm_format == GemmFormat::kFloat8Blocks;
  const int64_t multiple = has_blocks ? kFloat8Block : kAlignment;
  const int64_t tensor = layout.tensor;
  const int64_t heads = model.num_heads / tensor;
  const int64_t kv_heads = model.num_kv_heads / tensor;
  const struct {
    absl::string_view what;
    int64_t value;
  } dims[] = {
      {"model.hidden", model.hidden},
      {"model.heads x model.head_dim on a tensor rank", heads * model.head_dim},
      {"(model.heads + 2 x model.kv_heads) x model.head_dim on a tensor rank",
       (heads + 2 * kv_heads) * model.head_dim},
      {"model.ffn_hidden on a tensor rank", model.ffn_hidden / tensor},
      {"model.sequence_length x layout.micro_batch",
       model.sequence_length * layout.micro_batch},
  };
  for (const auto& [what, value] : dims) {
    if (value % multiple == 0) continue;
    const int64_t below = value / multiple * multiple;
    return absl::InvalidArgumentError(
        absl::StrCat("training.precision ", PrecisionName(layout), " needs ",
                     what, " to be a multiple of ", multiple, ", and it is ",
                     value, "; the nearest that work are ",
                     below > 0 ? absl::StrCat(below, " and ") : "",
                     below + multiple, ", or set training.precision to ",
                     has_blocks ? "fp8 or " : "", "bf16"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDataGroups(const Layout& layout) {
  const int32_t groups = layout.data_groups;
  if (groups == 1) return absl::OkStatus();
  if (layout.data % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.data (", layout.data, ") cannot be cut into ",
                     groups, " equal groups; set layout.data_groups to ",
                     LargestDivisorUpTo(layout.data, groups)));
  }
  if (layout.data == groups) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.data_groups is ", groups, " and layout.data ", layout.data,
        ", so that each group is one rank, which shares nothing; set "
        "layout.data_groups to ",
        LargestDivisorUpTo(layout.data, groups - 1)));
  }
  return absl::OkStatus();
}

// "layout.zero is 2, whose replicas ...": why data replicas meet in every
// micro-batch, or empty.
std::string MeetingInMicrobatches(const Layout& layout) {
  if (layout.shards_gradients()) {
    return absl::StrCat("layout.zero is ", layout.zero,
                        ", with which replicas meet in every micro-batch");
  }
  if (layout.expert > 1) {
    return absl::StrCat(
        "layout.expert is ", layout.expert,
        ", so that replicas share experts in every micro-batch");
  }
  if (layout.pipeline > 1 && layout.copy_engines.transfers) {
    return "copy engines transfer between stages, which takes one order of all "
           "replicas' instructions";
  }
  return "";
}

absl::Status ValidateUneven(const Layout& layout) {
  const int32_t extra = layout.extra_microbatches;
  if (extra < 0 || extra >= layout.data) {
    return absl::InvalidArgumentError(absl::StrCat(
        extra, " of ", layout.data,
        " data replicas run one micro-batch more; it must be 0 to ",
        layout.data - 1));
  }
  if (!layout.is_uneven()) return absl::OkStatus();
  const std::string meeting = MeetingInMicrobatches(layout);
  if (meeting.empty()) return absl::OkStatus();
  const int32_t microbatches = layout.first_microbatch_of(layout.data);
  return absl::InvalidArgumentError(absl::StrCat(
      microbatches, " micro-batches of ", layout.micro_batch, " on ",
      layout.data,
      " data replicas give some replicas one more than others, but ", meeting,
      "; set layout.data to ", LargestDivisorUpTo(microbatches, layout.data),
      layout.shards_gradients() ? " or layout.zero to 1" : ""));
}

absl::Status ValidateBatch(const Layout& layout, int64_t global_batch) {
  const int64_t micro_batch = layout.micro_batch;
  const int64_t count = int64_t{layout.num_microbatches} * layout.data +
                        layout.extra_microbatches;
  const int64_t cut = micro_batch * count;
  if (cut == global_batch) return absl::OkStatus();
  const int64_t unit = micro_batch * layout.data;
  const int64_t sequences = global_batch / micro_batch;
  const bool can_be_uneven = MeetingInMicrobatches(layout).empty();
  std::string fix;
  if (global_batch >= unit && global_batch % unit == 0) {
    fix = absl::StrCat("use ", global_batch / unit, " micro-batches");
  } else if (can_be_uneven && global_batch % micro_batch == 0 &&
             sequences >= layout.data) {
    fix = absl::StrCat("use ", sequences / layout.data,
                       " micro-batches, and one more on ",
                       sequences % layout.data, " of the replicas");
  } else {
    fix = absl::StrCat("set training.global_batch to ",
                       std::max<int64_t>(1, global_batch / unit) * unit);
    // Where one of the two divides the batch, it can stay.
    if (global_batch % micro_batch == 0) {
      absl::StrAppend(&fix, " or layout.data to ",
                      can_be_uneven
                          ? std::min<int64_t>(sequences, layout.data)
                          : LargestDivisorUpTo(sequences, layout.data));
    } else if (global_batch % layout.data == 0) {
      absl::StrAppend(
          &fix, " or layout.micro_batch to ",
          LargestDivisorUpTo(global_batch / layout.data, layout.micro_batch));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.global_batch is ", global_batch, ", but micro-batches of ",
      micro_batch, " x ",
      layout.is_uneven()
          ? absl::StrCat(count, " micro-batches on ")
          : absl::StrCat(layout.num_microbatches, " micro-batches x "),
      layout.data, " data replicas make ", cut, "; ", fix));
}

// A schedule that defers weight gradients needs more than one stage, and must
// add them up where they stay.
absl::Status ValidateSchedule(const Layout& layout) {
  const bool is_listed = layout.schedule == Schedule::kListScheduled;
  if ((is_listed || layout.schedule == Schedule::kZeroBubble) &&
      (layout.pipeline == 1 || layout.shards_gradients())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.schedule is ", ScheduleName(layout.schedule),
        " with layout.pipeline ", layout.pipeline, " and layout.zero ",
        layout.zero,
        "; it puts off weight gradients, which takes two stages at least and "
        "ZeRO 0 or 1: set it to 1f1b or auto"));
  }
  const auto num_listed = static_cast<int32_t>(layout.listed_stages.size());
  if (num_listed != (is_listed ? layout.pipeline : 0) ||
      layout.listed_transfer_us < 0 ||
      (!is_listed && layout.listed_transfer_us > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a layout of ", layout.pipeline, " stages and schedule ",
        ScheduleName(layout.schedule), " with the costs of ", num_listed,
        " stages and a transfer of ", layout.listed_transfer_us,
        " us; the schedule list has every stage's, others none"));
  }
  for (int32_t s = 0; s < num_listed; ++s) {
    const ListedStage& stage = layout.listed_stages[s];
    if (stage.forward_us < 0 || stage.input_gradient_us < 0 ||
        stage.weight_gradient_us < 0 || stage.activation_bytes < 0 ||
        stage.weight_gradient_bytes < 0 ||
        stage.memory_bytes <
            std::max(stage.activation_bytes, stage.weight_gradient_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the costs that the schedule list has of stage ", s,
                       " are negative, or its memory of ", stage.memory_bytes,
                       " bytes is less than one micro-batch needs"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateRecompute(const Layout& layout) {
  const std::vector<Recompute>& stages = layout.recompute_by_stage;
  if (stages.empty()) return absl::OkStatus();
  if (static_cast<int32_t>(stages.size()) != layout.pipeline) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.recompute names ", stages.size(), " stages (",
                     RecomputeKey(layout), "), but layout.pipeline is ",
                     layout.pipeline, "; name every stage's, or one for all"));
  }
  Recompute all = Recompute::kNone;
  for (const Recompute stage : stages) all = all | stage;
  CHECK(layout.recompute == all) << RecomputeKey(layout);
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateLayout(const ModelSpec& model, const Layout& layout,
                            int64_t global_batch) {
  for (const LayoutSize& row : LayoutSizes()) {
    RETURN_IF_ERROR(RequireAtLeastOne(row.name, layout.*row.size));
  }
  RETURN_IF_ERROR(
      RequireAtLeastOne("num_microbatches", layout.num_microbatches));
  if (layout.zero < 0 || layout.zero > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.zero is ", layout.zero, "; it must be 0 to 3"));
  }
  RETURN_IF_ERROR(ValidateDataGroups(layout));
  RETURN_IF_ERROR(ValidateUneven(layout));
  RETURN_IF_ERROR(ValidateSchedule(layout));
  RETURN_IF_ERROR(ValidateRecompute(layout));
  if (layout.pipeline > model.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.pipeline is ", layout.pipeline, ", but the model has ",
        model.num_layers, " layers and each stage needs one; set it to ",
        model.num_layers, " or less"));
  }
  RETURN_IF_ERROR(ValidateTensor(model, layout));
  if (IsFloat8(layout.gemm_format)) {
    RETURN_IF_ERROR(ValidateFloat8(model, layout));
  }
  return ValidateBatch(layout, global_batch);
}

}  // namespace millrace
