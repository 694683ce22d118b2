#include "coordinator/cli/diagnose_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/diagnose/diagnosis_text.h"
#include "coordinator/diagnose/trace.h"
#include "coordinator/diagnose/trace_analysis.h"
#include "coordinator/diagnose/trace_reader.h"

namespace millrace {
namespace {

struct DiagnoseOptions {
  std::string trace_path;
  std::optional<int64_t> step;
  bool whole = false;
  bool json = false;
};

absl::Status RunDiagnose(const DiagnoseOptions& options) {
  ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace_path));
  const absl::StatusOr<Diagnosis> diagnosis =
      Diagnose(trace, {.step = options.step, .whole = options.whole});
  if (!diagnosis.ok()) {
    return absl::Status(
        diagnosis.status().code(),
        absl::StrCat(options.trace_path, ": ", diagnosis.status().message()));
  }
  std::cout << (options.json
                    ? DiagnosisToJson(options.trace_path, trace, *diagnosis)
                    : DiagnosisToText(options.trace_path, trace, *diagnosis));
  return absl::OkStatus();
}

}  // namespace

void AddDiagnoseCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command = app.add_subcommand(
      "diagnose", "Show where the time of a recorded PyTorch GPU step went");
  command
      ->add_option("TRACE", options->trace_path,
                   "JSON of torch.profiler, or - for standard input")
      ->required();
  CLI::Option* step = command->add_option(
      "--step", options->step,
      "The N of ProfilerStep#N (default: the step of median length)");
  command
      ->add_flag("--whole", options->whole,
                 "All that was recorded instead of one step")
      ->excludes(step);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Example: millrace diagnose tests/data/diagnose/two_steps.json\n"
      "Packed traces: gunzip -c TRACE.json.gz | millrace diagnose -");
  command->callback([options, exit_code] {
    const absl::Status status = RunDiagnose(*options);
    if (!status.ok()) {
      std::cerr << "millrace diagnose: " << status.message() << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
  });
}

}  // namespace millrace
