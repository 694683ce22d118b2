#include "worker/cuda/peer/peer_route.h"

#include <algorithm>
#include <variant>

#include "base/check.h"
#include "planner/program/copy_engines.h"
#include "worker/cuda/peer/peer_card.h"

namespace millrace {

std::optional<PeerRoute> PeerRouteOf(const Layout& layout, Rank rank,
                                     const Instruction& in) {
  if (!CopyEnginesCarry(layout, in.kind, in.attributes)) return std::nullopt;
  if (IsTransfer(in.kind)) {
    MeshCoordinates other = CoordinatesOf(layout, rank);
    const bool with_next =
        in.lane == Lane::kSendNext || in.lane == Lane::kReceiveNext;
    other.pipeline += with_next ? 1 : -1;
    return PeerRoute{.members = {rank, RankOf(layout, other)},
                     .index = 0,
                     .lane = in.lane,
                     .peer_lane = MatchingLane(in.lane)};
  }
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  return PeerRoute{.members = GroupMembers(layout, attributes.group, rank),
                   .index = GroupIndex(layout, attributes.group, rank),
                   .lane = in.lane,
                   .peer_lane = in.lane};
}

int64_t ShardBytes(const CollectiveAttributes& attributes, size_t size) {
  const auto members = static_cast<int64_t>(size);
  CHECK(attributes.num_elements % members == 0);
  return attributes.num_elements / members * DTypeBytes(attributes.dtype);
}

std::set<Rank> RanksToReach(const Layout& layout, Rank rank,
                            std::span<const Program* const> programs) {
  std::set<Rank> ranks;
  for (const Program* program : programs) {
    for (const Instruction& in : program->instructions) {
      const std::optional<PeerRoute> route = PeerRouteOf(layout, rank, in);
      if (!route.has_value()) continue;
      ranks.insert(route->members.begin(), route->members.end());
    }
  }
  ranks.erase(rank);
  return ranks;
}

WrittenByPeers WrittenMemory(const Layout& layout, Rank rank,
                             std::span<const Program* const> programs) {
  WrittenByPeers written;
  for (const Program* program : programs) {
    for (const Instruction& in : program->instructions) {
      if (in.kind == OpKind::kSend ||
          !PeerRouteOf(layout, rank, in).has_value()) {
        continue;
      }
      if (in.kind == OpKind::kReduceScatter) {
        written.scratch = true;
        continue;
      }
      const Arena arena = program->buffers[in.outputs.at(0)].arena;
      (arena == Arena::kPersistent ? written.persistent_arena
                                   : written.step_arena) = true;
    }
  }
  return written;
}

std::array<int64_t, kNumLanes> ScratchBytesOf(
    const Layout& layout, Rank rank, std::span<const Program* const> programs) {
  std::array<int64_t, kNumLanes> scratch_bytes = {};
  for (const Program* program : programs) {
    for (const Instruction& in : program->instructions) {
      if (in.kind != OpKind::kReduceScatter) continue;
      const std::optional<PeerRoute> route = PeerRouteOf(layout, rank, in);
      if (!route.has_value()) continue;
      const size_t size = route->members.size();
      int64_t& bytes = scratch_bytes[static_cast<int>(in.lane)];
      bytes = std::max(
          bytes,
          static_cast<int64_t>(size - 1) *
              ShardBytes(std::get<CollectiveAttributes>(in.attributes), size));
    }
  }
  return scratch_bytes;
}

}  // namespace millrace
