// Compares what data-parallel replicas hold alike. Their states are equal bit
// for bit after every step, so a difference is a fault of some device or
// memory, and it spreads to all replicas with the next step's gradients.

#ifndef MILLRACE_FAULT_REPLICA_CHECK_H_
#define MILLRACE_FAULT_REPLICA_CHECK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "fault/training_state.h"
#include "planner/layout/layout.h"

namespace millrace {

// Whether ranks hold copies of what others hold between steps. From ZeRO 1 on
// only a rank's own slices are up to date then, of which the other groups of
// data ranks have copies (hybrid sharding), if there are some.
bool HasReplicas(const Layout& layout);

// The pieces of a rank's state that its replicas hold alike.
std::vector<StatePiece> ReplicatedPieces(const std::vector<StatePiece>& state);

// Whether a rank keeps the parameters that it gathered in the newest step until
// the next one, as under ZeRO 1 and 2. Their owners have updated them since, so
// they are compared with hashes that the owners made before that step. This
// checks what the collectives brought.
bool HasGathered(const Layout& layout);

struct ReplicaVerdict {
  bool agree = true;
  // Ranks that differ from a majority of their replicas.
  std::vector<Rank> minority;
  // Ranks of groups without a majority, as of two replicas: any may be wrong.
  std::vector<Rank> undecided;
};

// The hash that more than half of them are; absent if there is none.
std::optional<uint64_t> MajorityOf(absl::Span<const uint64_t> hashes);

// `hashes`: by rank, of its ReplicatedPieces().
ReplicaVerdict CompareReplicas(const Layout& layout,
                               absl::Span<const uint64_t> hashes);

// `hashes`: by rank, of each slice of the parameters that it computed with in
// one step. Slices that it gathered are hashed after the step, its own before.
ReplicaVerdict CompareGathered(const Layout& layout,
                               absl::Span<const std::vector<uint64_t>> hashes);

}  // namespace millrace

#endif  // MILLRACE_FAULT_REPLICA_CHECK_H_
