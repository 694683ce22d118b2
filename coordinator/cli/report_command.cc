#include "coordinator/cli/report_command.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/report/report.h"
#include "coordinator/report/report_trace.h"

namespace millrace {
namespace {

struct ReportOptions {
  std::string run_directory;
  std::string trace;  // Empty: none.
  bool json = false;
};

absl::Status RunReport(const ReportOptions& options) {
  {
    const PrivateFiles private_files;  // Like all else in a run directory.
    RETURN_IF_ERROR(WriteReport(options.run_directory));
  }
  if (!options.trace.empty()) {
    RETURN_IF_ERROR(WriteRunTrace(options.run_directory, options.trace));
  }
  ASSIGN_OR_RETURN(const RunSummary summary,
                   SummarizeRun(options.run_directory));
  if (options.json) {
    std::cout << summary.json << std::endl;
  } else {
    std::cout << summary.text << "report         "
              << ReportPath(options.run_directory) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

void AddReportCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report", "Write a run's report page and print its key figures");
  command->add_option("RUN", options->run_directory, "The run directory")
      ->required();
  command->add_option("--trace", options->trace,
                      "Write the measured and the predicted step here, as a "
                      "trace for Perfetto or chrome://tracing");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Examples:\n  millrace report runs/quickstart-latest\n"
      "  millrace report runs/quickstart-latest --trace step.perfetto.json");
  command->callback([options, exit_code] {
    const absl::Status status = RunReport(*options);
    if (!status.ok())
      std::cerr << "millrace report: " << status.message() << std::endl;
    const bool bad_input =
        absl::IsNotFound(status) || absl::IsInvalidArgument(status);
    *exit_code = status.ok() ? 0 : bad_input ? 2 : 1;
  });
}

}  // namespace millrace
