#include "planner/fleet/uneven_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace millrace {
namespace {

// Times that differ by less are equal.
constexpr double kSplitRounding = 1e-12;

// Layers that a stage runs within `limit_s`.
int64_t MostWithin(const StageSpeed& stage, double limit_s) {
  const double layers =
      (limit_s - stage.end_s) / stage.seconds_per_layer + kSplitRounding;
  return std::min<int64_t>(stage.most_layers,
                           static_cast<int64_t>(std::floor(layers)));
}

class LayerSplit {
 public:
  LayerSplit(std::span<const StageSpeed> stages, int64_t num_layers)
      : stages_(stages), num_layers_(num_layers), by_speed_(stages.size()) {
    std::iota(by_speed_.begin(), by_speed_.end(), size_t{0});
    std::stable_sort(
        by_speed_.begin(), by_speed_.end(), [&](size_t a, size_t b) {
          return stages[a].seconds_per_layer < stages[b].seconds_per_layer;
        });
  }

  // Every time that a stage may take, ascending.
  std::vector<double> Limits() const {
    std::vector<double> limits;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const StageSpeed& stage = stages_[i];
      const bool is_known = std::any_of(
          stages_.begin(), stages_.begin() + i, [&](const StageSpeed& other) {
            return other.seconds_per_layer == stage.seconds_per_layer &&
                   other.end_s == stage.end_s &&
                   other.most_layers >= stage.most_layers;
          });
      if (is_known) continue;
      for (int64_t n = 1; n <= std::min(stage.most_layers, num_layers_); ++n) {
        limits.push_back(stage.end_s +
                         static_cast<double>(n) * stage.seconds_per_layer);
      }
    }
    std::sort(limits.begin(), limits.end());
    return limits;
  }

  // Seconds of all stages together, as few as can be with none beyond the
  // limit; infinite where that cannot be.
  double LeastSum(double limit_s) const {
    double sum_s = 0;
    auto left = num_layers_ - static_cast<int64_t>(stages_.size());
    if (left < 0) return std::numeric_limits<double>::infinity();
    for (const size_t i : by_speed_) {
      const int64_t most = MostWithin(stages_[i], limit_s);
      if (most < 1) return std::numeric_limits<double>::infinity();
      const int64_t more = std::min(left, most - 1);
      left -= more;
      sum_s += stages_[i].end_s +
               static_cast<double>(1 + more) * stages_[i].seconds_per_layer;
    }
    return left > 0 ? std::numeric_limits<double>::infinity() : sum_s;
  }

  // The layers of LeastSum(), those of stages of one speed evened out.
  std::vector<int64_t> LayersWithin(double limit_s) const {
    std::vector<int64_t> layers(stages_.size(), 1);
    auto left = num_layers_ - static_cast<int64_t>(stages_.size());
    for (size_t begin = 0; begin < by_speed_.size();) {
      const double speed = stages_[by_speed_[begin]].seconds_per_layer;
      size_t end = begin;
      while (end < by_speed_.size() &&
             stages_[by_speed_[end]].seconds_per_layer == speed) {
        ++end;
      }
      left = FillAlike(begin, end, limit_s, left, &layers);
      begin = end;
    }
    CHECK(left == 0) << left;
    return layers;
  }

 private:
  // Gives layers, one at a time, to the stage that is done first with it;
  // returns what is left.
  int64_t FillAlike(size_t begin, size_t end, double limit_s, int64_t left,
                    std::vector<int64_t>* layers) const {
    while (left > 0) {
      size_t first = end;
      double first_s = 0;
      for (size_t i = begin; i < end; ++i) {
        const StageSpeed& stage = stages_[by_speed_[i]];
        const int64_t count = (*layers)[by_speed_[i]];
        if (count >= MostWithin(stage, limit_s)) continue;
        const double seconds = stage.end_s + static_cast<double>(count + 1) *
                                                 stage.seconds_per_layer;
        if (first < end && seconds >= first_s) continue;
        first = i;
        first_s = seconds;
      }
      if (first == end) break;
      ++(*layers)[by_speed_[first]];
      --left;
    }
    return left;
  }

  std::span<const StageSpeed> stages_;
  int64_t num_layers_;
  std::vector<size_t> by_speed_;  // Fastest first.
};

}  // namespace

std::optional<std::vector<int64_t>> SplitLayers(
    std::span<const StageSpeed> stages, int64_t num_layers,
    int64_t num_microbatches) {
  CHECK(!stages.empty() && num_microbatches >= 1);
  const LayerSplit split(stages, num_layers);
  const std::vector<double> limits = split.Limits();
  const auto fits = [&](double limit_s) {
    return std::isfinite(split.LeastSum(limit_s));
  };
  auto limit = std::partition_point(limits.begin(), limits.end(),
                                    [&](double s) { return !fits(s); });
  if (limit == limits.end()) return std::nullopt;
  // A looser limit may have more layers on fast stages. No sum is less than
  // that of the loosest.
  const double least_sum_s = split.LeastSum(limits.back());
  const auto others = static_cast<double>(num_microbatches - 1);
  double best_limit_s = *limit;
  double best_s = std::numeric_limits<double>::infinity();
  for (; limit != limits.end() && others * *limit + least_sum_s < best_s;
       ++limit) {
    const double seconds = others * *limit + split.LeastSum(*limit);
    if (seconds >= best_s * (1 - kSplitRounding)) continue;
    best_s = seconds;
    best_limit_s = *limit;
  }
  return split.LayersWithin(best_limit_s);
}

std::vector<int64_t> SplitMicrobatches(std::span<const ReplicaSpeed> kinds,
                                       int64_t num_microbatches) {
  const auto done = [&](double limit_s) {
    double sum = 0;
    for (const ReplicaSpeed& kind : kinds) {
      sum +=
          static_cast<double>(kind.num_replicas) *
          std::max(0.0, (limit_s - kind.fixed_s) / kind.seconds_per_microbatch);
    }
    return sum;
  };
  // As if micro-batches could be cut: nothing is done sooner.
  double low_s = 0, high_s = 1e-9;
  while (done(high_s) < static_cast<double>(num_microbatches)) high_s *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle_s = (low_s + high_s) / 2;
    (done(middle_s) < static_cast<double>(num_microbatches) ? low_s : high_s) =
        middle_s;
  }
  std::vector<int64_t> each;
  int64_t left = num_microbatches;
  for (const ReplicaSpeed& kind : kinds) {
    each.push_back(std::max<int64_t>(
        0, static_cast<int64_t>((low_s - kind.fixed_s) /
                                kind.seconds_per_microbatch)));
    left -= kind.num_replicas * each.back();
  }
  while (left > 0) {
    size_t first = kinds.size();
    double first_s = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      if (kinds[k].num_replicas == 0) continue;
      const double seconds =
          kinds[k].fixed_s +
          static_cast<double>(each[k] + 1) * kinds[k].seconds_per_microbatch;
      if (first < kinds.size() && seconds >= first_s) continue;
      first = k;
      first_s = seconds;
    }
    CHECK(first < kinds.size()) << "no replicas";
    ++each[first];
    left -= kinds[first].num_replicas;
  }
  return each;
}

}  // namespace millrace
