#include "fault/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace millrace {
namespace {

// The meaning of the check, in plain loops.
bool CoversOnce(int64_t rows, int64_t cols, const std::vector<BoxRun>& runs) {
  std::vector<int> counts(rows * cols);
  for (const BoxRun& run : runs) {
    const int64_t width = run.box.col_end - run.box.col_begin;
    for (int64_t i = run.begin; i < run.end; ++i) {
      ++counts[(run.box.row_begin + i / width) * cols + run.box.col_begin +
               i % width];
    }
  }
  return counts == std::vector<int>(rows * cols, 1);
}

// Cuts a tensor into random boxes by rows or columns, each into random runs.
std::vector<BoxRun> RandomCut(int64_t rows, int64_t cols,
                              std::mt19937_64& random) {
  std::vector<BoxRun> runs;
  const int64_t col_cut = random() % (cols + 1);
  const int64_t row_cut = random() % (rows + 1);
  for (const ParameterBox& box : {ParameterBox{0, row_cut, 0, col_cut},
                                  ParameterBox{row_cut, rows, 0, col_cut},
                                  ParameterBox{0, rows, col_cut, cols}}) {
    int64_t begin = 0;
    while (begin < box.num_elements()) {
      const int64_t end = begin + 1 + random() % (box.num_elements() - begin);
      runs.push_back({box, begin, end});
      begin = end;
    }
  }
  std::shuffle(runs.begin(), runs.end(), random);
  return runs;
}

// Goal: the sweep says the same as counting each element. Method: random cuts
// of small tensors, whole and with one run dropped, doubled, or grown by an
// element, compared with plain loops.
TEST(CoverageTest, AgreesWithCounting) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t rows = 1 + random() % 7;
    const int64_t cols = 1 + random() % 7;
    std::vector<BoxRun> runs = RandomCut(rows, cols, random);
    const size_t victim = random() % runs.size();
    switch (random() % 4) {
      case 0:
        break;
      case 1:
        runs.erase(runs.begin() + victim);
        break;
      case 2:
        runs.push_back(runs[victim]);
        break;
      case 3:
        if (runs[victim].end < runs[victim].box.num_elements()) {
          ++runs[victim].end;
        }
        break;
    }
    ASSERT_EQ(CheckExactCover("t", rows, cols, runs).ok(),
              CoversOnce(rows, cols, runs));
  }
}

// Goal: a gap hidden by an overlap of the same size is found. Method: two runs
// whose element counts add up to the tensor's but that share an element.
TEST(CoverageTest, SumsAreNotEnough) {
  const ParameterBox box = {0, 2, 0, 3};
  const absl::Status status =
      CheckExactCover("wide", 2, 3, {{box, 0, 3}, {box, 2, 5}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("wide"), std::string::npos) << status;
}

// Goal: runs outside their box or tensor are refused before anything divides
// or multiplies by them. Method: one violation at a time.
TEST(CoverageTest, RefusesRunsOutside) {
  EXPECT_TRUE(IsValidRun({{0, 2, 1, 3}, 1, 4}, 2, 3));
  EXPECT_FALSE(IsValidRun({{0, 3, 1, 3}, 1, 4}, 2, 3));
  EXPECT_FALSE(IsValidRun({{0, 2, 1, 4}, 1, 4}, 2, 3));
  EXPECT_FALSE(IsValidRun({{-1, 2, 1, 3}, 1, 4}, 2, 3));
  EXPECT_FALSE(IsValidRun({{0, 2, 1, 3}, 1, 5}, 2, 3));
  EXPECT_FALSE(IsValidRun({{0, 2, 1, 3}, -1, 4}, 2, 3));
  EXPECT_FALSE(IsValidRun({{0, 2, 1, 3}, 4, 3}, 2, 3));
  EXPECT_FALSE(IsValidRun({{2, 0, 1, 3}, 0, 0}, 2, 3));
}

}  // namespace
}  // namespace millrace
