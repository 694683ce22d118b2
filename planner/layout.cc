#include "planner/layout.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {

int64_t LargestDivisorUpTo(int64_t value, int64_t limit) {
  for (int64_t d = std::min(value, limit); d > 1; --d) {
    if (value % d == 0) return d;
  }
  return 1;
}

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

absl::Status ValidateTensorChunks(const ModelSpec& model,
                                  const Layout& layout) {
  const int32_t chunks = layout.tensor_chunks;
  if (chunks == 1) return absl::OkStatus();
  const int64_t rows = layout.micro_batch * model.sequence_length /
                       layout.tensor / kTensorChunkRows;
  if (layout.tensor > 1 && chunks >= 1 && rows % chunks == 0 &&
      layout.micro_batch * model.sequence_length %
              (layout.tensor * kTensorChunkRows) ==
          0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.tensor_chunks is ", chunks, ", but a micro-batch of ",
      layout.micro_batch, " sequences of ", model.sequence_length,
      " tokens on ", layout.tensor, layout.tensor == 1 ? " shard" : " shards",
      layout.tensor == 1
          ? " has no communication to hide"
          : absl::StrCat(" cannot be cut into so many of a multiple of ",
                         kTensorChunkRows, " tokens a shard"),
      "; set it to 1 or auto"));
}

absl::Status ValidateBatch(const Layout& layout, int64_t global_batch) {
  const int64_t cut =
      int64_t{layout.micro_batch} * layout.num_microbatches * layout.data;
  if (cut == global_batch) return absl::OkStatus();
  const int64_t unit = int64_t{layout.micro_batch} * layout.data;
  std::string fix;
  if (global_batch >= unit && global_batch % unit == 0) {
    fix = absl::StrCat("use ", global_batch / unit, " micro-batches");
  } else {
    fix = absl::StrCat("set training.global_batch to ",
                       std::max<int64_t>(1, global_batch / unit) * unit);
    // Where one of the two divides the batch, it can stay.
    if (global_batch % layout.micro_batch == 0) {
      absl::StrAppend(
          &fix, " or layout.data to ",
          LargestDivisorUpTo(global_batch / layout.micro_batch, layout.data));
    } else if (global_batch % layout.data == 0) {
      absl::StrAppend(
          &fix, " or layout.micro_batch to ",
          LargestDivisorUpTo(global_batch / layout.data, layout.micro_batch));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.global_batch is ", global_batch, ", but micro-batches of ",
      layout.micro_batch, " x ", layout.num_microbatches, " micro-batches x ",
      layout.data, " data replicas make ", cut, "; ", fix));
}

}  // namespace

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

// What puts off weight gradients has stages to do so for, and adds them up
// where they stay.
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

absl::Status ValidateLayout(const ModelSpec& model, const Layout& layout,
                            int64_t global_batch) {
  const struct {
    absl::string_view axis;
    int32_t size;
  } sizes[] = {{"pipeline", layout.pipeline},
               {"data", layout.data},
               {"tensor", layout.tensor},
               {"micro_batch", layout.micro_batch},
               {"num_microbatches", layout.num_microbatches}};
  for (const auto& [axis, size] : sizes) {
    absl::Status status = RequireAtLeastOne(axis, size);
    if (!status.ok()) return status;
  }
  if (layout.zero < 0 || layout.zero > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.zero is ", layout.zero, "; it must be 0 to 3"));
  }
  RETURN_IF_ERROR(ValidateSchedule(layout));
  RETURN_IF_ERROR(ValidateRecompute(layout));
  if (layout.pipeline > model.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.pipeline is ", layout.pipeline, ", but the model has ",
        model.num_layers, " layers and each stage needs one; set it to ",
        model.num_layers, " or less"));
  }
  absl::Status status = ValidateTensor(model, layout);
  if (!status.ok()) return status;
  RETURN_IF_ERROR(ValidateTensorChunks(model, layout));
  return ValidateBatch(layout, global_batch);
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
  if (layout.tensor_chunks > 1) {
    absl::StrAppend(&text, ", tensor in ", layout.tensor_chunks, " chunks");
  }
  if (layout.copy_engines.any()) absl::StrAppend(&text, ", copy engines");
  return text;
}

}  // namespace millrace
