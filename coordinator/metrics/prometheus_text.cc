#include "coordinator/metrics/prometheus_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace millrace {
namespace {

std::string PrometheusNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

std::string PrometheusLabel(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

class Exposition {
 public:
  explicit Exposition(const std::string& run)
      : run_(absl::StrCat("run=\"", PrometheusLabel(run), "\"")) {}

  void Describe(const char* name, const char* type, const char* help) {
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ",
                    type, "\n");
  }
  // `labels` beside the run's: "rank=\"0\"".
  void Value(const char* name, double value, const std::string& labels = "") {
    absl::StrAppend(&text_, name, "{", run_, labels.empty() ? "" : ",", labels,
                    "} ", PrometheusNumber(value), "\n");
  }
  void Gauge(const char* name, const char* help, double value) {
    Describe(name, "gauge", help);
    Value(name, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  const std::string run_;
  std::string text_;
};

}  // namespace

std::string PrometheusText(const RunSnapshot& snapshot) {
  Exposition out(snapshot.run);
  out.Gauge("millrace_running", "1 while the run goes on, 0 after its end.",
            snapshot.running ? 1 : 0);
  out.Gauge("millrace_planned_steps", "Steps of the whole training.",
            static_cast<double>(snapshot.num_steps));
  if (snapshot.step.has_value()) {
    const StepRecord& step = *snapshot.step;
    out.Gauge("millrace_step", "The newest step, the first is 1.",
              static_cast<double>(step.step));
    out.Gauge("millrace_generation",
              "Membership of workers, one more after each failure.",
              static_cast<double>(step.generation));
    out.Gauge(
        "millrace_trained_tokens", "Tokens of all steps up to the newest.",
        static_cast<double>(step.step) * static_cast<double>(step.tokens));
    StepRecord newest = step;
    newest.validation_loss = snapshot.validation_loss;
    for (const StepMetric& metric : StepMetrics()) {
      const std::optional<double> value = metric.value(newest);
      if (value.has_value()) out.Gauge(metric.name, metric.help, *value);
    }
  }
  if (!snapshot.evaluation.empty()) {
    out.Describe("millrace_evaluation_loss", "gauge",
                 "Mean loss of a held-out set in nats per token.");
    for (const auto& [set, loss] : snapshot.evaluation) {
      out.Value("millrace_evaluation_loss", loss,
                absl::StrCat("set=\"", PrometheusLabel(set), "\""));
    }
  }
  if (!snapshot.events.empty()) {
    out.Describe("millrace_events_total", "counter",
                 "Events of the run by name, as in events.jsonl.");
    for (const auto& [event, count] : snapshot.events) {
      out.Value("millrace_events_total", static_cast<double>(count),
                absl::StrCat("event=\"", PrometheusLabel(event), "\""));
    }
  }
  if (!snapshot.ranks.empty()) {
    out.Describe("millrace_rank_seconds_total", "counter",
                 "Where the time of each rank went, as in time.json.");
    for (const auto& [rank, time] : snapshot.ranks) {
      const std::pair<const char*, double> parts[] = {
          {"compute", time.steps.compute_s},
          {"exposed_tensor_comm", time.steps.exposed_tensor_comm_s},
          {"exposed_data_comm", time.steps.exposed_data_comm_s},
          {"bubble", time.steps.bubble_s},
          {"data", time.steps.data_s},
          {"other", time.steps.other_s},
          {"checkpoint", time.checkpoint_s},
          {"validation", time.validation_s}};
      for (const auto& [part, seconds] : parts) {
        out.Value("millrace_rank_seconds_total", seconds,
                  absl::StrCat("rank=\"", ToInt(rank), "\",stage=\"",
                               time.stage, "\",part=\"", part, "\""));
      }
    }
  }
  return out.Take();
}

}  // namespace millrace
