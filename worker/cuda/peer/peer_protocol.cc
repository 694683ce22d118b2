#include "worker/cuda/peer/peer_protocol.h"

#include "base/check.h"

namespace millrace {
namespace {

PeerAction Set(int32_t peer, PeerFlag flag) {
  return {.kind = PeerActionKind::kSet, .peer = peer, .flag = flag};
}
PeerAction Await(int32_t peer, PeerFlag flag) {
  return {.kind = PeerActionKind::kAwait, .peer = peer, .flag = flag};
}

// The peers of a rank, beginning behind it, so that no two ranks begin with the
// same one.
std::vector<int32_t> PeersOf(PeerGroup group) {
  CHECK(group.index >= 0 && group.index < group.size);
  std::vector<int32_t> peers;
  for (int32_t i = 1; i < group.size; ++i) {
    peers.push_back((group.index + i) % group.size);
  }
  return peers;
}

// Every rank sends to every other one. `copy_to` makes the copy for a peer.
template <typename CopyTo>
std::vector<PeerAction> Exchange(PeerGroup group, CopyTo copy_to) {
  const std::vector<int32_t> peers = PeersOf(group);
  std::vector<PeerAction> actions;
  for (const int32_t peer : peers) {
    actions.push_back(Set(peer, PeerFlag::kRoom));
  }
  for (const int32_t peer : peers) {
    actions.push_back(Await(peer, PeerFlag::kRoom));
    actions.push_back(copy_to(peer));
    actions.push_back(Set(peer, PeerFlag::kArrival));
  }
  for (const int32_t peer : peers) {
    actions.push_back(Await(peer, PeerFlag::kArrival));
  }
  return actions;
}

}  // namespace

std::vector<PeerAction> SendActions(int32_t peer, int64_t num_bytes) {
  return {Await(peer, PeerFlag::kRoom),
          {.kind = PeerActionKind::kCopy, .peer = peer, .num_bytes = num_bytes},
          Set(peer, PeerFlag::kArrival)};
}

std::vector<PeerAction> ReceiveActions(int32_t peer) {
  return {Set(peer, PeerFlag::kRoom), Await(peer, PeerFlag::kArrival)};
}

std::vector<PeerAction> AllGatherActions(PeerGroup group, int64_t shard_bytes) {
  return Exchange(group, [&](int32_t peer) {
    return PeerAction{.kind = PeerActionKind::kCopy,
                      .peer = peer,
                      .to_bytes = group.index * shard_bytes,
                      .num_bytes = shard_bytes};
  });
}

std::vector<PeerAction> ReduceScatterActions(PeerGroup group,
                                             int64_t shard_bytes) {
  std::vector<PeerAction> actions = Exchange(group, [&](int32_t peer) {
    return PeerAction{.kind = PeerActionKind::kCopy,
                      .peer = peer,
                      .from_bytes = peer * shard_bytes,
                      .to_bytes = ScratchSlot(peer, group.index) * shard_bytes,
                      .num_bytes = shard_bytes};
  });
  actions.push_back({.kind = PeerActionKind::kSum});
  return actions;
}

int32_t ScratchSlot(int32_t index, int32_t peer) {
  CHECK(index != peer);
  return peer < index ? peer : peer - 1;
}

}  // namespace millrace
