// Moves tensors between ranks of one host without a multiprocessor: each rank's
// copy engine writes into its peers' memory, and flags say when that may happen
// and when it has happened. Every pair of ranks, direction and lane has two
// flags. Each flag is a word in the memory of the rank that awaits it:
//
//   receiver  the buffer is free: set kRoom  . . . . . . . .  await kArrival
//   sender    the data is there:  await kRoom, copy, set kArrival
//
// A rank that awaited a flag resets it before it goes on. Only a rank that saw
// a later event sets the flag again: the receiver sets kRoom again after
// kArrival, which the sender set after it had reset kRoom, and the same holds
// for kArrival. So a flag never stands for two calls, calls need no count, and
// a CUDA graph that holds the calls can be replayed. Sender and receiver of a
// call are matched only by the order of calls on their lanes, which is the same
// on both ends.

#ifndef MILLRACE_WORKER_CUDA_PEER_PEER_PROTOCOL_H_
#define MILLRACE_WORKER_CUDA_PEER_PEER_PROTOCOL_H_

#include <cstdint>
#include <vector>

namespace millrace {

enum class PeerFlag : uint8_t { kRoom, kArrival };
inline constexpr int kNumPeerFlags = 2;

enum class PeerActionKind : uint8_t {
  kSet,    // The peer's flag to one; after all earlier copies are done.
  kAwait,  // The own flag that the peer sets, then back to zero.
  kCopy,   // Into the peer's memory.
  kSum,    // The own part and all that peers copied here.
};

// One thing that a rank's stream does; in order.
struct PeerAction {
  PeerActionKind kind;
  int32_t peer = 0;                 // Its index in the group.
  PeerFlag flag = PeerFlag::kRoom;  // For kSet and kAwait.
  // For kCopy: from the call's input here to the call's output at the peer, or
  // for a reduce-scatter to the peer's scratch memory.
  int64_t from_bytes = 0;
  int64_t to_bytes = 0;
  int64_t num_bytes = 0;
  friend bool operator==(const PeerAction&, const PeerAction&) = default;
};

std::vector<PeerAction> SendActions(int32_t peer, int64_t num_bytes);
std::vector<PeerAction> ReceiveActions(int32_t peer);

// The steps of the rank at `index` among `size`. All-gather: the input is the
// rank's shard of `shard_bytes`, the output is the full tensor, whose own part
// another call writes. Reduce-scatter: the input is the full tensor, and
// scratch memory holds size - 1 shards in the peers' order.
struct PeerGroup {
  int32_t index;
  int32_t size;
};
std::vector<PeerAction> AllGatherActions(PeerGroup group, int64_t shard_bytes);
std::vector<PeerAction> ReduceScatterActions(PeerGroup group,
                                             int64_t shard_bytes);

// Returns the place of a peer's shard in the scratch memory of the rank at
// `index`, in shards.
int32_t ScratchSlot(int32_t index, int32_t peer);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_PEER_PROTOCOL_H_
