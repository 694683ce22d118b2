// Turns the actions of peer_protocol.h for one instruction into calls on a
// stream, with actual addresses in this rank's and its peers' memory.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_CALLS_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_CALLS_H_

#include <cstddef>
#include <map>
#include <span>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/ids.h"
#include "planner/program/program.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/peer/peer_card.h"
#include "worker/cuda/peer/peer_mailbox.h"
#include "worker/cuda/peer/peer_memory.h"
#include "worker/cuda/peer/peer_route.h"
#include "worker/cuda/peer/shared_words.h"

namespace millrace {

// The memory of one peer that this rank writes into, mapped here.
struct ReachedPeer {
  PeerCard card;
  PeerMemory persistent_arena;
  PeerMemory step_arena;
  PeerMemory scratch;
  SharedWords words;

  // Must be mapped.
  std::byte* Base(Arena arena) const {
    const PeerMemory& memory =
        arena == Arena::kPersistent ? persistent_arena : step_arena;
    CHECK(memory.data() != nullptr);
    return memory.data();
  }
};

// Reaches a peer from the current device. Returns the errors of PeerMemory and
// SharedWords.
absl::StatusOr<ReachedPeer> ReachPeer(PeerCard card);

// All borrowed; mailbox and peers for the lifetime of what is bound.
struct PeerReach {
  Rank rank;
  // In the order that PeerCard::receives uses for their numbers.
  std::span<const Program* const> programs;
  PeerMailbox* mailbox;
  const std::map<Rank, ReachedPeer>* peers;
};

// All of the route's members are reached.
absl::StatusOr<CudaOp> BindPeerCalls(const PeerReach& reach,
                                     const PeerRoute& route,
                                     const CudaOpContext& context,
                                     const Instruction& instruction);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_CALLS_H_
