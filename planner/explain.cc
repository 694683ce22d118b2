#include "planner/explain.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"

namespace millrace {
namespace {

// Ordered: the keys appear as docs/plan.md lists them.
using Json = nlohmann::ordered_json;

// More rows than these tell a reader nothing new.
constexpr size_t kShownAlternatives = 10;

std::string Percent(double fraction) {
  return absl::StrFormat("%.1f %%", 100 * fraction);
}

std::string MemoryText(const Prediction& prediction) {
  const int64_t other = prediction.overhead_bytes +
                        prediction.persistent_bytes -
                        prediction.parameter_bytes - prediction.gradient_bytes -
                        prediction.optimizer_bytes;
  return absl::StrCat(
      FormatBytes(prediction.memory_bytes()), " a rank at most: parameters ",
      FormatBytes(prediction.parameter_bytes), ", gradients ",
      FormatBytes(prediction.gradient_bytes), ", optimizer ",
      FormatBytes(prediction.optimizer_bytes), ", step ",
      FormatBytes(prediction.step_bytes),
      other >= kMiB ? absl::StrCat(", other ", FormatBytes(other)) : "");
}

std::string AlternativeRow(int width, const Alternative& alternative) {
  const Prediction& prediction = alternative.prediction;
  const std::string memory = prediction.memory_bytes() > 0
                                 ? FormatBytes(prediction.memory_bytes())
                                 : "-";
  return absl::StrFormat(
      "  %-*s %10s %10s  %s\n", width, LayoutToString(alternative.layout),
      FormatSeconds(prediction.step_time_s), memory, alternative.reason);
}

std::string RecomputeText(const Plan& plan) {
  const char* what = "";
  switch (plan.layout.recompute) {
    case Recompute::kNone:
      return "";
    case Recompute::kSelective:
      what = "the outputs of norms and SwiGLU";
      break;
    case Recompute::kFull:
      what = "all layers from their inputs";
      break;
  }
  return absl::StrCat("  recompute  ", what, ", ",
                      Percent(plan.prediction.recompute_fraction),
                      " of the step, for memory\n");
}

std::string Choice(const JobSpec& job, const Plan& plan) {
  const Prediction& prediction = plan.prediction;
  const double training_s =
      prediction.step_time_s * static_cast<double>(job.training.num_steps);
  return absl::StrCat(
      "  layout     ", LayoutToString(plan.layout),
      plan.layout.tensor > 1 ? ", sequence-parallel" : "", "\n",
      "  step time  ", FormatSeconds(prediction.step_time_s), ", ",
      FormatCount(prediction.tokens_per_s), " tokens/s, ",
      Percent(prediction.mfu_causal),
      " of what each rank's best GEMM alone reaches\n", "  training   ",
      FormatSeconds(training_s), " for ", job.training.num_steps,
      " steps, without start and checkpoints\n", "  memory     ",
      MemoryText(prediction), "\n", "  idle       bubble ",
      Percent(prediction.bubble_fraction),
      " of the step, exposed communication ",
      Percent(prediction.exposed_communication_fraction), "\n",
      RecomputeText(plan));
}

std::string Basis(const HardwareProfile& profile, const Plan& plan) {
  return absl::StrCat("  profile    ", profile.name, ", measured on ",
                      profile.provenance.description, ", ",
                      profile.provenance.date, "\n", "  search     ",
                      plan.layouts_considered,
                      plan.layouts_considered == 1 ? " layout" : " layouts",
                      plan.all_simulated ? ", all that fit simulated, "
                                         : ", the best simulated, ",
                      FormatSeconds(plan.search_seconds), "\n");
}

std::string AlternativesTable(const std::vector<Alternative>& alternatives) {
  if (alternatives.empty()) return "";
  const size_t shown = std::min(kShownAlternatives, alternatives.size());
  size_t width = 0;
  for (size_t i = 0; i < shown; ++i) {
    width = std::max(width, LayoutToString(alternatives[i].layout).size());
  }
  const int columns = static_cast<int>(width);
  std::string text =
      absl::StrFormat("\n  %-*s %10s %10s  %s\n", columns, "alternative",
                      "step time", "memory", "why not");
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, AlternativeRow(columns, alternatives[i]));
  }
  if (shown < alternatives.size()) {
    absl::StrAppend(&text, "  and ", alternatives.size() - shown,
                    " more; --json lists them all\n");
  }
  return text;
}

Json LayoutJson(const Layout& layout) {
  return {{"pipeline", layout.pipeline},
          {"interleave", layout.interleave},
          {"data", layout.data},
          {"zero", layout.zero},
          {"tensor", layout.tensor},
          {"sequence_parallel", layout.tensor > 1},
          {"context", layout.context},
          {"expert", layout.expert},
          {"micro_batch", layout.micro_batch},
          {"recompute", RecomputeName(layout.recompute)},
          {"precision", PrecisionName(layout)},
          {"schedule", ScheduleName(layout.schedule)}};
}

Json PredictionJson(const Prediction& prediction, const Layout& layout) {
  Json json;
  json["step_time_s"] = prediction.step_time_s;
  json["tokens_per_s_per_device"] =
      prediction.tokens_per_s / layout.num_ranks();
  json["mfu_full"] = prediction.mfu_full;
  json["mfu_causal"] = prediction.mfu_causal;
  if (prediction.memory_bytes() > 0) {
    json["memory_bytes_per_device"] = prediction.memory_bytes();
  }
  json["bubble_fraction"] = prediction.bubble_fraction;
  json["exposed_communication_fraction"] =
      prediction.exposed_communication_fraction;
  json["recompute_fraction"] = prediction.recompute_fraction;
  return json;
}

}  // namespace

std::string ExplainPlan(const JobSpec& job, const HardwareProfile& profile,
                        const Plan& plan) {
  const int32_t num_devices = plan.layout.num_ranks();
  return absl::StrCat(
      "Plan for ", job.name, ": ",
      FormatCount(static_cast<double>(CountParameters(job.model).total)),
      " parameters on ", num_devices, num_devices == 1 ? " device" : " devices",
      ", ", job.training.global_batch, " sequences of ",
      job.model.sequence_length, " tokens a step\n\n", Choice(job, plan),
      Basis(profile, plan), AlternativesTable(plan.alternatives),
      absl::StrJoin(plan.warnings, "",
                    [](std::string* out, const std::string& warning) {
                      absl::StrAppend(out, "\nwarning: ", warning, "\n");
                    }));
}

std::string PlanToJson(const Plan& plan) {
  Json json;
  json["layout"] = LayoutJson(plan.layout);
  json["predicted"] = PredictionJson(plan.prediction, plan.layout);
  json["search"] = {{"seconds", plan.search_seconds},
                    {"layouts_considered", plan.layouts_considered},
                    {"optimality_gap", nullptr}};
  if (plan.all_simulated) json["search"]["optimality_gap"] = 0;
  json["alternatives"] = Json::array();
  for (const Alternative& alternative : plan.alternatives) {
    json["alternatives"].push_back(
        {{"layout", LayoutJson(alternative.layout)},
         {"predicted",
          PredictionJson(alternative.prediction, alternative.layout)},
         {"simulated", alternative.simulated},
         {"fits", alternative.fits},
         {"reason", alternative.reason}});
  }
  json["warnings"] = plan.warnings;
  return json.dump(2) + "\n";
}

}  // namespace millrace
