// An examination as people and programs read it.

#ifndef MILLRACE_WORKER_DOCTOR_REPORT_TEXT_H_
#define MILLRACE_WORKER_DOCTOR_REPORT_TEXT_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "worker/doctor/findings.h"

namespace millrace {

// A table of hosts, one of pairs, a line for each finding, and a last line with
// the verdict.
std::string ReportText(const ExaminationResult& result,
                       const std::vector<Finding>& findings);

// The same, with every fact of every host and pair.
nlohmann::json ReportJson(const ExaminationResult& result,
                          const std::vector<Finding>& findings);

// Whether a job would fail.
bool WouldFail(const std::vector<Finding>& findings);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_REPORT_TEXT_H_
