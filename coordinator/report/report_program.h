// Reads back what ProgramToString (planner/program/program.h) printed, as far
// as a timeline needs it to name its instructions.

#ifndef MILLRACE_COORDINATOR_REPORT_REPORT_PROGRAM_H_
#define MILLRACE_COORDINATOR_REPORT_REPORT_PROGRAM_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace millrace {

// {"lanes": [names], "phases": [names], "instructions": [[lane index, phase
// index, micro-batch label, name, operation], ...]}, instructions by
// InstructionId. DataLoss, naming `file` and line, if ids are not 0, 1, 2, ...
// or there are none.
absl::StatusOr<nlohmann::json> ParseProgramText(absl::string_view text,
                                                const std::string& file);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_REPORT_PROGRAM_H_
