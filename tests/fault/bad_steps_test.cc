#include "fault/bad_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fault/bad_step_verdict.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

// Goal: the verdict on a step waits for all ranks, names where it began, and
// counts steps in a row; a step that passed when run again breaks the row, and
// so does one between that was well.
TEST(BadStepsTest, CountsStepsInARow) {
  BadSteps steps;
  steps.Begin({.pipeline = 2});
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
  steps.Begin({.pipeline = 2});
  EXPECT_EQ(skip(9)->num_in_row, 1);
}

// Goal: the largest copy in 8 bits is that of any rank; none where nothing was
// copied.
TEST(BadStepsTest, NamesTheLargestCopy) {
  BadSteps steps;
  steps.Begin({.pipeline = 2});
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

BadStepReport Report(const std::string& origin, const std::string& elsewhere,
                     bool passed_elsewhere = false) {
  return {.step = 5,
          .origin = origin,
          .elsewhere = BadStepReport::Elsewhere{.passed = passed_elsewhere,
                                                .origin = elsewhere}};
}

// Goal: a rank that makes bad values of any samples is a suspect, one whose
// samples make them anywhere is none, and nobody is where all replicas make
// them, where it cannot be told, or where nothing was exchanged.
TEST(BadStepsTest, TellsDevicesFromSamples) {
  const Layout three = {.data = 3};
  const BadStepReport well = Report("", "");
  auto verdict = VerdictOf(three, {well, Report("a", "a"), well});
  EXPECT_EQ(verdict.cause, BadStepCause::kDevices);
  EXPECT_THAT(verdict.suspects, ElementsAre(Rank{1}));
  EXPECT_FALSE(verdict.passed || verdict.passed_elsewhere);
  EXPECT_EQ(verdict.num_in_row, 1);

  // Rank 0 has rank 1's samples then, and rank 2 rank 0's.
  verdict = VerdictOf(three, {Report("", "a"), Report("a", ""), well});
  EXPECT_EQ(verdict.cause, BadStepCause::kSamples);
  EXPECT_TRUE(verdict.suspects.empty());
  verdict = VerdictOf(three, {Report("a", ""), well, Report("", "a")});
  EXPECT_EQ(verdict.cause, BadStepCause::kSamples);

  verdict = VerdictOf(three, {Report("", "a"), well, Report("a", "")});
  EXPECT_EQ(verdict.cause, BadStepCause::kUnknown);
  verdict =
      VerdictOf(three, {Report("a", "a"), Report("a", "a"), Report("a", "a")});
  EXPECT_EQ(verdict.cause, BadStepCause::kUnknown);
  verdict = VerdictOf(three, {well, well, well});
  EXPECT_EQ(verdict.cause, BadStepCause::kUnknown);
  verdict =
      VerdictOf(three, {{.step = 5}, {.step = 5, .origin = "a"}, {.step = 5}});
  EXPECT_EQ(verdict.cause, BadStepCause::kUnknown);
  EXPECT_TRUE(verdict.suspects.empty());
}

// Goal: a step that passes with exchanged samples counts, and those that made
// the bad values are suspects.
TEST(BadStepsTest, CountsAStepThatPassesElsewhere) {
  const BadStepReport well = Report("", "", /*passed_elsewhere=*/true);
  BadStepReport bad = well;
  bad.origin = "a";
  auto verdict = VerdictOf({.data = 2}, {well, bad});
  EXPECT_TRUE(verdict.passed_elsewhere);
  EXPECT_EQ(verdict.cause, BadStepCause::kDevices);
  EXPECT_THAT(verdict.suspects, ElementsAre(Rank{1}));
  EXPECT_EQ(verdict.num_in_row, 0);
  // The suspect is the rank that made them, not its whole replica.
  const Layout wide = {.data = 2, .tensor = 2};
  std::vector<BadStepReport> reports(4, Report("", ""));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const bool is_first =
        CoordinatesOf(wide, Rank{static_cast<int32_t>(rank)}).data == 0;
    if (is_first) reports[rank] = Report("a", rank == 0 ? "a" : "");
  }
  verdict = VerdictOf(wide, reports);
  EXPECT_EQ(verdict.cause, BadStepCause::kDevices);
  EXPECT_THAT(verdict.suspects, ElementsAre(Rank{0}));
  // Another one of them each time.
  reports[0] = Report("a", "");
  reports[1] = Report("", "a");
  verdict = VerdictOf(wide, reports);
  EXPECT_EQ(verdict.cause, BadStepCause::kUnknown);
  EXPECT_THAT(verdict.suspects, ElementsAre());
  EXPECT_FALSE(CanExchangeSamples({.pipeline = 2}));
  EXPECT_TRUE(CanExchangeSamples(wide));
  EXPECT_FALSE(CanExchangeSamples(
      {.data = 2, .num_microbatches = 2, .extra_microbatches = 1}));
}

}  // namespace
}  // namespace millrace
