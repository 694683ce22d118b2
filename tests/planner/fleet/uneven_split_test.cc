#include "planner/fleet/uneven_split.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/profile/seeded_noise.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

double SecondsOf(const std::vector<StageSpeed>& stages,
                 const std::vector<int64_t>& layers, int64_t num_microbatches) {
  double sum = 0, slowest = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const double seconds = stages[i].end_s + static_cast<double>(layers[i]) *
                                                 stages[i].seconds_per_layer;
    sum += seconds;
    slowest = std::max(slowest, seconds);
  }
  return sum + static_cast<double>(num_microbatches - 1) * slowest;
}

// Every way to give each stage a layer at least and no more than it holds.
double LeastByTrial(const std::vector<StageSpeed>& stages, int64_t num_layers,
                    int64_t num_microbatches) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int64_t> layers(stages.size());
  const std::function<void(size_t, int64_t)> go = [&](size_t i, int64_t left) {
    if (i == stages.size()) {
      if (left == 0) {
        least = std::min(least, SecondsOf(stages, layers, num_microbatches));
      }
      return;
    }
    for (int64_t n = 1; n <= std::min(left, stages[i].most_layers); ++n) {
      layers[i] = n;
      go(i + 1, left - n);
    }
  };
  go(0, num_layers);
  return least;
}

// Goal: layers are shared as well as can be, within memory. Method: random
// small pipelines of up to four kinds of stages against all ways there are.
TEST(UnevenSplitTest, SharesLayersAsWellAsCanBe) {
  int num_refused = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    uint64_t draw = 0;
    const auto uniform = [&] { return RandomUniform(seed, draw++); };
    const auto num_stages = static_cast<size_t>(1 + 4 * uniform());
    const auto num_layers = static_cast<int64_t>(1 + 12 * uniform());
    const auto num_microbatches = static_cast<int64_t>(1 + 20 * uniform());
    std::vector<StageSpeed> stages;
    for (size_t i = 0; i < num_stages; ++i) {
      stages.push_back(
          {.seconds_per_layer = uniform() < 0.5 ? 1.0 : 1.0 + 2 * uniform(),
           .end_s = uniform() < 0.5 ? 0 : 2 * uniform(),
           .most_layers = static_cast<int64_t>(1 + 8 * uniform())});
    }
    const double least = LeastByTrial(stages, num_layers, num_microbatches);
    const std::optional<std::vector<int64_t>> layers =
        SplitLayers(stages, num_layers, num_microbatches);
    ASSERT_EQ(layers.has_value(), least < 1e300) << seed;
    num_refused += !layers.has_value();
    if (!layers.has_value()) continue;
    EXPECT_EQ(std::accumulate(layers->begin(), layers->end(), int64_t{0}),
              num_layers);
    for (size_t i = 0; i < num_stages; ++i) {
      EXPECT_GE((*layers)[i], 1);
      EXPECT_LE((*layers)[i], stages[i].most_layers);
    }
    EXPECT_NEAR(SecondsOf(stages, *layers, num_microbatches), least,
                1e-9 * least)
        << seed;
  }
  EXPECT_GT(num_refused, 20);
  EXPECT_LT(num_refused, 400);
}

// Goal: stages of one speed have as many layers each, the end of the model
// counted.
TEST(UnevenSplitTest, EvensOutWhatIsAlike) {
  const StageSpeed fast = {.seconds_per_layer = 1, .most_layers = 100};
  const StageSpeed slow = {.seconds_per_layer = 2, .most_layers = 100};
  EXPECT_THAT(*SplitLayers(std::vector{fast, fast, slow}, 10, 64),
              ElementsAre(4, 4, 2));
  StageSpeed head = fast;
  head.end_s = 2;
  EXPECT_THAT(*SplitLayers(std::vector{fast, fast, head}, 10, 64),
              ElementsAre(4, 4, 2));
  EXPECT_THAT(*SplitLayers(std::vector{fast, fast, fast, fast}, 8, 1),
              ElementsAre(2, 2, 2, 2));
}

// Goal: micro-batches are shared so that all are done soonest. Method: random
// kinds of replicas against every number of micro-batches for each.
TEST(UnevenSplitTest, SharesMicrobatchesAsWellAsCanBe) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    uint64_t draw = 0;
    const auto uniform = [&] { return RandomUniform(seed, draw++); };
    std::vector<ReplicaSpeed> kinds;
    const auto num_kinds = static_cast<size_t>(1 + 3 * uniform());
    for (size_t k = 0; k < num_kinds; ++k) {
      kinds.push_back(
          {.num_replicas = static_cast<int64_t>((k == 0) + 4 * uniform()),
           .fixed_s = uniform() < 0.3 ? 0 : 5 * uniform(),
           .seconds_per_microbatch = 0.2 + uniform()});
    }
    const auto num_microbatches = static_cast<int64_t>(1 + 12 * uniform());
    const auto seconds = [&](const std::vector<int64_t>& each) {
      double last = 0;
      int64_t sum = 0;
      for (size_t k = 0; k < num_kinds; ++k) {
        sum += kinds[k].num_replicas * each[k];
        if (each[k] == 0 || kinds[k].num_replicas == 0) continue;
        last = std::max(last,
                        kinds[k].fixed_s + static_cast<double>(each[k]) *
                                               kinds[k].seconds_per_microbatch);
      }
      return sum < num_microbatches ? 1e300 : last;
    };
    double least = 1e300;
    std::vector<int64_t> each(num_kinds, 0);
    const std::function<void(size_t)> go = [&](size_t k) {
      if (k == num_kinds) {
        least = std::min(least, seconds(each));
        return;
      }
      for (each[k] = 0; each[k] <= num_microbatches; ++each[k]) go(k + 1);
      each[k] = 0;
    };
    go(0);
    EXPECT_NEAR(seconds(SplitMicrobatches(kinds, num_microbatches)), least,
                1e-9 * least)
        << seed;
  }
}

}  // namespace
}  // namespace millrace
