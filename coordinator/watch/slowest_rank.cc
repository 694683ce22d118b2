#include "coordinator/watch/slowest_rank.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "coordinator/report/report_summary.h"

namespace millrace {
namespace {

constexpr std::array<absl::string_view, 5> kOwnParts = {
    "compute_s", "data_s", "checkpoint_s", "validation_s", "other_s"};

bool IsOwn(size_t category) {
  return std::find(kOwnParts.begin(), kOwnParts.end(),
                   kTimeCategories[category].key) != kOwnParts.end();
}

double OwnSeconds(const WatchedRank& rank) {
  double sum = 0;
  for (size_t i = 0; i < rank.seconds.size(); ++i) {
    if (IsOwn(i)) sum += rank.seconds[i];
  }
  return sum;
}

double LowerMedian(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The own part that is furthest above the median of `like`, as a share of all
// that the median rank works.
std::string WhyLonger(const WatchedRank& rank,
                      const std::vector<const WatchedRank*>& like,
                      double median_own) {
  std::string why;
  double most = 0;
  for (size_t i = 0; i < rank.seconds.size(); ++i) {
    if (!IsOwn(i)) continue;
    std::vector<double> values;
    for (const WatchedRank* other : like) values.push_back(other->seconds[i]);
    const double excess =
        (rank.seconds[i] - LowerMedian(std::move(values))) / median_own;
    if (excess <= most) continue;
    most = excess;
    why =
        absl::StrFormat("%s +%.0f %%", kTimeCategories[i].label, 100 * excess);
  }
  return why;
}

}  // namespace

std::optional<SlowestRank> FindSlowestRank(
    const std::vector<WatchedRank>& ranks) {
  std::map<int64_t, std::vector<const WatchedRank*>> by_stage;
  for (const WatchedRank& rank : ranks) {
    if (rank.seconds.size() == kTimeCategories.size()) {
      by_stage[rank.stage].push_back(&rank);
    }
  }
  std::optional<SlowestRank> slowest;
  for (const auto& [stage, like] : by_stage) {
    if (like.size() < 2) continue;
    std::vector<double> own;
    for (const WatchedRank* rank : like) own.push_back(OwnSeconds(*rank));
    // The lower one, so that of two ranks the slower is held to the faster.
    const double median = LowerMedian(own);
    if (median <= 0) continue;
    for (size_t i = 0; i < like.size(); ++i) {
      const double excess = own[i] / median - 1;
      if (excess < kNoticed ||
          (slowest.has_value() && excess <= slowest->excess)) {
        continue;
      }
      slowest = {.rank = like[i]->rank,
                 .host = like[i]->host,
                 .excess = excess,
                 .why = WhyLonger(*like[i], like, median)};
    }
  }
  return slowest;
}

}  // namespace millrace
