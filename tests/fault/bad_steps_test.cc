#include "fault/bad_steps.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Goal: the verdict on a step waits for all ranks, names where it began, and
// counts steps in a row; a step that passed when run again breaks the row, and
// so does one between that was well.
TEST(BadStepsTest, CountsStepsInARow) {
  BadSteps steps;
  steps.Begin(2);
  const auto skip = [&](int64_t step) {
    EXPECT_FALSE(steps.Note(Rank{0}, {.step = step}).has_value());
    return steps.Note(Rank{1}, {.step = step, .origin = "gemm 'a'"});
  };
  auto verdict = skip(3);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->passed);
  EXPECT_EQ(verdict->num_in_row, 1);
  ASSERT_EQ(verdict->origins.size(), 1u);
  EXPECT_EQ(verdict->origins[0].first, Rank{1});
  EXPECT_EQ(verdict->origins[0].second, "gemm 'a'");
  EXPECT_EQ(skip(4)->num_in_row, 2);
  EXPECT_EQ(skip(6)->num_in_row, 1);
  EXPECT_FALSE(steps.Note(Rank{0}, {.step = 7, .passed = true}).has_value());
  verdict = steps.Note(Rank{1}, {.step = 7, .passed = true});
  ASSERT_TRUE(verdict.has_value());
  EXPECT_TRUE(verdict->passed);
  EXPECT_EQ(skip(8)->num_in_row, 1);
  steps.Begin(2);
  EXPECT_EQ(skip(9)->num_in_row, 1);
}

// Goal: the largest copy in 8 bits is that of any rank; none where nothing was
// copied.
TEST(BadStepsTest, NamesTheLargestCopy) {
  BadSteps steps;
  steps.Begin(2);
  steps.Note(Rank{0}, {.step = 1, .largest_amax = 7, .largest_in = "'a'"});
  auto verdict =
      steps.Note(Rank{1}, {.step = 1, .largest_amax = 9, .largest_in = "'b'"});
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->largest_amax, 9);
  EXPECT_EQ(verdict->largest_in, "'b'");
  EXPECT_EQ(verdict->largest_on, Rank{1});
  steps.Note(Rank{0}, {.step = 2});
  verdict = steps.Note(Rank{1}, {.step = 2});
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->largest_on, Rank{-1});
}

}  // namespace
}  // namespace millrace
