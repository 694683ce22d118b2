// Key figures of a run, computed once for the page and the command line.

#ifndef MILLRACE_COORDINATOR_REPORT_REPORT_SUMMARY_H_
#define MILLRACE_COORDINATOR_REPORT_REPORT_SUMMARY_H_

#include <array>
#include <string>

#include "nlohmann/json.hpp"

namespace millrace {

// A column of time.json, in the order in which it is shown.
struct TimeCategory {
  const char* key;
  const char* label;
};
inline constexpr std::array<TimeCategory, 10> kTimeCategories = {{
    {"compute_s", "compute"},
    {"exposed_tensor_comm_s", "exposed tensor communication"},
    {"exposed_data_comm_s", "exposed data communication"},
    {"bubble_s", "bubble"},
    {"data_s", "data"},
    {"checkpoint_s", "checkpoint"},
    {"validation_s", "validation"},
    {"recovery_s", "recovery"},
    {"startup_s", "startup"},
    {"other_s", "other"},
}};

// Sums up the value that CollectReportData() builds. A key is present if the
// run's files had it: "status", "reason", "num_steps", "first_loss",
// "final_loss", "validation_loss", "step_time_s" and "tokens_per_s" (medians
// after the first step), "predicted_step_time_s", "measured_over_predicted",
// "wall_s", "num_recoveries", "shares": [{"key", "label", "share"}] of all
// ranks' time.
nlohmann::json SummarizeData(const nlohmann::json& data);

// The same as a few lines for people.
std::string SummaryText(const nlohmann::json& summary);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_REPORT_SUMMARY_H_
