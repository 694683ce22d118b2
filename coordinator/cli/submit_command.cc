#include "coordinator/cli/submit_command.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/cli/batch_script.h"
#include "coordinator/cli/kubernetes_manifest.h"
#include "coordinator/cli/launch.h"
#include "coordinator/resume.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/executable.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kSubmitProgram[] = "sbatch";

struct SubmitOptions {
  std::string job_file;
  bool slurm = false;
  bool now = false;
  int64_t warning_s = 300;
  BatchScriptOptions script;
  // With --export kubernetes.
  std::string export_to;
  std::string image;
  std::vector<std::string> volumes;
};

const char* SchedulerOf(const SubmitOptions& options) {
  return options.slurm ? "Slurm" : "Kubernetes";
}

// The parts of the script that follow from the job; a manifest takes its own
// from them.
absl::Status FillScript(SubmitOptions* options) {
  BatchScriptOptions& script = options->script;
  ASSIGN_OR_RETURN(const JobSpec job, LoadJobWithFolder(options->job_file));
  if (const absl::Status status = CheckExecutable(job); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options->job_file, ": ", status.message()));
  }
  std::error_code error;
  script.program = fs::read_symlink("/proc/self/exe", error);
  if (!error) script.directory = fs::current_path(error);
  if (error) return absl::InternalError(error.message());
  script.job_file = fs::absolute(options->job_file, error);
  script.job_name = job.name;
  script.warning = absl::Seconds(options->warning_s);
  if (job.resources.uses_cuda() && script.gpus_per_node == 0) {
    if (!job.resources.devices_per_agent.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          options->job_file,
          ": resources.devices_per_agent is auto, so it is not known how many "
          "GPUs to ask ",
          SchedulerOf(*options), " for; give --gpus-per-node"));
    }
    script.gpus_per_node = *job.resources.devices_per_agent;
  }
  const std::string obstacle = ReasonNotToResume(job.checkpoint);
  script.requeue = obstacle.empty();
  if (!script.requeue) {
    std::cerr << "millrace submit: warning: the job "
              << (options->slurm
                      ? "ends with its time limit and is not requeued"
                      : "is not started again after a failure")
              << ", since " << obstacle << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Submit(const std::string& script) {
  signal(SIGPIPE, SIG_IGN);
  FILE* sbatch = popen(kSubmitProgram, "w");
  if (sbatch == nullptr) {
    return absl::InternalError(absl::StrCat("cannot start ", kSubmitProgram));
  }
  const bool written =
      fwrite(script.data(), 1, script.size(), sbatch) == script.size();
  const int status = pclose(sbatch);
  if (written && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      kSubmitProgram, " did not take the job",
      WIFEXITED(status) && WEXITSTATUS(status) == 127
          ? "; it is not on the PATH: submit from a login node of Slurm"
          : ""));
}

absl::StatusOr<std::string> WriteManifest(const SubmitOptions& options) {
  const BatchScriptOptions& script = options.script;
  ASSIGN_OR_RETURN(const std::string job_text, ReadFile(options.job_file));
  return WriteKubernetesManifest({.job_name = script.job_name,
                                  .job_text = job_text,
                                  .image = options.image,
                                  .num_nodes = script.num_nodes,
                                  .gpus_per_node = script.gpus_per_node,
                                  .volumes = options.volumes,
                                  .warning = script.warning,
                                  .requeue = script.requeue});
}

absl::Status RunSubmit(SubmitOptions options) {
  RETURN_IF_ERROR(FillScript(&options));
  if (!options.slurm) {
    ASSIGN_OR_RETURN(const std::string manifest, WriteManifest(options));
    std::cout << manifest << std::flush;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string script, WriteBatchScript(options.script));
  std::cout << script << std::flush;
  return options.now ? Submit(script) : absl::OkStatus();
}

}  // namespace

void AddSubmitCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<SubmitOptions>();
  BatchScriptOptions& script = options->script;
  CLI::App* command = app.add_subcommand(
      "submit",
      "Write what trains a job on a cluster: Slurm's batch script or "
      "Kubernetes's manifest");
  command->add_option("JOB", options->job_file, "Job file (docs/job.md)")
      ->required();
  CLI::Option_group* const target = command->add_option_group("Target");
  CLI::Option* const slurm =
      target->add_flag("--slurm", options->slurm, "For Slurm's sbatch");
  CLI::Option* const kubernetes =
      target
          ->add_option("--export", options->export_to,
                       "kubernetes: an indexed Job for kubectl apply")
          ->check(CLI::IsMember({"kubernetes"}));
  target->require_option(1);
  CLI::Option* const image =
      command
          ->add_option("--image", options->image,
                       "With --export: the container image, which holds "
                       "millrace")
          ->needs(kubernetes);
  command
      ->add_option("--volume", options->volumes,
                   "With --export: CLAIM:/path, mounted by all pods; may be "
                   "repeated")
      ->needs(kubernetes);
  command->add_option("--nodes", script.num_nodes, "How many (1)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--gpus-per-node", script.gpus_per_node,
                   "Instead of resources.devices_per_agent")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--time", script.time_limit,
                   "The time limit, as sbatch takes it: 24:00:00")
      ->needs(slurm);
  command
      ->add_option("--warn-seconds", options->warning_s,
                   "For the last checkpoint, before the time limit or when a "
                   "pod is to go (300)")
      ->check(CLI::Range(1, 65535));
  command
      ->add_option("--sbatch", script.sbatch_options,
                   "One more option for sbatch; may be repeated")
      ->allow_extra_args(false)
      ->needs(slurm);
  command->add_flag("--now", options->now, "Submit it too")->needs(slurm);
  command->footer(
      "Examples:\n"
      "  millrace submit job.yaml --slurm --nodes 4 --time 24:00:00 > job.sh\n"
      "  millrace submit job.yaml --slurm --nodes 4 --sbatch=--partition=gpu "
      "--now\n"
      "  millrace submit job.yaml --export kubernetes --nodes 4 "
      "--image millrace:1 > job-manifest.yaml\n"
      "With --slurm, the job checkpoints before its time limit and queues "
      "again, until all "
      "its steps are done (docs/cluster.md).");
  command->callback([=] {
    if (!kubernetes->empty() && image->empty()) {
      throw CLI::RequiredError("--image with --export kubernetes");
    }
    const absl::Status status = RunSubmit(*options);
    if (status.ok()) return;
    std::cerr << "millrace submit: " << status.message() << std::endl;
    *exit_code = absl::IsInvalidArgument(status) || absl::IsNotFound(status)
                     ? kBadInput
                     : 1;
  });
}

}  // namespace millrace
