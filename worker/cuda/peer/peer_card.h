// The data that a rank tells the others so that they can write into its memory.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_CARD_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_CARD_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/program/program.h"

namespace millrace {

// The place of a buffer, counted from the start of its arena.
struct PeerPlace {
  Arena arena;
  int64_t offset_bytes;
  int64_t num_bytes;
  friend bool operator==(const PeerPlace&, const PeerPlace&) = default;
};

// Outputs of the receives of one lane of one Program, in their order.
using ReceivePlaces = std::vector<PeerPlace>;

struct PeerCard {
  std::string host;  // Equal on ranks that one operating system runs.
  // Handles of device memory (peer_memory.h), any bytes. Empty where peers
  // write nothing: to map an arena takes a good part of a recovery.
  std::string persistent_arena;
  std::string step_arena;
  std::string scratch;
  std::string words;  // As in shared_words.h.
  // Indexed by Program, in an order that all ranks share, and lane.
  std::map<std::pair<int32_t, Lane>, ReceivePlaces> receives;
  friend bool operator==(const PeerCard&, const PeerCard&) = default;
};

std::string PeerCardToString(const PeerCard& card);
absl::StatusOr<PeerCard> PeerCardFromString(absl::string_view text);

// The places of all lanes of receives that `program` uses.
std::map<Lane, ReceivePlaces> ReceivePlacesOf(const Program& program);

// The lane at the other end: sends to the next stage meet receives from the
// previous one. Must be a lane of transfers.
Lane MatchingLane(Lane lane);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_CARD_H_
