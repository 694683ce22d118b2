#include "planner/search/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: a loser is held to the choice as the same model priced it, and the
// reason says so where the plan states the choice by another. Method: a choice
// of 1 s and losers around it.
TEST(SayWhyItLostTest, ComparesLikeWithLike) {
  constexpr auto kClosedForm = PriceModel::kClosedForm;
  constexpr auto kPasses = PriceModel::kPasses;
  constexpr auto kInstructions = PriceModel::kInstructions;
  const auto reason = [&](double step_time_s, PriceModel model) {
    const Prediction chosen = {.model = model, .step_time_s = 1};
    Alternative loser{.prediction = {.model = model,
                                     .step_time_s = step_time_s,
                                     .bubble_fraction = 0.25}};
    SayWhyItLost(chosen, /*memory_limit=*/0, kInstructions, &loser);
    return loser.reason;
  };
  EXPECT_EQ(reason(1.5, kInstructions),
            "1.50x slower: bubble 25 % of the step");
  EXPECT_EQ(reason(1.02, kClosedForm),
            "2.0 % slower by the closed form (choice 1.00 s): bubble 25 % of "
            "the step");
  EXPECT_EQ(reason(1.02, kPasses),
            "2.0 % slower by passes (choice 1.00 s): bubble 25 % of the step");
  // Only of exact equals the simpler is chosen.
  EXPECT_EQ(reason(1, kInstructions), "as fast, but not as simple");
  EXPECT_EQ(reason(1.0002, kInstructions), "as fast");
  EXPECT_EQ(reason(1, kClosedForm),
            "as fast by the closed form (choice "
            "1.00 s)");
  EXPECT_EQ(reason(0.98, kClosedForm),
            "2.0 % faster by the closed form (choice 1.00 s)");
}

// Goal: a table's cell says the same in few words, whichever model compares.
// Method: a choice of 1 s; losers with more bubble, communication, computing.
TEST(SayWhyItLostTest, SaysItInBrief) {
  const Prediction chosen = {.step_time_s = 1};
  const auto brief = [&](const Prediction& prediction) {
    Alternative loser{.prediction = prediction};
    SayWhyItLost(chosen, /*memory_limit=*/0, PriceModel::kPasses, &loser);
    EXPECT_THAT(loser.reason, HasSubstr("by the closed form (choice 1.00 s)"));
    return loser.brief_reason;
  };
  EXPECT_EQ(brief({.step_time_s = 1.5, .bubble_fraction = 0.25}),
            "1.50x slower: bubble 25 %");
  EXPECT_EQ(
      brief({.step_time_s = 1.02, .exposed_communication_fraction = 0.04}),
      "2.0 % slower: communication 4 %");
  EXPECT_EQ(brief({.step_time_s = 1.02}), "2.0 % slower: compute +2.0 %");
  EXPECT_EQ(brief({.step_time_s = 1.25}), "1.25x slower: compute 1.25x");
  EXPECT_EQ(brief({.step_time_s = 0.98}), "2.0 % faster");
}

// Goal: what does not fit says by how much. Method: a limit 1 GiB too low.
TEST(SayWhyItLostTest, SaysWhatMemoryIsMissing) {
  Alternative loser{
      .fits = false,
      .prediction = {.step_time_s = 1, .step_bytes = int64_t{3} << 30}};
  SayWhyItLost({.step_time_s = 2}, int64_t{2} << 30, PriceModel::kClosedForm,
               &loser);
  EXPECT_EQ(loser.reason, "needs 3.00 GiB, 1.00 GiB more than the device has");
  EXPECT_EQ(loser.brief_reason, "does not fit: 1.00 GiB too much");
}

}  // namespace
}  // namespace millrace
