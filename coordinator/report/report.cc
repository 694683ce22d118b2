#include "coordinator/report/report.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/report/page/page.h"
#include "coordinator/report/report_data.h"
#include "coordinator/report/report_program.h"
#include "coordinator/report/report_summary.h"
#include "planner/explain/explain_json.h"
#include "planner/job/job_file.h"

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

std::string PageOf(const nlohmann::json& data) {
  return absl::StrReplaceAll(ReportPageTemplate(),
                             {{"@REPORT_DATA@", ScriptSafeJson(data)}});
}

}  // namespace

std::string ReportPath(const std::string& run_directory) {
  return (std::filesystem::path(run_directory) / "report.html").string();
}

absl::Status WriteReport(const std::string& run_directory) {
  ASSIGN_OR_RETURN(const std::string page, ReportPage(run_directory));
  return WriteFileAtomically(ReportPath(run_directory), page);
}

absl::StatusOr<std::string> ReportPage(const std::string& run_directory) {
  ASSIGN_OR_RETURN(const nlohmann::json data, CollectReportData(run_directory));
  return PageOf(data);
}

absl::StatusOr<RunSummary> SummarizeRun(const std::string& run_directory) {
  ASSIGN_OR_RETURN(const nlohmann::json data, CollectReportData(run_directory));
  nlohmann::json summary = data["summary"];
  summary["run"] = data["run"];
  summary["report"] = ReportPath(run_directory);
  summary["missing"] = data["missing"];
  return RunSummary{.json = JsonText(summary, 2), .text = SummaryText(summary)};
}

absl::StatusOr<std::string> PlanPage(
    const JobSpec& job, const HardwareProfile& profile, const Plan& plan,
    const Timeline& timeline, const std::vector<std::string>& program_texts) {
  ASSIGN_OR_RETURN(nlohmann::json plan_json, ParseJson(PlanToJson(plan)));
  nlohmann::json data = {{"run", job.name},
                         {"sections", {"timeline", "plan", "job"}},
                         {"missing", nlohmann::json::array()},
                         {"summary", {{"status", "planned"}}},
                         {"job", JobData(job)},
                         {"job_yaml", JobToYaml(job)},
                         {"machine", MachineData(profile)},
                         {"plan", std::move(plan_json)},
                         {"predicted", TimelineData(timeline)}};
  for (size_t stage = 0; stage < program_texts.size(); ++stage) {
    ASSIGN_OR_RETURN(
        data["programs"][absl::StrCat(stage)],
        ParseProgramText(program_texts[stage],
                         absl::StrCat("the Program of stage ", stage)));
  }
  return PageOf(data);
}

}  // namespace millrace
