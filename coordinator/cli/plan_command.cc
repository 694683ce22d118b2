#include "coordinator/cli/plan_command.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/planning.h"
#include "planner/cost.h"
#include "planner/explain.h"
#include "planner/export.h"
#include "planner/job_file.h"
#include "planner/layout_space.h"
#include "planner/lower.h"
#include "planner/profile_file.h"
#include "planner/profile_request.h"
#include "planner/search.h"
#include "planner/timeline.h"
#include "worker/agent_devices.h"
#include "worker/cuda_backend.h"
#include "worker/machine.h"

namespace millrace {
namespace {

struct PlanOptions {
  std::string job_path;
  int32_t num_devices = 0;  // 0: as the profile was measured.
  std::string profile_path;
  std::string timeline_path;
  bool program = false;
  bool json = false;
  std::string export_to;    // Of a Framework; empty: none.
  std::string output_path;  // Of the export; empty: standard output.
};

// What a profile of this machine is known by.
struct Here {
  std::string machine;  // Fingerprint.
  // Of a worker, when `devices_on_host` share the host.
  std::function<int32_t(int32_t devices_on_host)> threads_per_device;
};

Here NoGpus(const Here& cpu) {
  return {.machine = absl::StrCat(cpu.machine, " (no GPU)"),
          .threads_per_device = [](int32_t) { return 1; }};
}

absl::StatusOr<Here> FindHere(const JobSpec& job) {
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  const Here cpu = {
      .machine = machine.Fingerprint(),
      .threads_per_device = [machine, job](int32_t devices_on_host) {
        return job.resources.threads_per_device.value_or(
            ThreadsPerDevice(machine, devices_on_host));
      }};
  if (!job.resources.uses_cuda()) return cpu;
  // A machine without GPUs may plan for one that has them, but is not it.
  const absl::StatusOr<CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok()) return NoGpus(cpu);
  const absl::StatusOr<std::vector<CudaDeviceInfo>> gpus =
      (*backend)->ListDevices();
  if (!gpus.ok()) return NoGpus(cpu);
  ASSIGN_OR_RETURN(const AgentDevices devices,
                   ShareGpus({}, machine, *gpus, {}));
  return Here{.machine = devices.machine,
              .threads_per_device = [](int32_t) { return 1; }};
}

// This machine's newest cached profile for the job's model and batch; with the
// wanted number of devices if one is given.
absl::StatusOr<HardwareProfile> FindCachedProfile(const JobSpec& job,
                                                  const Here& here,
                                                  int32_t num_devices) {
  std::optional<HardwareProfile> newest;
  for (const std::string& path :
       CachedProfilePaths({.machine = here.machine,
       .shape = ProfileShapeKey(job.model, job.training)})) {
    absl::StatusOr<HardwareProfile> profile = LoadProfile(path);
    // One that an older version wrote is as good as none.
    if (!profile.ok()) continue;
    const ProfileProvenance& provenance = profile->provenance;
    if (num_devices > 0 && provenance.num_ranks != num_devices) continue;
    if (!job.resources.uses_cuda() &&
        job.resources.threads_per_device.value_or(
            provenance.threads_per_device) != provenance.threads_per_device) {
      continue;
    }
    // ISO dates sort by time.
    if (!newest || newest->provenance.date < provenance.date) {
      newest = *std::move(profile);
    }
  }
  if (newest.has_value()) return *std::move(newest);
  return absl::NotFoundError(absl::StrCat(
      "no hardware profile of this machine for this model and batch",
      num_devices > 0 ? absl::StrCat(" on ", num_devices, " devices") : "",
      "; measure one with millrace profile JOB, or name one with --profile"));
}

absl::StatusOr<HardwareProfile> FindProfileFor(const PlanOptions& options,
                                               const JobSpec& job,
                                               const Here& here) {
  const std::string path = !options.profile_path.empty() ? options.profile_path
                           : job.profile != "auto"       ? job.profile
                                                         : "";
  if (!path.empty()) return LoadProfile(path);
  return FindCachedProfile(job, here, options.num_devices);
}

std::vector<std::string> WarningsFor(const JobSpec& job, const Here& here,
                                     const HardwareProfile& profile,
                                     int32_t num_devices) {
  const int32_t on_host = std::min(num_devices, profile.ranks_per_host);
  const ProfileIdentity identity = {
      .machine = here.machine,
      .num_ranks = num_devices,
      .threads_per_device = here.threads_per_device(on_host)};
  return job.resources.uses_cuda() ? GpuProfileWarnings(profile, identity)
                                   : ProfileWarnings(profile, identity);
}

absl::Status PrintPrograms(const JobSpec& job, const Layout& layout) {
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const Program program,
                     BuildTrainingProgram(job.model, layout, stage));
    std::cout << ProgramToString(program);
  }
  return absl::OkStatus();
}

absl::Status PrintExport(const PlanOptions& options, const JobSpec& job,
                         const Layout& layout) {
  const std::optional<Framework> framework =
      FrameworkFromName(options.export_to);
  CHECK(framework.has_value()) << options.export_to;  // The parser knows them.
  ASSIGN_OR_RETURN(const std::string text,
                   ExportLayout(job, layout, *framework));
  if (options.output_path.empty()) {
    std::cout << text;
    return absl::OkStatus();
  }
  return WriteFileAtomically(options.output_path, text);
}

absl::Status RunPlan(const PlanOptions& options) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(options.job_path));
  // A job that cannot work needs no profile to be told so.
  if (options.num_devices > 0) {
    RETURN_IF_ERROR(CheckLayouts(job, options.num_devices));
  }
  ASSIGN_OR_RETURN(const Here here, FindHere(job));
  ASSIGN_OR_RETURN(const HardwareProfile profile,
                   FindProfileFor(options, job, here));
  const int32_t num_devices = options.num_devices > 0
                                  ? options.num_devices
                                  : profile.provenance.num_ranks;
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(profile));
  ASSIGN_OR_RETURN(Plan plan,
                   FindPlan({.job = job, .num_devices = num_devices}, cost));
  plan.warnings = WarningsFor(job, here, profile, num_devices);

  if (!options.timeline_path.empty()) {
    RETURN_IF_ERROR(WriteFileAtomically(options.timeline_path,
                                        TimelineToJson(plan.timeline)));
  }
  if (options.program) return PrintPrograms(job, plan.layout);
  if (!options.export_to.empty()) {
    for (const std::string& warning : plan.warnings) {
      std::cerr << "millrace plan: warning: " << warning << std::endl;
    }
    return PrintExport(options, job, plan.layout);
  }
  std::cout << (options.json ? PlanToJson(plan)
                             : ExplainPlan(job, profile, plan));
  return absl::OkStatus();
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

void AddPlanCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Choose a layout for a job, predict it and say why");
  command->add_option("JOB", options->job_path, "The job file")->required();
  command
      ->add_option("--devices", options->num_devices,
                   "Devices to plan for (default: as the profile was measured)")
      ->check(CLI::PositiveNumber);
  command->add_option(
      "--profile", options->profile_path,
      "Hardware profile (default: the job's, or this machine's cached one)");
  command->add_option("--timeline", options->timeline_path,
                      "Write the predicted timeline of a step here, as JSON");
  CLI::Option* program = command->add_flag(
      "--program", options->program,
      "Print every instruction, wait and buffer of the step instead");
  CLI::Option* json =
      command->add_flag("--json", options->json, "Print one JSON object")
          ->excludes(program);
  CLI::Option* export_to =
      command
          ->add_option("--export", options->export_to,
                       "Print the layout as another framework's configuration "
                       "instead: megatron, megatron-bridge, nemo, torchtitan or "
                       "deepspeed")
          ->check(CLI::IsMember({"megatron", "megatron-bridge", "nemo",
                                 "torchtitan", "deepspeed"}))
          ->excludes(program)
          ->excludes(json);
  command
      ->add_option("--output", options->output_path,
                   "Write the export here (default: standard output)")
      ->needs(export_to);
  command->footer("Example: millrace plan configs/quickstart.yaml --devices 4");
  command->callback([options, exit_code] {
    const absl::Status status = RunPlan(*options);
    if (!status.ok()) {
      std::cerr << "millrace plan: " << status.message() << std::endl;
    }
    *exit_code = ExitCode(status);
  });
}

}  // namespace millrace
