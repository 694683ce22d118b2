#include "planner/explain.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// FLOPs that the model needs for one device's share of a second, over what its
// best measured GEMM reaches.
double Utilisation(const Prediction& prediction, const Layout& layout,
                   const CostModel& cost, double flops_per_token) {
  return prediction.tokens_per_s / layout.num_ranks() * flops_per_token /
         cost.PeakFlopsPerSecond();
}

std::string MemoryText(const Prediction& prediction) {
  const int64_t other = prediction.persistent_bytes -
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

std::string AlternativeRow(const Alternative& alternative) {
  const Prediction& prediction = alternative.prediction;
  const std::string memory = prediction.memory_bytes() > 0
                                 ? FormatBytes(prediction.memory_bytes())
                                 : "-";
  return absl::StrFormat(
      "  %-58s %10s %10s  %s\n", LayoutToString(alternative.layout),
      FormatSeconds(prediction.step_time_s), memory, alternative.reason);
}

Json LayoutJson(const Layout& layout, const JobSpec& job) {
  return {{"pipeline", layout.pipeline},
          {"interleave", 1},
          {"data", layout.data},
          {"zero", layout.zero},
          {"tensor", layout.tensor},
          {"sequence_parallel", layout.tensor > 1},
          {"context", 1},
          {"expert", 1},
          {"micro_batch", layout.micro_batch},
          {"recompute", "none"},
          {"precision", job.training.precision},
          {"schedule", "1f1b"}};
}

Json PredictionJson(const Prediction& prediction, const Layout& layout,
                    const JobSpec& job, const CostModel& cost) {
  Json json;
  json["step_time_s"] = prediction.step_time_s;
  json["tokens_per_s_per_device"] =
      prediction.tokens_per_s / layout.num_ranks();
  const TokenFlops flops = CountTokenFlops(job.model);
  json["mfu_full"] = Utilisation(prediction, layout, cost,
                                 flops.linear + flops.attention_full);
  json["mfu_causal"] = Utilisation(prediction, layout, cost,
                                   flops.linear + flops.attention_causal);
  if (prediction.memory_bytes() > 0) {
    json["memory_bytes_per_device"] = prediction.memory_bytes();
  }
  json["bubble_fraction"] = prediction.bubble_fraction;
  json["exposed_communication_fraction"] =
      prediction.exposed_communication_fraction;
  return json;
}

}  // namespace

std::string ExplainPlan(const JobSpec& job, const CostModel& cost,
                        const Plan& plan) {
  const Prediction& prediction = plan.prediction;
  const Layout& layout = plan.layout;
  const ParameterCounts counts = CountParameters(job.model);
  std::string text;
  absl::StrAppend(&text, "Plan for ", job.name, ": ",
                  FormatCount(static_cast<double>(counts.total)),
                  " parameters on ", layout.num_ranks(),
                  layout.num_ranks() == 1 ? " device, " : " devices, ",
                  job.training.global_batch, " sequences of ",
                  job.model.sequence_length, " tokens a step\n\n");
  absl::StrAppend(&text, "  layout     ", LayoutToString(layout),
                  layout.tensor > 1 ? ", sequence-parallel" : "", "\n");
  absl::StrAppend(&text, "  step time  ", FormatSeconds(prediction.step_time_s),
                  ", ", FormatCount(prediction.tokens_per_s), " tokens/s\n");
  absl::StrAppend(&text, "  training   ",
                  FormatSeconds(prediction.step_time_s *
                                static_cast<double>(job.training.num_steps)),
                  " for ", job.training.num_steps,
                  " steps, without start and checkpoints", "\n");
  absl::StrAppend(&text, "  memory     ", MemoryText(prediction), "\n");
  absl::StrAppend(&text, "  idle       bubble ",
                  Percent(prediction.bubble_fraction),
                  " of the step, exposed communication ",
                  Percent(prediction.exposed_communication_fraction), "\n");
  const TokenFlops flops = CountTokenFlops(job.model);
  absl::StrAppend(&text, "  of peak    ",
                  Percent(Utilisation(prediction, layout, cost,
                                      flops.linear + flops.attention_causal)),
                  " of each rank's best measured GEMM alone, ",
                  FormatCount(cost.PeakFlopsPerSecond()), "FLOP/s\n");
  const ProfileProvenance& provenance = cost.profile().provenance;
  absl::StrAppend(&text, "  profile    ", cost.profile().name, ", measured on ",
                  provenance.description, ", ", provenance.date, "\n");
  absl::StrAppend(&text, "  search     ", plan.layouts_considered,
                  plan.layouts_considered == 1 ? " layout" : " layouts",
                  plan.all_simulated ? ", all that fit simulated, "
                                     : ", the best simulated, ",
                  FormatSeconds(plan.search_seconds), "\n");
  if (!plan.alternatives.empty()) {
    absl::StrAppend(&text, "\n",
                    absl::StrFormat("  %-58s %10s %10s  %s\n", "alternative",
                                    "step time", "memory", "why not"));
    const size_t shown = std::min(kShownAlternatives, plan.alternatives.size());
    for (size_t i = 0; i < shown; ++i) {
      absl::StrAppend(&text, AlternativeRow(plan.alternatives[i]));
    }
    if (shown < plan.alternatives.size()) {
      absl::StrAppend(&text, "  and ", plan.alternatives.size() - shown,
                      " more; --json lists them all\n");
    }
  }
  for (const std::string& warning : plan.warnings) {
    absl::StrAppend(&text, "\nwarning: ", warning, "\n");
  }
  return text;
}

std::string PlanToJson(const JobSpec& job, const CostModel& cost,
                       const Plan& plan) {
  Json json;
  json["layout"] = LayoutJson(plan.layout, job);
  json["predicted"] = PredictionJson(plan.prediction, plan.layout, job, cost);
  json["search"] = {{"seconds", plan.search_seconds},
                    {"layouts_considered", plan.layouts_considered},
                    {"optimality_gap", nullptr}};
  if (plan.all_simulated) json["search"]["optimality_gap"] = 0;
  json["alternatives"] = Json::array();
  for (const Alternative& alternative : plan.alternatives) {
    json["alternatives"].push_back(
        {{"layout", LayoutJson(alternative.layout, job)},
         {"predicted", PredictionJson(alternative.prediction,
                                      alternative.layout, job, cost)},
         {"simulated", alternative.simulated},
         {"fits", alternative.fits},
         {"reason", alternative.reason}});
  }
  json["warnings"] = plan.warnings;
  return json.dump(2) + "\n";
}

}  // namespace millrace
