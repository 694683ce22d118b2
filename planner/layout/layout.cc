#include "planner/layout/layout.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace millrace {

int64_t LargestDivisorUpTo(int64_t value, int64_t limit) {
  for (int64_t d = std::min(value, limit); d > 1; --d) {
    if (value % d == 0) return d;
  }
  return 1;
}

std::string RecomputeKey(const Layout& layout) {
  if (layout.recompute_by_stage.empty()) return RecomputeName(layout.recompute);
  return absl::StrJoin(layout.recompute_by_stage, ", ",
                       [](std::string* out, Recompute recompute) {
                         out->append(RecomputeName(recompute));
                       });
}

void SetRecompute(absl::string_view key, Layout* layout) {
  SetRecompute(AllowedRecomputes(key, UnpricedRecomputes()).front(), layout);
}

void SetRecompute(const StageRecomputes& stages, Layout* layout) {
  layout->recompute = stages.recompute;
  layout->recompute_by_stage = stages.by_stage;
}

std::span<const ScheduleDescriptor> Schedules() {
  static constexpr ScheduleDescriptor kSchedules[] = {
      {Schedule::kOneForwardOneBackward, "1f1b", true},
      {Schedule::kZeroBubble, "zero_bubble", true},
      {Schedule::kInterleaved, "interleaved", false},
      {Schedule::kListScheduled, "list", true},
  };
  return kSchedules;
}

const ScheduleDescriptor& Describe(Schedule schedule) {
  for (const ScheduleDescriptor& row : Schedules()) {
    if (row.schedule == schedule) return row;
  }
  CHECK(false) << "unknown schedule " << static_cast<int>(schedule);
  return Schedules().front();
}

Schedule ScheduleOf(absl::string_view name) {
  for (const ScheduleDescriptor& row : Schedules()) {
    if (name == row.name) return row.schedule;
  }
  CHECK(false) << "unknown schedule " << name;
  return Schedule::kOneForwardOneBackward;
}

const char* ScheduleName(Schedule schedule) { return Describe(schedule).name; }

std::span<const GradientReductionDescriptor> GradientReductions() {
  static constexpr GradientReductionDescriptor kReductions[] = {
      {GradientReduction::kFloat32, "fp32"},
      {GradientReduction::kBfloat16, "bf16"},
      {GradientReduction::kBfloat16Across, "bf16_across"},
  };
  return kReductions;
}

const char* GradientReductionName(GradientReduction reduction) {
  for (const GradientReductionDescriptor& row : GradientReductions()) {
    if (row.reduction == reduction) return row.name;
  }
  CHECK(false) << "unknown reduction " << static_cast<int>(reduction);
  return "";
}

GradientReduction GradientReductionOf(absl::string_view name) {
  for (const GradientReductionDescriptor& row : GradientReductions()) {
    if (name == row.name) return row.reduction;
  }
  CHECK(false) << "unknown reduction " << name;
  return GradientReduction::kFloat32;
}

void Layout::ShareBatch(int64_t global_batch) {
  const int64_t sequences = global_batch / micro_batch;
  const bool has_enough = sequences >= data;
  num_microbatches = has_enough ? static_cast<int32_t>(sequences / data) : 1;
  extra_microbatches = has_enough ? static_cast<int32_t>(sequences % data) : 0;
}

const PrecisionRecipe& RecipeOf(const Layout& layout) {
  return RecipeOf(layout.precision, layout.gemm_format);
}

const char* PrecisionName(const Layout& layout) {
  return RecipeOf(layout).name;
}

namespace {

// The head's products count as so many of a layer's; the embedding as none.
int64_t LayersOfLastStage(const ModelSpec& model, int64_t num_stages) {
  const ParameterCounts counts = CountParameters(model);
  const int64_t active = model.num_expert_layers() > 0
                             ? counts.active_per_expert_layer
                             : counts.per_layer;
  // With causal attention.
  const auto layer = static_cast<double>(
      active + (model.query_width() + model.attended_width()) / 2 *
                   model.sequence_length);
  const auto head = static_cast<double>(model.vocab_size * model.hidden);
  int64_t best = 1;
  double best_work = std::numeric_limits<double>::infinity();
  for (int64_t last = 1; last <= model.num_layers / num_stages; ++last) {
    const int64_t others = model.num_layers - last;
    const int64_t most = (others + num_stages - 2) / (num_stages - 1);
    const double work = std::max(static_cast<double>(most) * layer,
                                 static_cast<double>(last) * layer + head);
    // Among equals the fullest last stage wins: earlier stages keep more
    // activations.
    if (work <= best_work) {
      best_work = work;
      best = last;
    }
  }
  return best;
}

// "full (2 stages), norm (6)".
std::string RecomputeText(const Layout& layout) {
  const std::vector<Recompute>& stages = layout.recompute_by_stage;
  if (stages.empty()) return RecomputeName(layout.recompute);
  std::string text;
  for (size_t begin = 0, end = 0; begin < stages.size(); begin = end) {
    while (end < stages.size() && stages[end] == stages[begin]) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    RecomputeName(stages[begin]), " (", end - begin,
                    begin > 0          ? ")"
                    : end == begin + 1 ? " stage)"
                                       : " stages)");
  }
  return text;
}

}  // namespace

LayerRange StageLayers(const ModelSpec& model, const Layout& layout,
                       int32_t stage) {
  const int64_t num_stages = layout.pipeline;
  CHECK(stage >= 0 && stage < num_stages);
  if (num_stages == 1) return {.begin = 0, .end = model.num_layers};
  const int64_t num_last = LayersOfLastStage(model, num_stages);
  const int64_t num_others = model.num_layers - num_last;
  const int64_t even = num_others / (num_stages - 1);
  const int64_t remainder = num_others % (num_stages - 1);
  // Inner stages take one more layer first, the latest first; then stage 0.
  auto layers_of = [&](int64_t s) {
    if (s == num_stages - 1) return num_last;
    const int64_t turn = s == 0 ? num_stages - 2 : num_stages - 2 - s;
    return even + (turn < remainder ? 1 : 0);
  };
  LayerRange range{.begin = 0, .end = 0};
  for (int64_t s = 0; s <= stage; ++s) {
    range.begin = range.end;
    range.end += layers_of(s);
  }
  return range;
}

std::string LayoutToString(const Layout& layout) {
  std::string text = absl::StrCat("pipeline ", layout.pipeline);
  if (layout.interleave > 1) {
    absl::StrAppend(&text, " (", layout.interleave, " chunks each)");
  }
  absl::StrAppend(&text, " x data ", layout.data);
  if (layout.data_groups > 1) {
    absl::StrAppend(&text, " (", layout.data_groups, " groups)");
  }
  absl::StrAppend(&text, " x tensor ", layout.tensor);
  if (layout.context > 1) absl::StrAppend(&text, " x context ", layout.context);
  if (layout.expert > 1) {
    absl::StrAppend(&text, ", experts over ", layout.expert);
    if (layout.expert_tensor > 1) {
      absl::StrAppend(&text, " x ", layout.expert_tensor);
    }
  }
  const int32_t most = layout.most_microbatches();
  absl::StrAppend(&text, ", ", most);
  if (layout.is_uneven()) {
    absl::StrAppend(&text, " or ", layout.num_microbatches);
  }
  absl::StrAppend(&text, " micro-batch", most == 1 ? "" : "es", " of ",
                  layout.micro_batch, ", ZeRO ", layout.zero, ", ",
                  PrecisionName(layout));
  if (layout.rounds_gradients()) {
    absl::StrAppend(&text, ", gradients reduced in bf16");
  } else if (layout.rounds_across()) {
    absl::StrAppend(&text, ", gradients in bf16 between groups");
  }
  if (layout.moments != MomentFormat::kFloat32) {
    absl::StrAppend(&text, ", moments in ", Describe(layout.moments).name);
  }
  if (layout.recompute != Recompute::kNone) {
    absl::StrAppend(&text, ", recompute ", RecomputeText(layout));
  }
  if (layout.schedule == Schedule::kZeroBubble) {
    absl::StrAppend(&text, ", zero bubble");
  } else if (layout.schedule == Schedule::kListScheduled) {
    absl::StrAppend(&text, ", list-scheduled");
  }
  if (layout.copy_engines.any()) absl::StrAppend(&text, ", copy engines");
  return text;
}

}  // namespace millrace
