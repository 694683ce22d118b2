// The agents that keep the coordinator's log, and what a coordinator on another
// host needs to go on. Part of JobRunner (job_runner.h).

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/job_runner.h"
#include "coordinator/protocol/exit_codes.h"
#include "coordinator/succession/keepers.h"
#include "coordinator/succession/log_copies.h"

namespace millrace {
namespace {

constexpr absl::Duration kCopyInterval = absl::Seconds(1);

LogCopiesOptions CopiesOf(const CoordinatorOptions& options,
                          const std::vector<Keeper>& keepers,
                          std::vector<std::string> records) {
  return {.keepers = keepers,
          .secret = options.secret,
          .term = options.term,
          .records = std::move(records),
          .own_agent = options.own_agent,
          .on_deposed = [](const std::string& reason) { StepDown(reason); }};
}

}  // namespace

void StepDown(const std::string& reason) {
  std::cerr << "coordinator: " << reason << "; this process ends" << std::endl;
  std::cout.flush();
  // At once: nothing that it might still do may be done.
  std::_Exit(kSteppedDownExitCode);
}

absl::Status JobRunner::RejoinKeepers(const CoordinatorOptions& options,
                                      WriteAheadLog* log) {
  const std::vector<Keeper> keepers = log->job().keepers;
  if (keepers.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LogCopies>> copies =
      LogCopies::Create(CopiesOf(options, keepers, log->records()));
  // The agent tries again, as long as there may be a majority.
  if (!copies.ok()) StepDown(std::string(copies.status().message()));
  RETURN_IF_ERROR(log->KeepCopies(*std::move(copies), keepers));
  const std::string profile = options.run_directory + "/profile.yaml";
  if (log->job().profile_yaml.empty() || FileExists(profile)) {
    return absl::OkStatus();
  }
  return WriteFileAtomically(profile, log->job().profile_yaml);
}

absl::Status JobRunner::ChooseKeepers() {
  const int32_t num_keepers = job_.fault.coordinator_replicas;
  if (num_keepers == 0 || options_.profile_only || options_.term == 0 ||
      !log_->job().keepers.empty()) {
    return absl::OkStatus();
  }
  std::vector<Keeper> keepers;
  std::map<std::string, int> agents_by_host;
  for (const auto& [agent_idx, agent] : agents_) {
    if (agent_idx >= num_keepers) break;
    if (agent.keeper() == 0) {
      return absl::InternalError(
          absl::StrCat(agent.host(), ", agent ", agent_idx,
                       ", does not keep the coordinator's log"));
    }
    ++agents_by_host[agent.host()];
    keepers.push_back({.id = agent.keeper(),
                       .agent_idx = agent_idx,
                       .host = agent.host(),
                       .address = AddressOfHost(agent_idx),
                       .port = agent.file_port(),
                       .coordinator_address = agent.coordinator_address()});
  }
  if (static_cast<int32_t>(keepers.size()) < num_keepers) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault.coordinator_replicas is ", num_keepers,
                     ", and the job has ", options_.num_agents, " agents"));
  }
  for (const auto& [host, num_agents] : agents_by_host) {
    if (num_agents < 2) continue;
    progress_->Line(
        absl::StrCat("warning: ", num_agents,
                     " of the agents that keep the coordinator's log are on ",
                     host, ", and are lost with it; start one agent a host"));
  }
  std::vector<std::string> records = log_->records();
  records.push_back(KeepersRecord(keepers));
  absl::StatusOr<std::unique_ptr<LogCopies>> copies =
      LogCopies::Create(CopiesOf(options_, keepers, std::move(records)));
  if (!copies.ok()) {
    return absl::Status(copies.status().code(),
                        absl::StrCat("fault.coordinator_replicas: ",
                                     copies.status().message()));
  }
  MustSucceed([&] { return log_->KeepCopies(*std::move(copies), keepers); });
  for (const auto& [agent_idx, session] : agent_sessions_) {
    TellCoordinators(session);
  }
  return absl::OkStatus();
}

void JobRunner::TellCoordinators(SessionId session) {
  const std::vector<Keeper>& keepers = log_->job().keepers;
  if (keepers.empty()) return;
  protocol::FromCoordinator message;
  message.mutable_coordinators()->set_addresses(CoordinatorAddresses(keepers));
  server_->Send(session, message);
}

void JobRunner::ReportTakeover() {
  if (options_.taken_over_from < 0) return;
  const auto name = [this](int32_t agent_idx) {
    for (const Keeper& keeper : log_->job().keepers) {
      if (keeper.agent_idx == agent_idx) {
        return absl::StrCat("agent ", agent_idx, " (", keeper.host, ")");
      }
    }
    return absl::StrCat("agent ", agent_idx);
  };
  const std::string line =
      absl::StrCat("the coordinator of ", name(options_.taken_over_from),
                   " is lost, and ", name(options_.own_agent),
                   " has it now; records go on in ", options_.run_directory);
  progress_->Line(line);
  output_->Event({.event = "coordinator_moved", .detail = line});
}

std::string JobRunner::CommittedPath() const {
  const std::string& path = log_->job().committed_path;
  // Another host's run directory may have another path.
  if (options_.run == options_.run_directory ||
      !job_.checkpoint.directory.empty()) {
    return path;
  }
  return absl::StrCat(CheckpointDirectory(), "/",
                      std::filesystem::path(path).filename().string());
}

void JobRunner::CopyRunFiles() {
  const absl::Time now = MonotonicNow();
  if (log_->job().keepers.empty() || now - copied_ < kCopyInterval) return;
  copied_ = now;
  for (const Keeper& keeper : log_->job().keepers) {
    const auto session = agent_sessions_.find(keeper.agent_idx);
    if (keeper.agent_idx == options_.own_agent ||
        !IsConnected(keeper.agent_idx)) {
      continue;
    }
    const protocol::AgentHello& agent = agents_[keeper.agent_idx];
    if (agent.keeper() != keeper.id || agent.sees_run_directory()) continue;
    RunCopy& copy = run_copies_[keeper.agent_idx];
    if (copy.session != session->second) {
      std::map<std::string, int64_t> there;
      if (agent.copies_term() == options_.term) {
        for (const protocol::RunFileCopy& file : agent.copies()) {
          there[file.name()] = file.bytes();
        }
      }
      copy = {session->second,
              std::make_unique<RunFiles>(options_.run_directory, there)};
    }
    for (protocol::RunFile& file : copy.files->Next()) {
      protocol::FromCoordinator message;
      *message.mutable_run_file() = std::move(file);
      server_->Send(session->second, message);
    }
  }
  // Messages sent a call ago have arrived, or their host is gone.
  for (const auto& [session, sequence] : copying_) {
    Acknowledge(session, sequence);
  }
  copying_ = std::exchange(uncopied_, {});
}

}  // namespace millrace
