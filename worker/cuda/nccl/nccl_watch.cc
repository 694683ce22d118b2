#include "worker/cuda/nccl/nccl_watch.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/layout/layout.h"

namespace millrace {
namespace {

std::string OverrunKey(Rank rank) {
  return absl::StrCat("nccl/overrun/", ToInt(rank));
}

}  // namespace

std::string ProgressToString(const RankProgress& progress) {
  return absl::StrCat(progress.step, " ",
                      absl::StrJoin(progress.completed, " "));
}

absl::StatusOr<RankProgress> ProgressFromString(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  RankProgress progress;
  bool valid = words.size() == kNumLanes + 1 &&
               absl::SimpleAtoi(words[0], &progress.step);
  for (int lane = 0; valid && lane < kNumLanes; ++lane) {
    valid = absl::SimpleAtoi(words[lane + 1], &progress.completed[lane]);
  }
  if (valid) return progress;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a rank's progress: a step and ",
                   kNumLanes, " counts; do all ranks run the same millrace?"));
}

absl::Status ExplainOverrun(absl::Span<const Program* const> programs,
                            Rank rank, const RankProgress& progress,
                            RendezvousStore& store, absl::Duration patience) {
  CHECK(!programs.empty());
  RETURN_IF_ERROR(store.Set(OverrunKey(rank), ProgressToString(progress)));
  const absl::Time deadline = MonotonicNow() + patience;
  std::vector<std::optional<RankProgress>> all(programs[0]->layout.num_ranks());
  all[ToInt(rank)] = progress;
  // Asks for all of them once, so that a silent rank does not use up the time
  // of those after it.
  for (size_t i = 0; i < all.size(); ++i) {
    const Rank other{static_cast<int32_t>(i)};
    store.Get(OverrunKey(other), absl::ZeroDuration()).IgnoreError();
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].has_value()) continue;
    const absl::StatusOr<std::string> text =
        store.Get(OverrunKey(Rank{static_cast<int32_t>(i)}),
                  std::max(absl::ZeroDuration(), deadline - MonotonicNow()));
    if (absl::IsDeadlineExceeded(text.status())) continue;
    RETURN_IF_ERROR(text.status());
    RankProgress other;
    ASSIGN_OR_RETURN(other, ProgressFromString(*text));
    all[i] = other;
  }
  const std::vector<StuckCall> stuck = FindStuckCalls(programs, all);
  if (stuck.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "step ", progress.step, " of rank ", ToInt(rank),
        " overran, but no rank waits in a collective or transfer"));
  }
  return absl::DeadlineExceededError(
      absl::StrJoin(stuck, ". ", [](std::string* out, const StuckCall& call) {
        absl::StrAppend(out, call.ToString());
      }));
}

}  // namespace millrace
