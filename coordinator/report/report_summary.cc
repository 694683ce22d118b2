#include "coordinator/report/report_summary.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

std::vector<double> Numbers(const Json& steps, const char* column) {
  std::vector<double> numbers;
  for (const Json& value : steps.at(column)) {
    if (value.is_number()) numbers.push_back(value.get<double>());
  }
  return numbers;
}

// The first step pays for cold caches and first touches; it says little.
std::optional<double> MedianAfterFirst(std::vector<double> numbers) {
  if (numbers.empty()) return std::nullopt;
  if (numbers.size() > 1) numbers.erase(numbers.begin());
  const auto middle = numbers.begin() + numbers.size() / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

void SummarizeSteps(const Json& steps, Json& summary) {
  summary["num_steps"] = steps.at("num_steps");
  const std::vector<double> losses = Numbers(steps, "loss");
  if (!losses.empty()) {
    summary["first_loss"] = losses.front();
    summary["final_loss"] = losses.back();
  }
  const std::vector<double> validation = Numbers(steps, "validation_loss");
  if (!validation.empty()) summary["validation_loss"] = validation.back();
  for (const auto& [set, points] : steps.at("evaluation").items()) {
    summary["evaluation"][set] = points.back().at(1);
  }
  for (const char* column :
       {"step_time_s", "tokens_per_s", "predicted_step_time_s"}) {
    const std::optional<double> median =
        MedianAfterFirst(Numbers(steps, column));
    if (median.has_value()) summary[column] = *median;
  }
  const double predicted = summary.value("predicted_step_time_s", 0.0);
  if (predicted > 0 && summary.contains("step_time_s")) {
    summary["measured_over_predicted"] =
        summary["step_time_s"].get<double>() / predicted;
  }
}

void SummarizeTime(const Json& time, Json& summary) {
  if (time.at("wall_s").is_number()) summary["wall_s"] = time.at("wall_s");
  double total = 0;
  std::vector<double> sums;
  for (const TimeCategory& category : kTimeCategories) {
    double sum = 0;
    for (const Json& rank : time.at("ranks")) {
      sum += rank.at(category.key).get<double>();
    }
    sums.push_back(sum);
    total += sum;
  }
  if (total <= 0) return;
  summary["shares"] = Json::array();
  for (size_t i = 0; i < kTimeCategories.size(); ++i) {
    summary["shares"].push_back({{"key", kTimeCategories[i].key},
                                 {"label", kTimeCategories[i].label},
                                 {"share", sums[i] / total}});
  }
}

}  // namespace

Json SummarizeData(const Json& data) {
  Json summary = Json::object();
  if (data.contains("steps")) SummarizeSteps(data["steps"], summary);
  if (data.contains("time")) SummarizeTime(data["time"], summary);
  if (data.contains("events")) {
    summary["num_recoveries"] = data["events"]["num_deaths"];
  }
  if (data.contains("result")) {
    for (const char* key : {"status", "reason", "parameter_hash"}) {
      if (data["result"].contains(key)) summary[key] = data["result"][key];
    }
  }
  return summary;
}

std::string SummaryText(const Json& summary) {
  std::string text;
  const auto number = [&](const char* key) {
    return summary.contains(key) ? summary[key].get<double>() : 0.0;
  };
  if (summary.contains("status") && summary["status"].is_string()) {
    absl::StrAppend(&text, summary["status"].get<std::string>());
    if (summary.contains("num_steps")) {
      absl::StrAppend(&text, " after ", summary["num_steps"].get<int64_t>(),
                      " steps");
    }
    absl::StrAppend(&text, "\n");
  }
  if (summary.contains("final_loss")) {
    absl::StrAppendFormat(&text, "loss           %.4f, from %.4f\n",
                          number("final_loss"), number("first_loss"));
  }
  if (summary.contains("step_time_s")) {
    absl::StrAppend(&text, "step time      ",
                    FormatSeconds(number("step_time_s")));
    if (summary.contains("measured_over_predicted")) {
      absl::StrAppendFormat(&text, ", predicted %s (%.2fx)",
                            FormatSeconds(number("predicted_step_time_s")),
                            number("measured_over_predicted"));
    }
    absl::StrAppend(&text, "\n");
  }
  if (summary.contains("tokens_per_s")) {
    absl::StrAppend(&text, "speed          ",
                    FormatCount(number("tokens_per_s")), " tokens/s\n");
  }
  if (summary.contains("shares")) {
    absl::StrAppend(&text, "device time    ");
    const char* separator = "";
    for (const Json& share : summary["shares"]) {
      const double percent = share["share"].get<double>() * 100;
      if (percent < 0.05) continue;
      absl::StrAppendFormat(&text, "%s%s %.1f %%", separator,
                            share["label"].get<std::string>(), percent);
      separator = ", ";
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace millrace
