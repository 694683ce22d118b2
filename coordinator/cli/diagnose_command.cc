#include "coordinator/cli/diagnose_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/cost/op_cost.h"
#include "planner/diagnose/advice.h"
#include "planner/diagnose/diagnosis_text.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/trace_analysis.h"
#include "planner/diagnose/trace_reader.h"
#include "planner/frameworks/model_folder.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

struct DiagnoseOptions {
  std::string trace_path;
  std::optional<int64_t> step;
  bool whole = false;
  bool json = false;
  std::string job_path;
  std::string profile;
  int32_t num_devices = 0;  // 0: as the trace or the job says.
};

// Asks the planner what it would change, if a job was named.
absl::StatusOr<std::optional<Advice>> AdviseOn(const DiagnoseOptions& options,
                                               const Trace& trace,
                                               const Diagnosis& diagnosis) {
  if (options.job_path.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const JobSpec job, LoadJobWithFolder(options.job_path));
  ASSIGN_OR_RETURN(HardwareProfile profile, LoadNamedProfile(options.profile));
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(std::move(profile)));
  ASSIGN_OR_RETURN(Advice advice,
                   Advise(trace, diagnosis, job, options.num_devices, cost));
  return std::make_optional(std::move(advice));
}

absl::Status RunDiagnose(const DiagnoseOptions& options) {
  ASSIGN_OR_RETURN(const Trace trace, LoadTrace(options.trace_path));
  const absl::StatusOr<Diagnosis> diagnosis =
      Diagnose(trace, {.step = options.step, .whole = options.whole});
  if (!diagnosis.ok()) {
    return absl::Status(
        diagnosis.status().code(),
        absl::StrCat(options.trace_path, ": ", diagnosis.status().message()));
  }
  ASSIGN_OR_RETURN(const std::optional<Advice> advice,
                   AdviseOn(options, trace, *diagnosis));
  const Advice* const shown = advice.has_value() ? &*advice : nullptr;
  std::cout << (options.json ? DiagnosisToJson(options.trace_path, trace,
                                               *diagnosis, shown)
                             : DiagnosisToText(options.trace_path, trace,
                                               *diagnosis, shown));
  return absl::OkStatus();
}

}  // namespace

void AddDiagnoseCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command = app.add_subcommand(
      "diagnose", "Show where the time of a recorded PyTorch GPU step went");
  command
      ->add_option("TRACE", options->trace_path,
                   "JSON of torch.profiler, packed by gzip or not, or - for "
                   "standard input")
      ->required();
  CLI::Option* step = command->add_option(
      "--step", options->step,
      "The N of ProfilerStep#N (default: the step of median length)");
  command
      ->add_flag("--whole", options->whole,
                 "All that was recorded instead of one step")
      ->excludes(step);
  command->add_flag("--json", options->json, "Print one JSON object");
  CLI::Option* job = command->add_option(
      "--job", options->job_path,
      "The job that was recorded, its layout section as it ran: say what the "
      "planner would change (millrace import writes one)");
  CLI::Option* profile =
      command->add_option("--profile", options->profile,
                          "Hardware profile for --job: a shipped one's name, "
                          "or a file");
  job->needs(profile);
  profile->needs(job);
  command
      ->add_option("--devices", options->num_devices,
                   "Devices of the whole job (default: as trace or job say)")
      ->check(CLI::PositiveNumber)
      ->needs(job);
  command->footer(
      "Example: millrace diagnose tests/data/diagnose/three_steps.json");
  command->callback([options, exit_code] {
    const absl::Status status = RunDiagnose(*options);
    if (!status.ok()) {
      std::cerr << "millrace diagnose: " << status.message() << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
  });
}

}  // namespace millrace
