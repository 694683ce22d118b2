#include "worker/cuda/nccl/nccl_rendezvous.h"

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// How often a wait for the store looks whether it was given up.
constexpr absl::Duration kAbortPoll = absl::Milliseconds(100);

template <typename Ranks>
std::string RanksToString(const Ranks& ranks, const char* separator) {
  return absl::StrJoin(ranks, separator, [](std::string* out, Rank rank) {
    absl::StrAppend(out, ToInt(rank));
  });
}

std::string ArrivalKey(Rank rank) {
  return absl::StrCat("nccl/here/", ToInt(rank));
}

bool GoesToNext(Lane lane) {
  return lane == Lane::kSendNext || lane == Lane::kReceivePrevious;
}

// The communicator of `lane` between `rank` and its neighbour; none at the end
// of the pipeline.
std::optional<NcclMembership> TransferMembership(const Layout& layout,
                                                 Rank rank, Lane lane) {
  const bool with_next = lane == Lane::kSendNext || lane == Lane::kReceiveNext;
  MeshCoordinates other = CoordinatesOf(layout, rank);
  other.pipeline += with_next ? 1 : -1;
  if (other.pipeline < 0 || other.pipeline == layout.pipeline) {
    return std::nullopt;
  }
  const Rank neighbour = RankOf(layout, other);
  NcclMembership membership{.group = Group::kPipeline, .transfer_lane = lane};
  membership.members = with_next ? std::vector<Rank>{rank, neighbour}
                                 : std::vector<Rank>{neighbour, rank};
  membership.index = with_next ? 0 : 1;
  return membership;
}

}  // namespace

std::string NcclMembership::Key() const {
  const std::string purpose =
      transfer_lane.has_value()
          ? GoesToNext(*transfer_lane) ? "to_next" : "to_previous"
          : GroupName(group);
  return absl::StrCat("nccl/", purpose, "/", RanksToString(members, "-"));
}

std::string NcclMembership::Name() const {
  const std::string purpose =
      transfer_lane.has_value()
          ? absl::StrCat("transfers to the ",
                         GoesToNext(*transfer_lane) ? "next" : "previous",
                         " stage")
          : absl::StrCat(GroupName(group), " group");
  return absl::StrCat(purpose, " (ranks ", RanksToString(members, ", "), ")");
}

Group ServingGroup(const Layout& layout, Group group) {
  return group == Group::kWorld && layout.data == layout.num_ranks() &&
                 layout.data_groups == 1
             ? Group::kData
             : group;
}

std::vector<NcclMembership> NcclMembershipsOf(const Layout& layout, Rank rank) {
  std::vector<NcclMembership> memberships;
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
    std::optional<NcclMembership> membership =
        TransferMembership(layout, rank, lane);
    if (membership.has_value()) memberships.push_back(*std::move(membership));
  }
  return memberships;
}

absl::Status NcclPatience::Check(const std::string& what) const {
  if (abort_requested)
    return absl::AbortedError(absl::StrCat(what, ": given up"));
  if (MonotonicNow() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": not done within ", absl::FormatDuration(timeout)));
}

absl::StatusOr<std::string> GetPatiently(const std::string& key,
                                         const std::string& what,
                                         RendezvousStore& store,
                                         const NcclPatience& patience) {
  while (true) {
    const absl::Duration left =
        std::max(absl::ZeroDuration(), patience.deadline - MonotonicNow());
    absl::StatusOr<std::string> value =
        store.Get(key, std::min(left, kAbortPoll));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    RETURN_IF_ERROR(patience.Check(what));
  }
}

absl::Status MeetMembers(const std::vector<NcclMembership>& memberships,
                         Rank rank, RendezvousStore& store,
                         const NcclPatience& patience) {
  RETURN_IF_ERROR(store.Set(ArrivalKey(rank), "here"));
  std::set<Rank> missing;
  for (const NcclMembership& membership : memberships) {
    missing.insert(membership.members.begin(), membership.members.end());
  }
  missing.erase(rank);
  const auto came = [&store](Rank other) {
    return store.Get(ArrivalKey(other), absl::ZeroDuration()).ok();
  };
  // Asks for all of them once: a store that answers later than it is asked
  // knows by the deadline who came.
  std::erase_if(missing, came);
  while (!missing.empty()) {
    const Rank next = *missing.begin();
    const absl::Status status =
        GetPatiently(ArrivalKey(next), "meet the other ranks", store, patience)
            .status();
    if (status.ok()) {
      missing.erase(next);
      continue;
    }
    if (!absl::IsDeadlineExceeded(status)) return status;
    std::erase_if(missing, came);
    for (const NcclMembership& membership : memberships) {
      std::vector<Rank> of_this;
      std::copy_if(membership.members.begin(), membership.members.end(),
                   std::back_inserter(of_this),
                   [&](Rank member) { return missing.contains(member); });
      if (of_this.empty()) continue;
      return absl::DeadlineExceededError(absl::StrCat(
          membership.Name(), ": rank ", ToInt(rank), " waited ",
          absl::FormatDuration(patience.timeout), " for ",
          of_this.size() == 1 ? "rank " : "ranks ",
          RanksToString(of_this, ", "), " to join; ",
          of_this.size() == 1 ? "it" : "they",
          " did not start, died, or cannot reach the coordinator"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ShareId(
    const NcclMembership& membership,
    absl::FunctionRef<absl::StatusOr<std::string>()> make_id,
    RendezvousStore& store, const NcclPatience& patience) {
  CHECK(membership.members.size() > 1);
  // In hex: a store's values are text.
  if (membership.index == 0) {
    std::string id;
    ASSIGN_OR_RETURN(id, make_id());
    RETURN_IF_ERROR(store.Set(membership.Key(), absl::BytesToHexString(id)));
    return id;
  }
  std::string hex;
  ASSIGN_OR_RETURN(
      hex,
      GetPatiently(membership.Key(),
                   absl::StrCat(membership.Name(), ": rank ",
                                ToInt(membership.members[membership.index]),
                                " waits for the id from rank ",
                                ToInt(membership.members[0])),
                   store, patience));
  return absl::HexStringToBytes(hex);
}

}  // namespace millrace
