#include "planner/explain/explain_parts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/layer_time.h"

namespace millrace {
namespace {

// Smaller parts of the step are not named.
constexpr double kShownPartShare = 0.01;
constexpr size_t kShownOps = 4;
// Rounding differences between sums of the same seconds in another order.
constexpr double kSecondsRounding = 1e-9;

// The seconds of a rank's compute lane by purpose and by kind of op.
struct ComputeSeconds {
  double plain = 0;
  double recompute = 0;
  double optimizer = 0;
  std::map<OpKind, double> by_kind;
  double all() const { return plain + recompute + optimizer; }
};

ComputeSeconds ComputeOf(const Program& program, const RankTimeline& rank) {
  ComputeSeconds seconds;
  for (const TimelineEvent& event : rank.events) {
    const Instruction& instruction = program.instructions[event.instruction];
    if (instruction.lane != Lane::kCompute) continue;
    const double duration = event.end_s - event.start_s;
    seconds.by_kind[instruction.kind] += duration;
    (instruction.phase == Phase::kRecompute   ? seconds.recompute
     : instruction.phase == Phase::kOptimizer ? seconds.optimizer
                                              : seconds.plain) += duration;
  }
  return seconds;
}

std::vector<Part<int64_t>> MemoryOf(const Prediction& prediction) {
  return {
      {"parameters", prediction.parameter_bytes},
      {"gradients", prediction.gradient_bytes},
      {"optimizer", prediction.optimizer_bytes},
      {"step", prediction.step_bytes},
      {"overhead", prediction.overhead_bytes},
      {"other", prediction.persistent_bytes - prediction.parameter_bytes -
                    prediction.gradient_bytes - prediction.optimizer_bytes}};
}

// A step that was also simulated by passes differs from its closed form by the
// time that stages wait for each other.
LayoutParts PartsOfClosedForm(const StepPrediction& prediction,
                              double step_time_s) {
  const StepTime& time = prediction.time;
  const StepMemory& memory = prediction.memory;
  double waiting_s =
      time.bubble_s + step_time_s - prediction.time.step_time_s();
  if (std::abs(waiting_s) < kSecondsRounding * step_time_s) waiting_s = 0;
  return {.time = {{kComputePart, time.compute_s},
                   {kRecomputePart, time.recompute_s},
                   {kOptimizerPart, time.optimizer_s},
                   {kBubblePart, std::max(0.0, waiting_s)},
                   {kTensorPart, time.exposed_tensor_s},
                   {kContextPart, time.exposed_context_s},
                   {kExpertPart, time.exposed_expert_s},
                   {kDataPart, time.exposed_data_s},
                   {kTransferPart, time.transfer_s},
                   {kOtherPart, std::min(0.0, waiting_s)}},
          .memory = {{"parameters", memory.parameters},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"activations", memory.activations},
                     {"working", memory.working},
                     {"overhead", memory.overhead}},
          .ops = {}};
}

// Returns the number of neighbouring ranks from a group's first member to its
// last.
int64_t SpanOf(const GroupPlacement& group) {
  return 1 + (group.inner.size - 1) * group.inner.stride +
         (group.outer.size - 1) * group.outer.stride;
}

// Returns the span of the groups that the part waits for; 0 if it waits for
// none.
int64_t SpanOf(absl::string_view part, const Plan& plan) {
  const Layout& layout = plan.layout;
  const Implementation implementation = {.pipeline_outermost =
                                             plan.pipeline_outermost};
  if (part == kTensorPart) return SpanOf(TensorGroup(layout));
  if (part == kContextPart) return SpanOf(ContextGroup(layout));
  if (part == kExpertPart) return SpanOf(ExpertGroup(layout, implementation));
  if (part == kDataPart) return SpanOf(ReplicaGroup(layout, implementation));
  if (part == kTransferPart) {
    return int64_t{layout.pipeline} * PipelineStride(layout, implementation);
  }
  return 0;
}

// Returns " over fabric", or nothing for a part that is no communication or for
// a profile without levels.
std::string LinkText(absl::string_view part, const Plan& plan,
                     const HardwareProfile& profile) {
  const int64_t span = SpanOf(part, plan);
  if (span == 0) return "";
  for (const NetworkLevel& level : profile.network) {
    if (level.devices == 0 || level.devices >= span) {
      return absl::StrCat(" over ", level.name);
    }
  }
  return "";
}

double StepOf(const LayoutParts& parts) {
  double step = 0;
  for (const Part<double>& part : parts.time) step += part.value;
  return step;
}

// Returns the parts of at least kShownPartShare of the step, largest first.
std::vector<Part<double>> LargestParts(const LayoutParts& parts) {
  const double step = StepOf(parts);
  std::vector<Part<double>> shown;
  for (const Part<double>& part : parts.time) {
    if (part.value >= kShownPartShare * step) shown.push_back(part);
  }
  std::ranges::stable_sort(shown, std::greater<>(), &Part<double>::value);
  return shown;
}

}  // namespace

LayoutParts PartsOfTimeline(std::span<const Program> programs,
                            const Timeline& timeline,
                            const Prediction& prediction) {
  const RankTimeline* critical = nullptr;
  ComputeSeconds most;
  for (const RankTimeline& rank : timeline.ranks) {
    const Program& program = programs[rank.stage];
    ComputeSeconds seconds = ComputeOf(program, rank);
    if (critical == nullptr || seconds.all() > most.all()) {
      critical = &rank;
      most = std::move(seconds);
    }
  }
  CHECK(critical != nullptr) << "a timeline without ranks";
  const TimeBreakdown waited =
      BreakDown(programs[critical->stage], *critical, timeline.step_time_s);
  LayoutParts parts{.time = {{kComputePart, most.plain},
                             {kRecomputePart, most.recompute},
                             {kOptimizerPart, most.optimizer},
                             {kBubblePart, waited.bubble_s},
                             {kTensorPart, waited.exposed_tensor_comm_s},
                             {kDataPart, waited.exposed_data_comm_s},
                             {kOtherPart, waited.data_s + waited.other_s}},
                    .memory = MemoryOf(prediction),
                    .ops = {}};
  for (const auto& [kind, seconds] : most.by_kind) {
    parts.ops.push_back({OpKindName(kind), seconds});
  }
  std::ranges::stable_sort(parts.ops, std::greater<>(), &Part<double>::value);
  return parts;
}

absl::StatusOr<LayoutParts> PartsOf(const Plan& plan) {
  if (plan.programs == nullptr) {
    if (plan.prediction.closed_form.has_value()) {
      return PartsOfClosedForm(*plan.prediction.closed_form,
                               plan.prediction.step_time_s);
    }
    return absl::InternalError(
        "a plan with neither Programs nor closed form has no parts");
  }
  return PartsOfTimeline(*plan.programs, plan.timeline, plan.prediction);
}

std::string BindingText(const LayoutParts& parts, const Plan& plan,
                        const HardwareProfile& profile) {
  const double step = StepOf(parts);
  const auto share_text = [&](const std::string& name, double seconds) {
    return absl::StrFormat("%s %.1f %%", name, 100 * seconds / step);
  };
  std::vector<std::string> texts;
  for (const Part<double>& part : LargestParts(parts)) {
    std::string text =
        share_text(part.name + LinkText(part.name, plan, profile), part.value);
    if (part.name == kComputePart && !parts.ops.empty()) {
      std::vector<std::string> ops;
      for (const Part<double>& op : parts.ops) {
        if (ops.size() == kShownOps || op.value < kShownPartShare * step) break;
        ops.push_back(share_text(op.name, op.value));
      }
      absl::StrAppend(&text, " (", absl::StrJoin(ops, ", "), ")");
    }
    texts.push_back(std::move(text));
  }
  return absl::StrJoin(texts, ", ");
}

std::string BriefBindingText(const LayoutParts& parts, const Plan& plan,
                             const HardwareProfile& profile, size_t columns) {
  std::string text;
  for (const Part<double>& part : LargestParts(parts)) {
    const std::string more = absl::StrFormat(
        "%s%s%s %.1f %%%s", text.empty() ? "" : ", ",
        absl::StripPrefix(part.name, "exposed "),
        LinkText(part.name, plan, profile), 100 * part.value / StepOf(parts),
        text.empty() ? " of the step" : "");
    if (text.size() + more.size() > columns) break;
    text += more;
  }
  return text;
}

}  // namespace millrace
