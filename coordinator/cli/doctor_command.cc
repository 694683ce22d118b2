#include "coordinator/cli/doctor_command.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/cli/doctor_session.h"
#include "coordinator/cli/launch.h"
#include "coordinator/cli/meeting.h"
#include "coordinator/protocol/secret.h"
#include "coordinator/resume.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/executable.h"
#include "planner/job/job_file.h"
#include "planner/job/object_path.h"
#include "planner/layout/model.h"
#include "worker/doctor/examinee.h"
#include "worker/doctor/findings.h"
#include "worker/doctor/report_text.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

struct DoctorOptions {
  std::string job_file;  // Empty: any job.
  MeetingOptions meeting;
  std::string json_file;
};

// A folder that the hosts may share: they are asked whether they see a file
// that lies in it, or in the nearest of its parents that is there.
struct ProbedFolder {
  std::string purpose;
  std::string path;
  std::string probed_path;
};

class Probes {
 public:
  static absl::StatusOr<Probes> Create() {
    Probes probes;
    ASSIGN_OR_RETURN(const std::string random, MakeSecret());
    probes.name_ = "probe-" + random;  // As the coordinator's.
    return probes;
  }

  void Add(const std::string& purpose, const std::string& path) {
    std::error_code error;
    std::error_code not_there;
    fs::path there = fs::absolute(path, error);
    while (!fs::is_directory(there, not_there) && there.has_relative_path()) {
      there = there.parent_path();
    }
    folders_.push_back(
        {.purpose = purpose, .path = path, .probed_path = there.string()});
  }

  void Describe(Json* look) const {
    (*look)["probe"] = name_;
    for (const ProbedFolder& folder : folders_) {
      (*look)["folders"].push_back({{"purpose", folder.purpose},
                                    {"path", folder.path},
                                    {"probed_path", folder.probed_path}});
    }
  }

  // A folder that cannot be written is seen by nobody.
  void Write() const {
    for (const ProbedFolder& folder : folders_) {
      WriteFileAtomically(folder.probed_path + "/" + name_, name_)
          .IgnoreError();
    }
  }

  void Remove() const {
    for (const ProbedFolder& folder : folders_) {
      std::error_code gone_already;
      fs::remove(folder.probed_path + "/" + name_, gone_already);
    }
  }

 private:
  std::string name_;
  std::vector<ProbedFolder> folders_;
};

absl::StatusOr<JobSpec> ReadDoctorJob(const std::string& file) {
  JobSpec job;
  ASSIGN_OR_RETURN(job, LoadJobWithFolder(file));
  if (const absl::Status status = CheckExecutable(job); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", status.message()));
  }
  return job;
}

// Master weights and two moments, in fp32, of each parameter.
constexpr int64_t kStateBytes = 12;

// The most that the job's checkpoints take at once: one more is written before
// the oldest is removed.
int64_t CheckpointBytes(const JobSpec& job) {
  const CheckpointSpec& spec = job.checkpoint;
  int64_t written = spec.at_end ? 1 : 0;
  if (spec.policy == "auto") written = job.training.num_steps;
  // An export is written from a checkpoint.
  for (const int64_t every : {spec.interval_steps, job.exports.every}) {
    if (every > 0) written += job.training.num_steps / every;
  }
  const double bytes =
      static_cast<double>(CountParameters(job.model).total) * kStateBytes *
      static_cast<double>(std::min(written, int64_t{spec.keep} + 1));
  constexpr double kMost = 9e18;
  return static_cast<int64_t>(std::min(bytes, kMost));
}

JobNeeds NeedsOf(const JobSpec& job, const AgentPlace& place) {
  return {.gpus = job.resources.uses_cuda(),
          .shared_checkpoints = place.SeveralHosts() && UsesCheckpoints(job),
          .checkpoint_bytes = CheckpointBytes(job)};
}

// Made by agent 0 before others come.
struct DoctorOpening {
  Listener listener;
  ExaminationOptions examination;
  Probes probes;
};

absl::StatusOr<DoctorOpening> OpenDoctor(const DoctorOptions& options,
                                         const AgentPlace& place,
                                         int32_t port) {
  const bool has_job = !options.job_file.empty();
  JobSpec job;
  if (has_job) {
    ASSIGN_OR_RETURN(job, ReadDoctorJob(options.job_file));
  }
  absl::StatusOr<Listener> listener = ListenForAgents(job.network, place, port);
  if (!listener.ok()) return listener.status();
  ExaminationOptions examination = {
      .num_agents = place.num_agents,
      .hosts = HostsOf(place),
      .join_timeout = JoinTimeout(options.meeting)};
  examination.look["several_hosts"] = place.SeveralHosts();
  ASSIGN_OR_RETURN(Probes probes, Probes::Create());
  probes.Add(kRunFolder, job.output_directory);
  if (has_job) {
    examination.look["job"] = JobToYaml(job);
    examination.needs = NeedsOf(job, place);
    // Without a folder of their own, checkpoints lie in the run folder.
    if (UsesCheckpoints(job) && IsObjectPath(job.checkpoint.directory)) {
      examination.look["bucket"] = job.checkpoint.directory;
    } else if (UsesCheckpoints(job)) {
      probes.Add(kCheckpointFolder, job.checkpoint.directory.empty()
                                        ? job.output_directory
                                        : job.checkpoint.directory);
    }
  }
  probes.Describe(&examination.look);
  return DoctorOpening{*std::move(listener), std::move(examination),
                       std::move(probes)};
}

int Report(const DoctorOptions& options, const ExaminationResult& result) {
  const std::vector<Finding> findings = FindingsOf(result);
  std::cout << ReportText(result, findings) << std::flush;
  if (!options.json_file.empty()) {
    const absl::Status written = WriteFileAtomically(
        options.json_file, JsonText(ReportJson(result, findings), 1) + "\n");
    if (!written.ok()) return Fail(written);
  }
  return WouldFail(findings) ? kJobWouldFail : 0;
}

absl::StatusOr<DoctorSessionOptions> SessionOf(const DoctorOptions& options,
                                               DoctorOpening opening,
                                               const std::string& secret) {
  // The server takes one over, and the listener keeps its own.
  const int listen_fd = dup(opening.listener.fd());
  if (listen_fd < 0) return absl::InternalError("no file descriptor is free");
  return DoctorSessionOptions{
      .listen_fd = listen_fd,
      .secret = secret,
      .examination = std::move(opening.examination),
      .on_progress =
          [](const std::string& line) { std::cerr << line << std::endl; },
      .on_looking =
          [probes = std::move(opening.probes)](bool begins) {
            begins ? probes.Write() : probes.Remove();
          },
      .on_done =
          [&options](const ExaminationResult& result) {
            return Report(options, result);
          }};
}

absl::StatusOr<int> Examine(const DoctorOptions& options) {
  std::optional<DoctorOpening> opening;
  ASSIGN_OR_RETURN(const Meeting met,
                   Meet(options.meeting,
                        [&](const AgentPlace& place,
                            int32_t port) -> absl::StatusOr<std::string> {
                          ASSIGN_OR_RETURN(opening,
                                           OpenDoctor(options, place, port));
                          return opening->listener.address();
                        }));
  if (met.exit_code.has_value()) return *met.exit_code;
  ExamineeOptions examinee = {
      .agent_idx = met.place.agent_idx,
      .host = HostName(),
      .share = {.num_agents = met.place.AgentsOnThisHost(),
                .agent_idx = met.place.IndexOnThisHost()},
      .address = met.address,
      .secret = met.secret,
      .mpi_library = options.meeting.under_mpi ? MpiLibrary() : ""};
  if (!opening.has_value()) {
    if (FileExists(options.job_file)) {
      examinee.own_copy = ReadDoctorJob(options.job_file);
    }
    return RunExaminee(examinee);
  }
  PrintHowToJoin(options.meeting, met, "doctor");
  ASSIGN_OR_RETURN(DoctorSessionOptions session_options,
                   SessionOf(options, *std::move(opening), met.secret));
  absl::Status session;
  std::thread thread(
      [&] { session = RunDoctorSession(std::move(session_options)); });
  absl::StatusOr<int> exit_code = RunExaminee(examinee);
  thread.join();
  RETURN_IF_ERROR(session);
  return exit_code;
}

int RunDoctor(DoctorOptions options) {
  // Without a launcher, this host is examined alone, and MPI is not asked: it
  // may be what is amiss.
  options.meeting.under_mpi = IsLaunched();
  const absl::StatusOr<int> exit_code = Examine(options);
  return exit_code.ok() ? *exit_code : Fail(exit_code.status());
}

}  // namespace

void AddDoctorCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Examine this host, or the hosts of a job, before it starts");
  command->add_option("JOB", options->job_file,
                      "Also see whether this job would run (docs/job.md)");
  AddMeetingOptions(command, &options->meeting);
  command->add_option("--json", options->json_file,
                      "Write all that was found to this file, for programs");
  command->footer(
      "Examples:\n"
      "  millrace doctor\n"
      "  mpirun --map-by ppr:1:node --bind-to none millrace doctor\n"
      "  mpirun --map-by ppr:1:node --bind-to none millrace doctor job.yaml\n"
      "  srun --ntasks-per-node=1 millrace doctor\n"
      "Exit code 0 if a job would run, 3 if it would fail (docs/doctor.md).");
  command->callback([=] { *exit_code = RunDoctor(*options); });
}

}  // namespace millrace
