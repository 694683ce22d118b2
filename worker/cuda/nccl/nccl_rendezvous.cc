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

std::string IdKey(const Membership& membership) {
  return absl::StrCat("nccl/", membership.Key());
}

}  // namespace

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

absl::Status MeetMembers(const std::vector<Membership>& memberships, Rank rank,
                         RendezvousStore& store, const NcclPatience& patience) {
  RETURN_IF_ERROR(store.Set(ArrivalKey(rank), "here"));
  std::set<Rank> missing;
  for (const Membership& membership : memberships) {
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
    for (const Membership& membership : memberships) {
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
    const Membership& membership,
    absl::FunctionRef<absl::StatusOr<std::string>()> make_id,
    RendezvousStore& store, const NcclPatience& patience) {
  CHECK(membership.members.size() > 1);
  // In hex: a store's values are text.
  if (membership.index == 0) {
    std::string id;
    ASSIGN_OR_RETURN(id, make_id());
    RETURN_IF_ERROR(store.Set(IdKey(membership), absl::BytesToHexString(id)));
    return id;
  }
  std::string hex;
  ASSIGN_OR_RETURN(
      hex,
      GetPatiently(IdKey(membership),
                   absl::StrCat(membership.Name(), ": rank ",
                                ToInt(membership.members[membership.index]),
                                " waits for the id from rank ",
                                ToInt(membership.members[0])),
                   store, patience));
  return absl::HexStringToBytes(hex);
}

}  // namespace millrace
