#include "planner/evaluate/evaluation_report.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Writes one line. Bytes of a table that are not UTF-8 become replacement
// characters.
std::string Dump(const OrderedJson& json) { return JsonText(json); }

OrderedJson OrNull(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

std::optional<double> InGiB(std::optional<double> bytes) {
  if (bytes) *bytes /= kGiB;
  return bytes;
}

OrderedJson PartsToJson(const StepTime& time) {
  return {{"compute", time.compute_s},
          {"recompute", time.recompute_s},
          {"exposed_tensor", time.exposed_tensor_s},
          {"exposed_context", time.exposed_context_s},
          {"exposed_expert", time.exposed_expert_s},
          {"exposed_data", time.exposed_data_s},
          {"transfer", time.transfer_s},
          {"bubble", time.bubble_s},
          {"optimizer", time.optimizer_s}};
}

OrderedJson PartsToJson(const StepMemory& memory) {
  auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  return {{"parameters", gib(memory.parameters)},
          {"gradients", gib(memory.gradients)},
          {"optimizer", gib(memory.optimizer)},
          {"activations", gib(memory.activations)},
          {"working", gib(memory.working)},
          {"overhead", gib(memory.overhead)}};
}

OrderedJson RunToJson(const RunPrediction& prediction) {
  const PublishedRun& run = prediction.run;
  const bool ok = prediction.is_supported();
  OrderedJson line = {
      {"id", run.id},
      {"supported", ok},
      {"reason", ok ? OrderedJson(nullptr)
                    : OrderedJson(std::string(prediction.status.message()))},
      {"predicted_step_time_s",
       ok ? OrderedJson(prediction.step_time_s) : OrderedJson()},
      {"measured_step_time_s", OrNull(MeasuredStepTime(run))},
      {"relative_error", OrNull(prediction.step_time_error())},
      {"predicted_memory_gib",
       ok ? OrderedJson(prediction.memory_bytes / kGiB) : OrderedJson()},
      {"measured_memory_gib", OrNull(InGiB(MeasuredMemoryBytes(run)))},
      {"group", run.group},
      {"is_calibration", prediction.is_calibration},
      {"is_calibrated", prediction.is_calibrated}};
  if (ok) {
    line["profile"] = prediction.setup.profile;
    line["layout"] = LayoutToString(prediction.setup.layout);
    line["uncorrected_parts_s"] = PartsToJson(prediction.predicted.time);
    line["memory_parts_gib"] = PartsToJson(prediction.predicted.memory);
    line["assumptions"] = prediction.setup.assumptions;
    if (!run.step_time_s && MeasuredStepTime(run)) {
      line["assumptions"].push_back(
          "measured step time from tokens a second and device");
    }
  }
  return line;
}

OrderedJson ErrorsToJson(const ErrorSummary& errors) {
  const bool any = errors.compared > 0;
  return {
      {"count", errors.count},
      {"supported", errors.supported},
      {"compared", errors.compared},
      {"median", any ? OrderedJson(errors.median) : OrderedJson()},
      {"p95", any ? OrderedJson(errors.p95) : OrderedJson()},
      {"mean_signed", any ? OrderedJson(errors.mean_signed) : OrderedJson()}};
}

OrderedJson ByName(const std::vector<ErrorSummary>& summaries) {
  OrderedJson object = OrderedJson::object();
  for (const ErrorSummary& errors : summaries) {
    object[errors.name] = ErrorsToJson(errors);
  }
  return object;
}

OrderedJson SummaryToJson(const EvaluationSummary& summary) {
  OrderedJson body = ErrorsToJson(summary.all);
  body["by_group"] = ByName(summary.by_group);
  body["by_quality"] = ByName(summary.by_quality);
  body["by_class"] = ByName(summary.by_class);
  body["memory"] = {{"count", summary.num_memory},
                    {"mean_error", summary.num_memory > 0
                                       ? OrderedJson(summary.mean_memory_error)
                                       : OrderedJson()}};
  body["choices"] = OrderedJson::array();
  for (const ChoiceSummary& choice : summary.choices) {
    body["choices"].push_back({{"name", choice.name},
                               {"count", choice.count},
                               {"regret", choice.regret},
                               {"spearman", OrNull(choice.spearman)}});
  }
  return {{"summary", body}};
}

// Formats a value ("12.34"), or "-" if it is missing.
std::string Figure(const std::optional<double>& value, const char* format) {
  return value ? absl::StrFormat(*absl::ParsedFormat<'f'>::New(format), *value)
               : "-";
}

std::string ErrorTable(const char* title,
                       const std::vector<ErrorSummary>& summaries) {
  std::string text =
      absl::StrFormat("%-22s %6s %9s %9s %9s %9s %9s\n", title, "runs",
                      "supported", "compared", "median", "p95", "mean");
  for (const ErrorSummary& errors : summaries) {
    absl::StrAppendFormat(&text, "%-22s %6d %9d %9d", errors.name, errors.count,
                          errors.supported, errors.compared);
    if (errors.compared > 0) {
      absl::StrAppendFormat(&text, " %8.1f%% %8.1f%% %+8.1f%%",
                            100 * errors.median, 100 * errors.p95,
                            100 * errors.mean_signed);
    }
    text.push_back('\n');
  }
  return text;
}

// Lists the worst choices. It leaves out the others if there are many groups.
std::string ChoiceTable(std::vector<ChoiceSummary> choices) {
  if (choices.empty()) return "";
  std::ranges::stable_sort(choices, std::greater<>(), &ChoiceSummary::regret);
  constexpr size_t kShown = 20;
  const size_t num_shown = std::min(choices.size(), kShown);
  std::string text = absl::StrFormat(
      "\nChoosing by the model among runs that differ in layout alone: %d of "
      "%d groups\n   runs   regret  rank correlation\n",
      num_shown, choices.size());
  for (size_t i = 0; i < num_shown; ++i) {
    absl::StrAppendFormat(&text, "%7d %7.1f%% %9s  %s\n", choices[i].count,
                          100 * choices[i].regret,
                          Figure(choices[i].spearman, "%.3f"), choices[i].name);
  }
  return text;
}

}  // namespace

std::string EvaluationToJson(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary) {
  std::string text;
  for (const RunPrediction& prediction : predictions) {
    absl::StrAppend(&text, Dump(RunToJson(prediction)), "\n");
  }
  OrderedJson body = SummaryToJson(summary);
  OrderedJson& errors = body["summary"]["step_error_by_profile"] =
      OrderedJson::object();
  for (const auto& [profile, error] : ErrorsByProfile(predictions)) {
    errors[profile] = {
        {"low", error.low}, {"high", error.high}, {"num_runs", error.num_runs}};
  }
  absl::StrAppend(&text, Dump(body), "\n");
  return text;
}

std::string EvaluationToText(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary) {
  size_t width = 0;
  for (const RunPrediction& prediction : predictions) {
    width = std::max(width, prediction.run.id.size());
  }
  const int id_width = static_cast<int>(width);
  std::string text =
      absl::StrFormat("%-*s %10s %10s %8s %8s %8s\n", id_width, "id", "step s",
                      "measured", "error", "GiB", "measured");
  for (const RunPrediction& prediction : predictions) {
    const PublishedRun& run = prediction.run;
    absl::StrAppendFormat(&text, "%-*s ", id_width, run.id);
    if (!prediction.is_supported()) {
      absl::StrAppend(&text, "unsupported: ", prediction.status.message(),
                      "\n");
      continue;
    }
    std::optional<double> percent = prediction.step_time_error();
    if (percent) *percent *= 100;
    absl::StrAppendFormat(
        &text, "%10.3f %10s %8s %8.1f %8s%s\n", prediction.step_time_s,
        Figure(MeasuredStepTime(run), "%.3f"), Figure(percent, "%+.1f%%"),
        prediction.memory_bytes / kGiB,
        Figure(InGiB(MeasuredMemoryBytes(run)), "%.1f"),
        prediction.is_calibration ? "  calibration" : "");
  }
  absl::StrAppend(&text, "\nErrors of step time\n",
                  ErrorTable("group", summary.by_group), "\n",
                  ErrorTable("quality", summary.by_quality), "\n",
                  ErrorTable("kind", summary.by_class), "\n",
                  ErrorTable("", {summary.all}));
  if (summary.num_memory > 0) {
    absl::StrAppendFormat(&text, "\nMemory of %d runs: mean error %.1f%%\n",
                          summary.num_memory, 100 * summary.mean_memory_error);
  }
  absl::StrAppend(&text, ChoiceTable(summary.choices));
  return text;
}

}  // namespace millrace
