// Where a job's checkpoints lie: in a folder that all hosts see, or spread over
// the hosts' own disks. Part of JobRunner (job_runner.h).

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/job_runner.h"
#include "coordinator/resume.h"

namespace millrace {

std::string JobRunner::CheckpointDirectory() const {
  return job_.checkpoint.directory.empty()
             ? options_.run_directory + "/checkpoints"
             : job_.checkpoint.directory;
}

bool JobRunner::NeedsCheckpoints() const {
  return !options_.profile_only && UsesCheckpoints(job_);
}

bool JobRunner::AllSeeCheckpoints() const {
  if (options_.num_agents == 1) return true;
  for (const auto& [agent_idx, agent] : agents_) {
    if (state_->TakesPart(agent_idx) && !agent.sees_checkpoints()) return false;
  }
  return true;
}

bool JobRunner::CanCheckpoint() const {
  return AllSeeCheckpoints() || !checkpoint_folders_.hosts.empty();
}

protocol::FileHost JobRunner::FileHostOf(int32_t agent_idx) const {
  protocol::FileHost host;
  host.set_host(agents_.at(agent_idx).host());
  host.set_address(AddressOfHost(agent_idx));
  host.set_port(agents_.at(agent_idx).file_port());
  return host;
}

std::optional<FolderSearch> JobRunner::SearchForFolders() const {
  if (AllSeeCheckpoints()) return std::nullopt;
  FolderSearch search = {.directory = CheckpointDirectory(),
                         .secret = options_.secret,
                         .probe = probe_,
                         .term = options_.term};
  // Agents say whether they see the folder of agent 0's host.
  const auto own = agents_.find(options_.own_agent);
  const bool is_of_first =
      own != agents_.end() && own->second.sees_checkpoints();
  for (const auto& [agent_idx, agent] : agents_) {
    if (!state_->TakesPart(agent_idx)) continue;
    const bool is_own = agent_idx == options_.own_agent;
    search.candidates.insert(
        is_own ? search.candidates.begin() : search.candidates.end(),
        {.agent_idx = agent_idx,
         .host = FileHostOf(agent_idx),
         .sees_folder_of_first = is_of_first && agent.sees_checkpoints()});
  }
  return search;
}

absl::StatusOr<CheckpointFolders> JobRunner::FindFolders(
    const FolderSearch& search) {
  absl::StatusOr<CheckpointFolders> found = FindCheckpointFolders(search);
  if (found.ok()) return found;
  return absl::Status(
      found.status().code(),
      absl::StrCat(
          "the hosts share no folder for checkpoints, and not all of "
          "them can keep their part in ",
          search.directory, ": ", found.status().message(),
          "; set checkpoint.directory to a folder that every host can "
          "write, or train without checkpoints by checkpoint: "
          "{at_end: false, interval_steps: 0, resume: none}: a failure "
          "then starts again from the first step"));
}

SideWork::Work JobRunner::FindFoldersAgain() {
  const std::optional<FolderSearch> search = SearchForFolders();
  if (!search.has_value()) return nullptr;
  return [this, search = *search,
          generation = state_->generation()]() -> SideWork::Then {
    return [this, generation, found = FindFolders(search)] {
      // Without them, commits say what is amiss.
      if (found.ok() && generation == state_->generation()) {
        checkpoint_folders_ = *found;
      }
    };
  };
}

std::shared_ptr<FileSystem> JobRunner::FilesOf(
    const CheckpointFolders& folders) const {
  if (folders.files != nullptr) return folders.files;
  if (options_.checkpoint_files != nullptr) {
    return BorrowedFiles(options_.checkpoint_files);
  }
  return stored_files_;
}

std::vector<std::string> JobRunner::TakeDamagedCopies(
    const CheckpointFolders& folders) {
  return folders.files == nullptr ? std::vector<std::string>()
                                  : folders.files->TakeDamagedCopies();
}

void JobRunner::ReportDamagedCopies(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    // Ranks tell of copies that this process or another rank has met, too.
    const std::string copy = line.substr(0, line.find(" is damaged"));
    if (!damaged_copies_.insert(copy).second) continue;
    progress_->Line(line);
    output_->Event({.event = "checkpoint_copy_damaged",
                    .generation = ToInt(state_->generation()),
                    .detail = line});
  }
}

void JobRunner::AddCheckpointFolders(const absl::Status& found,
                                     protocol::StartGeneration* start) {
  // Without them a job that needs none trains all the same.
  if (!found.ok()) {
    output_->Event({.event = "checkpoint_failed",
                    .generation = ToInt(state_->generation()),
                    .detail = std::string(found.message())});
    if (NeedsCheckpoints()) progress_->Line(std::string(found.message()));
    return;
  }
  start->set_checkpoint_directory(CheckpointDirectory());
  if (checkpoint_folders_.hosts.size() < 2) return;
  for (const protocol::FileHost& host : checkpoint_folders_.hosts) {
    *start->add_checkpoint_hosts() = host;
  }
}

}  // namespace millrace
