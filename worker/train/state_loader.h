// Loads the state that training goes on from while the rest of a trainer is
// made: it needs the memory of the state and nothing of the peers.

#ifndef MILLRACE_WORKER_TRAIN_STATE_LOADER_H_
#define MILLRACE_WORKER_TRAIN_STATE_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/load_target.h"
#include "fault/training_state.h"

namespace millrace {

// A training state to be loaded from files or from other processes' memory.
struct LoadableState {
  std::vector<StatePiece> pieces;
  // In whose memory the pieces lie; null: the host's. Must be gone before the
  // trainer.
  std::unique_ptr<LoadTarget> target;
};

struct StateLoader {
  // Fills all pieces, on a thread of its own. Returns the steps that the state
  // has completed. Writes into the pieces only until it returns.
  std::function<absl::StatusOr<int64_t>(const LoadableState& state)> load;
  // Makes load() and the making of communicators end soon. Thread-safe. Called
  // after the first error of either.
  std::function<void()> end;
};

// Fills `state` on a thread while the caller's does `work`, which must not
// touch the state. Returns, once both have ended, the steps that the state has
// completed, or the error that came first.
absl::StatusOr<int64_t> LoadWhile(const StateLoader& loader,
                                  const LoadableState& state,
                                  absl::FunctionRef<absl::Status()> work);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_STATE_LOADER_H_
