#include "coordinator/report.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/report/page.h"
#include "coordinator/report_data.h"
#include "coordinator/report_summary.h"

namespace millrace {
namespace {

// JSON that may stand inside a <script> element: no "</script" or "<!--" can
// appear, whatever a file of the run contains. Invalid UTF-8 is replaced.
std::string ScriptSafeJson(const nlohmann::json& data) {
  return absl::StrReplaceAll(
      data.dump(-1, ' ', /*ensure_ascii=*/true,
                nlohmann::json::error_handler_t::replace),
      {{"<", "\\u003c"}});
}

}  // namespace

std::string ReportPath(const std::string& run_directory) {
  return (std::filesystem::path(run_directory) / "report.html").string();
}

absl::Status WriteReport(const std::string& run_directory) {
  ASSIGN_OR_RETURN(const nlohmann::json data, CollectReportData(run_directory));
  return WriteFileAtomically(
      ReportPath(run_directory),
      absl::StrReplaceAll(ReportPageTemplate(),
                          {{"@REPORT_DATA@", ScriptSafeJson(data)}}));
}

absl::StatusOr<RunSummary> SummarizeRun(const std::string& run_directory) {
  ASSIGN_OR_RETURN(const nlohmann::json data, CollectReportData(run_directory));
  nlohmann::json summary = data["summary"];
  summary["run"] = data["run"];
  summary["report"] = ReportPath(run_directory);
  summary["missing"] = data["missing"];
  return RunSummary{
      .json =
          summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace),
      .text = SummaryText(summary)};
}

}  // namespace millrace
