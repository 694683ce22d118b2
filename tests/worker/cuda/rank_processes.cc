#include "tests/worker/cuda/rank_processes.h"

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(1);
constexpr absl::Duration kMeetTimeout = absl::Seconds(60);

}  // namespace

int32_t CountDevices() {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    _exit(count);
  }
  int state = 0;
  CHECK(waitpid(pid, &state, 0) == pid);
  return WIFEXITED(state) ? WEXITSTATUS(state) : 0;
}

RankProcesses::RankProcesses(Sight sight) : sight_(sight) {
  std::string name = std::filesystem::temp_directory_path() / "ranks.XXXXXX";
  CHECK(mkdtemp(name.data()) != nullptr);
  folder_ = name;
}

RankProcesses::~RankProcesses() {
  while (!pids_.empty()) Kill(pids_.begin()->first);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string RankProcesses::ErrorPath(pid_t pid) const {
  return absl::StrCat(folder_, "/error.", pid);
}

void RankProcesses::Start(Rank rank, const Body& body) {
  CHECK(!pids_.contains(rank));
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid != 0) {
    pids_[rank] = pid;
    return;
  }
  // As agents start workers.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  if (sight_ == Sight::kOwnDevice) {
    setenv("CUDA_VISIBLE_DEVICES", absl::StrCat(ToInt(rank)).c_str(), 1);
  }
  const int32_t device = DeviceOf(rank);
  absl::Status status =
      CudaStatus(cudaSetDevice(device),
                 absl::StrCat("use device ", device, " of this machine"));
  if (status.ok()) status = body(rank);
  if (status.ok()) _exit(0);
  // Code and text, for Wait().
  const absl::Status written = WriteFileAtomically(
      ErrorPath(getpid()),
      absl::StrCat(static_cast<int>(status.code()), " ", status.message()));
  CHECK(written.ok()) << written;
  _exit(1);
}

void RankProcesses::Kill(Rank rank) {
  const pid_t pid = pids_.at(rank);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pids_.erase(rank);
}

absl::Status RankProcesses::Wait(Rank rank, absl::Duration timeout) {
  const pid_t pid = pids_.at(rank);
  const absl::Time deadline = MonotonicNow() + timeout;
  int state = 0;
  while (waitpid(pid, &state, WNOHANG) == 0) {
    if (MonotonicNow() >= deadline) {
      Kill(rank);
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", ToInt(rank), " did not end within ",
                       absl::FormatDuration(timeout)));
    }
    absl::SleepFor(kPoll);
  }
  pids_.erase(rank);
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return absl::OkStatus();
  const absl::StatusOr<std::string> error = ReadFile(ErrorPath(pid));
  if (!error.ok()) {
    return absl::UnavailableError(
        absl::StrCat("rank ", ToInt(rank), " ended in state ", state));
  }
  const size_t blank = error->find(' ');
  int code = 0;
  CHECK(absl::SimpleAtoi(error->substr(0, blank), &code));
  return absl::Status(static_cast<absl::StatusCode>(code),
                      error->substr(blank + 1));
}

absl::Status RankProcesses::RunAll(int32_t num_ranks, absl::Duration timeout,
                                   const Body& body) {
  for (int32_t rank = 0; rank < num_ranks; ++rank) Start(Rank{rank}, body);
  absl::Status first;
  const absl::Time deadline = MonotonicNow() + timeout;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    first.Update(Wait(Rank{rank}, deadline - MonotonicNow()));
  }
  return first;
}

absl::Status Meet(RendezvousStore& store, const std::string& name, Rank rank,
                  int32_t num_ranks) {
  const auto key = [&name](int32_t other) {
    return absl::StrCat("meet/", name, "/", other);
  };
  RETURN_IF_ERROR(store.Set(key(ToInt(rank)), "here"));
  for (int32_t other = 0; other < num_ranks; ++other) {
    RETURN_IF_ERROR(store.Get(key(other), kMeetTimeout).status());
  }
  return absl::OkStatus();
}

}  // namespace millrace
