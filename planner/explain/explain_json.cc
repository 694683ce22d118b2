#include "planner/explain/explain_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/json.h"
#include "planner/layout/layout.h"

namespace millrace {
namespace {

// Keys keep their order, which is that of docs/plan.md.
using OrderedJson = nlohmann::ordered_json;

// Returns one value for all stages, or a list with a value for each stage.
OrderedJson RecomputeJson(const Layout& layout) {
  if (layout.recompute_by_stage.empty()) {
    return RecomputeName(layout.recompute);
  }
  OrderedJson stages = OrderedJson::array();
  for (const Recompute recompute : layout.recompute_by_stage) {
    stages.push_back(RecomputeName(recompute));
  }
  return stages;
}

OrderedJson LayoutJson(const Layout& layout) {
  return {
      {"pipeline", layout.pipeline},
      {"interleave", layout.interleave},
      {"data", layout.data},
      {"data_groups", layout.data_groups},
      {"zero", layout.zero},
      {"tensor", layout.tensor},
      {"sequence_parallel", layout.tensor > 1},
      {"context", layout.context},
      {"expert", layout.expert},
      {"micro_batch", layout.micro_batch},
      {"recompute", RecomputeJson(layout)},
      {"precision", PrecisionName(layout)},
      {"gradient_reduction", GradientReductionName(layout.gradient_reduction)},
      {"moments", Describe(layout.moments).name},
      {"schedule", ScheduleName(layout.schedule)},
      {"copy_engines", layout.copy_engines.any()}};
}

// Returns the order of the mesh axes on the network, innermost first.
OrderedJson PlacementJson(bool pipeline_outermost) {
  OrderedJson names = OrderedJson::array();
  for (const Axis axis :
       AxesInOrder(pipeline_outermost ? AxisOrder::kPipelineOutermost
                                      : AxisOrder::kPipelineInsideData)) {
    names.push_back(AxisName(axis));
  }
  return names;
}

// Names what orders the passes: the layout's schedule or list scheduling.
const char* PassOrderName(const std::vector<int64_t>& listed_bytes) {
  return listed_bytes.empty() ? "schedule" : "list";
}

OrderedJson PredictionJson(const Prediction& prediction, const Layout& layout) {
  OrderedJson json;
  json["step_time_s"] = prediction.step_time_s;
  if (prediction.step_time_low_s.has_value()) {
    json["step_time_low_s"] = *prediction.step_time_low_s;
  }
  if (prediction.step_time_high_s.has_value()) {
    json["step_time_high_s"] = *prediction.step_time_high_s;
  }
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

// Returns {"compute": 0.8, ...}; leaves out zeros.
template <typename Value>
OrderedJson PartsJson(const std::vector<Part<Value>>& parts) {
  OrderedJson json = OrderedJson::object();
  for (const Part<Value>& part : parts) {
    if (part.value != 0) json[part.name] = part.value;
  }
  return json;
}

OrderedJson BindsJson(const LayoutParts& parts) {
  return {{"step_s", PartsJson(parts.time)},
          {"ops_s", PartsJson(parts.ops)},
          {"memory_bytes", PartsJson(parts.memory)}};
}

OrderedJson ChoiceJson(const Plan& plan) {
  return {{"layout", LayoutJson(plan.layout)},
          {"predicted", PredictionJson(plan.prediction, plan.layout)}};
}

OrderedJson WhatIfJson(const PlanAnswers& answers) {
  OrderedJson changes = OrderedJson::array();
  for (const ValueChange& change : answers.changes) {
    changes.push_back({{"key", change.key},
                       {"before", change.before},
                       {"after", change.after}});
  }
  return {{"changes", changes}, {"before", ChoiceJson(*answers.before)}};
}

OrderedJson ComparisonJson(const LayoutComparison& comparison) {
  OrderedJson json = {{"asked", comparison.asked},
                      {"verdict", comparison.verdict},
                      {"fits", comparison.fits}};
  if (comparison.plan.has_value()) {
    json.update(ChoiceJson(*comparison.plan));
    json["binds"] = BindsJson(comparison.parts);
  }
  return json;
}

OrderedJson SensitivityJson(const SensitivityRow& row) {
  return {{"key", row.key},
          {"factor", row.factor},
          {"step_time_s", row.kept_step_time_s},
          {"best_step_time_s", row.best_step_time_s},
          {"best_layout", LayoutJson(row.best)},
          {"best_changes", row.best_changes}};
}

OrderedJson GoodputJson(const GoodputReport& report) {
  OrderedJson json = {{"considers_failures", report.considers_failures},
                      {"goodput_fraction", report.goodput_fraction},
                      {"checkpoint_fraction", report.checkpoint_fraction},
                      {"lost_work_fraction", report.lost_work_fraction},
                      {"recovery_fraction", report.recovery_fraction},
                      {"waiting_fraction", report.waiting_fraction},
                      {"missing_nodes_fraction", report.missing_nodes_fraction},
                      {"tokens_per_s", report.tokens_per_s}};
  if (report.considers_failures) {
    json["mean_time_between_failures_s"] =
        report.cluster_mean_time_between_failures_s;
    json["checkpoint_s"] = report.checkpoint_s;
    json["checkpoint_interval_steps"] = report.checkpoint_interval_steps;
    json["checkpoint_interval_s"] = report.checkpoint_interval_s;
    json["num_spare_nodes"] = report.num_spare_nodes;
    json["replans"] = report.replans;
  }
  if (report.tokens_per_dollar > 0) {
    json["tokens_per_dollar"] = report.tokens_per_dollar;
  }
  return json;
}

OrderedJson DisturbedJson(const DisturbedStep& step) {
  OrderedJson causes = OrderedJson::array();
  for (const DisturbanceCause& cause : step.causes) {
    causes.push_back({{"cause", cause.text}, {"seconds", cause.seconds}});
  }
  return {{"step_time_s", step.step_time_s},
          {"slowdown", step.slowdown},
          {"step_time_low_s", step.low_s},
          {"step_time_high_s", step.high_s},
          {"deviation_s", step.deviation_s},
          {"p5_s", step.p5_s},
          {"median_s", step.median_s},
          {"p95_s", step.p95_s},
          {"longest_s", step.longest_s},
          {"num_steps", step.num_steps},
          {"seed", step.seed},
          {"num_slow_nodes", step.num_slow_nodes},
          {"causes", causes}};
}

OrderedJson LostNodesJson(const LostNodesAnswer& answer) {
  OrderedJson plans = OrderedJson::array();
  for (const LostNodesRow& row : answer.rows) {
    const PlanTemplate& plan = row.plan;
    OrderedJson json = {{"lost_nodes", plan.num_lost_nodes},
                        {"devices", plan.num_devices},
                        {"idle_devices", plan.num_idle_devices()},
                        {"keeps_layout", plan.keeps_layout},
                        {"layout", LayoutJson(plan.layout)},
                        {"placement", PlacementJson(plan.pipeline_outermost)},
                        {"plan_only", plan.plan_only},
                        {"step_time_s", plan.step_time_s},
                        {"tokens_per_s", plan.tokens_per_s}};
    if (!plan.keeps_layout) {
      json["look_up_s"] = row.look_up_s;
      json["anew_s"] = row.anew_s;
      json["search_s"] = plan.search_seconds;
    }
    plans.push_back(std::move(json));
  }
  OrderedJson json = {{"devices_per_node", answer.devices_per_node},
                      {"plans", std::move(plans)}};
  if (!answer.end.empty()) json["end"] = answer.end;
  return json;
}

void AppendAnswers(const PlanAnswers& answers, OrderedJson* json) {
  if (answers.num_learnt_runs > 0) {
    (*json)["num_calibration_runs"] = answers.num_learnt_runs;
  }
  if (answers.parts.has_value()) (*json)["binds"] = BindsJson(*answers.parts);
  if (answers.before.has_value()) (*json)["what_if"] = WhatIfJson(answers);
  if (answers.goodput.has_value()) {
    (*json)["goodput"] = GoodputJson(*answers.goodput);
  }
  if (answers.disturbed.has_value()) {
    (*json)["disturbed"] = DisturbedJson(*answers.disturbed);
  }
  if (answers.lost_nodes.has_value()) {
    (*json)["lost_nodes"] = LostNodesJson(*answers.lost_nodes);
  }
  for (const LayoutComparison& comparison : answers.comparisons) {
    (*json)["compare"].push_back(ComparisonJson(comparison));
  }
  for (const SensitivityRow& row : answers.sensitivity) {
    (*json)["sensitivity"].push_back(SensitivityJson(row));
  }
}

}  // namespace

std::string PlanToJson(const Plan& plan, const PlanAnswers& answers) {
  OrderedJson json;
  json["layout"] = LayoutJson(plan.layout);
  json["placement"] = PlacementJson(plan.pipeline_outermost);
  json["pass_order"] = PassOrderName(plan.listed_bytes);
  json["predicted"] = PredictionJson(plan.prediction, plan.layout);
  json["search"] = {{"seconds", plan.search_seconds},
                    {"layouts_considered", plan.layouts_considered},
                    {"optimality_gap", nullptr}};
  if (plan.optimality_gap.has_value()) {
    json["search"]["optimality_gap"] = *plan.optimality_gap;
  }
  json["recompute"] = OrderedJson::array();
  for (const RecomputeCandidate& price : plan.recompute_prices) {
    json["recompute"].push_back(
        {{"op", RecomputeName(price.op)},
         {"chosen", Has(plan.layout.recompute, price.op)},
         {"saved_bytes", price.bytes},
         {"seconds", price.seconds}});
  }
  if (plan.snapshots.has_value()) {
    json["snapshots"] = {{"staged_bytes", plan.snapshots->staged_bytes},
                         {"stall_s", plan.snapshots->stall_s}};
  }
  json["standby_workers"] = plan.keeps_standbys;
  json["alternatives"] = OrderedJson::array();
  for (const Alternative& alternative : plan.alternatives) {
    const Prediction& prediction = alternative.prediction;
    json["alternatives"].push_back(
        {{"layout", LayoutJson(alternative.layout)},
         {"placement", PlacementJson(alternative.pipeline_outermost)},
         {"pass_order", PassOrderName(alternative.listed_bytes)},
         {"predicted", PredictionJson(prediction, alternative.layout)},
         {"simulated", prediction.model != PriceModel::kClosedForm},
         {"chosen_step_time_s",
          PredictionBy(prediction.model, plan)->step_time_s},
         {"fits", alternative.fits},
         {"reason", alternative.reason}});
  }
  json["plan_only"] = plan.plan_only;
  json["warnings"] = plan.warnings;
  AppendAnswers(answers, &json);
  return JsonText(json, 2) + "\n";
}

}  // namespace millrace
