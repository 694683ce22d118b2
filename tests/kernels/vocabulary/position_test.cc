#include "kernels/vocabulary/position.h"

#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

struct PositionCase {
  PositionShape shape;
  const char* what;
};
const PositionCase kPositionCases[] = {
    {{12, 4, 5, 0, 4}, "a table as long as a sequence"},
    {{12, 4, 33, 0, 9}, "more rows than positions"},
    {{12, 6, 16, 2, 3}, "a shard within the table"},
    {{12, 4, 7, 4, 2}, "a shard that no token reads"},
    {{4000, 500, 65, 0, 500}, "enough for threads"},
};

// Goal: each token gets its position's row, and each row the sum of its tokens'
// gradients; rows of other shards change nothing. Method: plain loops.
TEST(PositionTest, MatchesPlainLoops) {
  RandomFloats random(1);
  for (const auto& [s, what] : kPositionCases) {
    SCOPED_TRACE(what);
    const std::vector<float> x = random(s.num_tokens * s.hidden);
    const std::vector<float> weight = random(s.num_rows * s.hidden);
    for (const bool accumulate : {false, true}) {
      std::vector<float> sum = x;
      std::vector<float> d_weight =
          accumulate ? weight : std::vector<float>(weight.size(), 0.0f);
      for (int64_t t = 0; t < s.num_tokens; ++t) {
        const int64_t row = t % s.sequence_length - s.first_row;
        if (row < 0 || row >= s.num_rows) continue;
        for (int64_t h = 0; h < s.hidden; ++h) {
          sum[t * s.hidden + h] += weight[row * s.hidden + h];
          d_weight[row * s.hidden + h] += x[t * s.hidden + h];
        }
      }
      ExpectKernelMatches({sum, d_weight}, 0, [&, shape = s](int threads) {
        std::vector<float> y = x;
        std::vector<float> gradient =
            accumulate ? weight : Poisoned(static_cast<int64_t>(weight.size()));
        EXPECT_TRUE(
            AddPositions({y.data(), weight.data(), shape}, threads).ok());
        EXPECT_TRUE(PositionGradient(
                        {gradient.data(), x.data(), shape, accumulate}, threads)
                        .ok());
        return std::vector<std::vector<float>>{y, gradient};
      });
    }
  }
}

TEST(PositionTest, RefusesBadShapes) {
  for (const PositionShape& shape :
       {PositionShape{1, 0, 1, 0, 1}, PositionShape{1, 1, 1, -1, 1},
        PositionShape{1, 1, 1, 0, 0}, PositionShape{-1, 1, 1, 0, 1}}) {
    EXPECT_EQ(AddPositions({nullptr, nullptr, shape}, 1).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(PositionGradient({nullptr, nullptr, shape, false}, 1).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
