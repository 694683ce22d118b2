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

const char* PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBfloat16:
      return "bf16";
  }
  CHECK(false) << "unknown precision " << static_cast<int>(precision);
  return "";
}

Precision PrecisionOf(absl::string_view name) {
  if (name == PrecisionName(Precision::kFloat32)) return Precision::kFloat32;
  CHECK(name == "bf16" || name == "fp8" || name == "fp4")
      << "unknown precision " << name;
  return Precision::kBfloat16;
}

GemmFormat GemmFormatOf(absl::string_view name) {
  if (name == "fp8") return GemmFormat::kFloat8;
  if (name == "fp4") return GemmFormat::kFloat4;
  return GemmFormat::kAsStored;
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

const char* ScheduleName(Schedule schedule) {
  switch (schedule) {
    case Schedule::kOneForwardOneBackward:
      return "1f1b";
    case Schedule::kZeroBubble:
      return "zero_bubble";
    case Schedule::kInterleaved:
      return "interleaved";
    case Schedule::kListScheduled:
      return "list";
  }
  CHECK(false) << "unknown schedule " << static_cast<int>(schedule);
  return "";
}

const char* PrecisionName(const Layout& layout) {
  switch (layout.gemm_format) {
    case GemmFormat::kAsStored:
      return PrecisionName(layout.precision);
    case GemmFormat::kFloat8:
      return "fp8";
    case GemmFormat::kFloat4:
      return "fp4";
  }
  CHECK(false) << "unknown format " << static_cast<int>(layout.gemm_format);
  return "";
}

Schedule ScheduleOf(absl::string_view name) {
  for (const Schedule schedule :
       {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
        Schedule::kInterleaved, Schedule::kListScheduled}) {
    if (name == ScheduleName(schedule)) return schedule;
  }
  CHECK(false) << "unknown schedule " << name;
  return Schedule::kOneForwardOneBackward;
}

const char* GroupName(Group group) {
  switch (group) {
    case Group::kTensor:
      return "tensor";
    case Group::kData:
      return "data";
    case Group::kPipeline:
      return "pipeline";
    case Group::kWorld:
      return "world";
  }
  CHECK(false) << "unknown group " << static_cast<int>(group);
  return "";
}

MeshCoordinates CoordinatesOf(const Layout& layout, Rank rank) {
  const int32_t index = ToInt(rank);
  CHECK(index >= 0 && index < layout.num_ranks())
      << "rank " << index << " of " << layout.num_ranks();
  return {.pipeline = index / layout.tensor % layout.pipeline,
          .data = index / layout.tensor / layout.pipeline,
          .tensor = index % layout.tensor};
}

Rank RankOf(const Layout& layout, MeshCoordinates coordinates) {
  return Rank{(coordinates.data * layout.pipeline + coordinates.pipeline) *
                  layout.tensor +
              coordinates.tensor};
}

std::vector<Rank> GroupMembers(const Layout& layout, Group group, Rank rank) {
  MeshCoordinates member = CoordinatesOf(layout, rank);
  const int32_t size = GroupSize(layout, group);
  std::vector<Rank> members;
  members.reserve(size);
  for (int32_t i = 0; i < size; ++i) {
    switch (group) {
      case Group::kTensor:
        member.tensor = i;
        break;
      case Group::kData:
        member.data = i;
        break;
      case Group::kPipeline:
        member.pipeline = i;
        break;
      case Group::kWorld:
        member = CoordinatesOf(layout, Rank{i});
        break;
    }
    members.push_back(RankOf(layout, member));
  }
  return members;
}

int32_t GroupSize(const Layout& layout, Group group) {
  switch (group) {
    case Group::kTensor:
      return layout.tensor;
    case Group::kData:
      return layout.data;
    case Group::kPipeline:
      return layout.pipeline;
    case Group::kWorld:
      return layout.num_ranks();
  }
  CHECK(false) << "unknown group " << static_cast<int>(group);
  return 0;
}

int32_t GroupIndex(const Layout& layout, Group group, Rank rank) {
  const MeshCoordinates coordinates = CoordinatesOf(layout, rank);
  switch (group) {
    case Group::kTensor:
      return coordinates.tensor;
    case Group::kData:
      return coordinates.data;
    case Group::kPipeline:
      return coordinates.pipeline;
    case Group::kWorld:
      return ToInt(rank);
  }
  CHECK(false) << "unknown group " << static_cast<int>(group);
  return 0;
}

int32_t NumCommunicators(const Layout& layout, int32_t stage) {
  int32_t count = 0;
  bool has_world = layout.num_ranks() == 1;
  for (const int32_t size : {layout.tensor, layout.data}) {
    if (size == 1) continue;
    ++count;
    has_world |= size == layout.num_ranks();
  }
  if (stage > 0) count += 2;
  if (stage < layout.pipeline - 1) count += 2;
  return has_world ? count : count + 1;
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
    // Of equal ones the fullest: earlier stages keep more activations.
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
  absl::StrAppend(&text, " x data ", layout.data, " x tensor ", layout.tensor);
  if (layout.context > 1) absl::StrAppend(&text, " x context ", layout.context);
  if (layout.expert > 1) {
    absl::StrAppend(&text, ", experts over ", layout.expert);
    if (layout.expert_tensor > 1) {
      absl::StrAppend(&text, " x ", layout.expert_tensor);
    }
  }
  absl::StrAppend(&text, ", ", layout.num_microbatches, " micro-batch",
                  layout.num_microbatches == 1 ? "" : "es", " of ",
                  layout.micro_batch, ", ZeRO ", layout.zero, ", ",
                  PrecisionName(layout));
  if (layout.rounds_gradients()) {
    absl::StrAppend(&text, ", gradients reduced in bf16");
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
