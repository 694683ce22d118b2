#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace {

absl::Status ParallelFor(int64_t count, int num_threads,
                         const std::function<absl::Status(int64_t)>& work) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;  // Guards what follows.
  int64_t lowest = count;
  absl::Status error;
  // Indices are handed out in order, so that all below a failed one are begun.
  auto take_turns = [&] {
    while (!failed) {
      const int64_t i = next++;
      if (i >= count) return;
      absl::Status status = work(i);
      if (status.ok()) continue;
      failed = true;
      std::lock_guard<std::mutex> lock(mutex);
      if (i >= lowest) continue;
      lowest = i;
      error = std::move(status);
    }
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min<int64_t>(num_threads, count); ++i) {
    others.emplace_back(take_turns);
  }
  take_turns();
  for (std::thread& thread : others) thread.join();
  return error;
}

absl::Status CheckNotStopped(const std::stop_token& stop) {
  return stop.stop_requested() ? absl::CancelledError("stopped")
                               : absl::OkStatus();
}

namespace {

int NumCoresUpTo(int most) {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1,
                    most);
}

}  // namespace

int NumCopyThreads() { return NumCoresUpTo(8); }

int NumComputeThreads() { return NumCoresUpTo(64); }

}  // namespace millrace
