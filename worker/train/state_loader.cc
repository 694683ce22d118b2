#include "worker/train/state_loader.h"

#include <atomic>
#include <future>
#include <new>

namespace millrace {
namespace {

absl::StatusOr<int64_t> Load(const StateLoader& loader,
                             const LoadableState& state) {
  try {
    return loader.load(state);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "the host's memory does not suffice to load the state");
  }
}

}  // namespace

absl::StatusOr<int64_t> LoadWhile(const StateLoader& loader,
                                  const LoadableState& state,
                                  absl::FunctionRef<absl::Status()> work) {
  std::atomic<bool> failed = false;
  // Notes an error; true if it is the first.
  const auto fails_first = [&](const absl::Status& status) {
    if (status.ok() || failed.exchange(true)) return false;
    loader.end();
    return true;
  };
  bool load_failed_first = false;
  // Whatever way this function is left, the thread ends first.
  std::future<absl::StatusOr<int64_t>> loading =
      std::async(std::launch::async, [&] {
        absl::StatusOr<int64_t> steps = Load(loader, state);
        load_failed_first = fails_first(steps.status());
        return steps;
      });
  const absl::Status worked = work();
  fails_first(worked);
  absl::StatusOr<int64_t> steps = loading.get();
  if (worked.ok() || load_failed_first) return steps;
  return worked;
}

}  // namespace millrace
