#include "planner/program/membership.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

template <typename Ranks>
std::string JoinRanks(const Ranks& ranks, const char* separator) {
  return absl::StrJoin(ranks, separator, [](std::string* out, Rank rank) {
    absl::StrAppend(out, ToInt(rank));
  });
}

bool GoesToNext(Lane lane) {
  return lane == Lane::kSendNext || lane == Lane::kReceivePrevious;
}

// The communicator of `lane` between `rank` and its neighbour; none at the end
// of the pipeline.
std::optional<Membership> TransferMembership(const Layout& layout, Rank rank,
                                             Lane lane) {
  const bool with_next = lane == Lane::kSendNext || lane == Lane::kReceiveNext;
  MeshCoordinates other = CoordinatesOf(layout, rank);
  other.pipeline += with_next ? 1 : -1;
  if (other.pipeline < 0 || other.pipeline == layout.pipeline) {
    return std::nullopt;
  }
  const Rank neighbour = RankOf(layout, other);
  Membership membership{.group = Group::kPipeline, .transfer_lane = lane};
  membership.members = with_next ? std::vector<Rank>{rank, neighbour}
                                 : std::vector<Rank>{neighbour, rank};
  membership.index = with_next ? 0 : 1;
  return membership;
}

}  // namespace

std::string Membership::Key() const {
  const std::string purpose =
      transfer_lane.has_value()
          ? GoesToNext(*transfer_lane) ? "to_next" : "to_previous"
          : GroupName(group);
  return absl::StrCat(purpose, "/", JoinRanks(members, "-"));
}

std::string Membership::Name() const {
  const std::string purpose =
      transfer_lane.has_value()
          ? absl::StrCat("transfers to the ",
                         GoesToNext(*transfer_lane) ? "next" : "previous",
                         " stage")
          : absl::StrCat(GroupName(group), " group");
  return absl::StrCat(purpose, " (ranks ", JoinRanks(members, ", "), ")");
}

Group ServingGroup(const Layout& layout, Group group) {
  return group == Group::kWorld && layout.data == layout.num_ranks() &&
                 layout.data_groups == 1
             ? Group::kData
             : group;
}

std::vector<Membership> MembershipsOf(const Layout& layout, Rank rank) {
  std::vector<Membership> memberships;
  const auto add = [&](Group group) {
    if (GroupSize(layout, group) == 1) return;
    if (ServingGroup(layout, group) != group) return;
    memberships.push_back({.group = group,
                           .members = GroupMembers(layout, group, rank),
                           .index = GroupIndex(layout, group, rank)});
  };
  for (const Group group : CollectiveGroups(layout)) add(group);
  add(Group::kWorld);
  for (const Lane lane : {Lane::kSendNext, Lane::kReceivePrevious,
                          Lane::kSendPrevious, Lane::kReceiveNext}) {
    std::optional<Membership> membership =
        TransferMembership(layout, rank, lane);
    if (membership.has_value()) memberships.push_back(*std::move(membership));
  }
  return memberships;
}

}  // namespace millrace
