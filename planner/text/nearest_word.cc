#include "planner/text/nearest_word.h"

#include <algorithm>
#include <vector>

namespace millrace {

// Computes the "optimal string alignment" distance, one row of the table at a
// time.
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> NearestWord(absl::string_view word,
                                       std::span<const std::string> known) {
  const std::string* nearest = nullptr;
  int distance = 0;
  for (const std::string& candidate : known) {
    const int candidate_distance = EditDistance(word, candidate);
    if (nearest == nullptr || candidate_distance < distance) {
      nearest = &candidate;
      distance = candidate_distance;
    }
  }
  if (nearest == nullptr) return std::nullopt;
  const int allowed = std::max(1, static_cast<int>(nearest->size()) / 3);
  if (distance > allowed) return std::nullopt;
  return *nearest;
}

}  // namespace millrace
