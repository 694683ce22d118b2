// Finds who takes part in an instruction that copy engines do, and how many
// bytes go from one to the other.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_ROUTE_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_ROUTE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"

namespace millrace {

struct PeerRoute {
  std::vector<Rank> members;
  int32_t index;   // This rank's index among them.
  Lane lane;       // The lane of the instruction here,
  Lane peer_lane;  // and at the others.
};

// The route of `instruction` for `rank`. Nothing if `layout` does not give this
// instruction to copy engines.
std::optional<PeerRoute> PeerRouteOf(const Layout& layout, Rank rank,
                                     const Instruction& instruction);

// One member's part of a collective of `size` members.
int64_t ShardBytes(const CollectiveAttributes& attributes, size_t size);

// The ranks that exchange tensors with `rank` through copy engines in any of
// `programs`.
std::set<Rank> RanksToReach(const Layout& layout, Rank rank,
                            std::span<const Program* const> programs);

// The memory of a rank that its peers write into.
struct WrittenByPeers {
  bool persistent_arena = false;
  bool step_arena = false;
  bool scratch = false;
  friend bool operator==(const WrittenByPeers&,
                         const WrittenByPeers&) = default;
};

// The memory of `rank` that peers write into in any of `programs`, its own.
WrittenByPeers WrittenMemory(const Layout& layout, Rank rank,
                             std::span<const Program* const> programs);

// Returns for each lane the bytes that the rank's peers copy to it before they
// are summed.
std::array<int64_t, kNumLanes> ScratchBytesOf(
    const Layout& layout, Rank rank, std::span<const Program* const> programs);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_ROUTE_H_
