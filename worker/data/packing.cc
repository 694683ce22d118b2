#include "worker/data/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "worker/data/dataset.h"

namespace millrace {

std::vector<PackedSequence> PackSamples(const std::vector<int64_t>& lengths,
                                        int64_t capacity, uint64_t seed) {
  const auto num_samples = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> order(lengths.size());
  for (int64_t i = 0; i < num_samples; ++i) {
    order[static_cast<size_t>(i)] = PermutedIndex(seed, num_samples, i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<PackedSequence> sequences;
  std::map<int64_t, std::vector<size_t>> open;  // Sequences by room.
  for (const int64_t sample : order) {
    const int64_t length = lengths[static_cast<size_t>(sample)];
    CHECK(length >= 1 && length <= capacity) << length;
    size_t idx = sequences.size();
    if (const auto fit = open.lower_bound(length); fit != open.end()) {
      idx = fit->second.back();
      fit->second.pop_back();
      if (fit->second.empty()) open.erase(fit);
    } else {
      sequences.emplace_back();
    }
    PackedSequence& sequence = sequences[idx];
    sequence.samples.push_back(sample);
    sequence.length += length;
    if (sequence.length < capacity) {
      open[capacity - sequence.length].push_back(idx);
    }
  }
  return sequences;
}

}  // namespace millrace
