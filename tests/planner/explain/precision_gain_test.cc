#include "planner/explain/precision_gain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/profile/shipped_profiles.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Plan> PlanOnPaper(const PlanningCase& planned) {
  const absl::StatusOr<CostModel> cost = CostModel::Create(planned.profile);
  if (!cost.ok()) return cost.status();
  return FindPlan({.job = planned.job,
                   .num_devices = planned.num_devices,
                   .allows_plan_only = true},
                  *cost);
}

PlanningCase CaseOn(const char* profile) {
  PlanningCase planned;
  planned.job = Llama8B(8);
  planned.profile = LoadNamedProfile(profile).value();
  planned.num_devices = 8;
  return planned;
}

// Goal: on a GPU with 8-bit products the gain over bf16 is told, about what
// products are of the step, and that of attention, which is less; it is told of
// no other GPU, and of no job that has it already. Method: 8B on data sheets.
TEST(PrecisionGainTest, TellsWhatEightBitsGain) {
  PlanningCase planned = CaseOn("h100-sxm");
  const auto plan = PlanOnPaper(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto gains = FindFloat8Gains(planned, *plan, PlanOnPaper);
  ASSERT_EQ(gains.size(), 3);
  for (const Float8Gain& gain : gains) {
    EXPECT_EQ(gain.unknown, "");
    const bool is_of_attention = gain.setting == "training.attention: fp8";
    EXPECT_EQ(is_of_attention, &gain == &gains.back());
    EXPECT_LT(gain.step_time_s,
              (is_of_attention ? 1 : 0.9) * plan->prediction.step_time_s);
    EXPECT_GT(gain.step_time_s, 0.5 * plan->prediction.step_time_s);
  }
  const std::string text = Float8GainText(*plan, gains);
  EXPECT_THAT(text, HasSubstr(" a step with training.precision: fp8, "));
  EXPECT_THAT(text,
              HasSubstr(" a step with training.precision: fp8_blockwise, "));
  EXPECT_THAT(text, HasSubstr(" % less, and "));

  EXPECT_THAT(text, HasSubstr(" a step with training.attention: fp8, "));

  planned.job.training.precision = "fp8";
  const auto of_attention = FindFloat8Gains(planned, *plan, PlanOnPaper);
  ASSERT_EQ(of_attention.size(), 1);
  EXPECT_EQ(of_attention[0].setting, "training.attention: fp8");
  planned.job.model.attention_format = AttentionFormat::kFloat8;
  EXPECT_TRUE(FindFloat8Gains(planned, *plan, PlanOnPaper).empty());
  EXPECT_TRUE(FindFloat8Gains(CaseOn("a100-80gb"), *plan, PlanOnPaper).empty());
}

// Goal: where the gain is not known the text says why. Method: heads whose
// projections have rows that 16 does not divide.
TEST(PrecisionGainTest, SaysWhyTheGainIsNotKnown) {
  PlanningCase planned = CaseOn("h100-sxm");
  planned.job.model.ffn_hidden = 14328;
  const auto plan = PlanOnPaper(planned);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto gains = FindFloat8Gains(planned, *plan, PlanOnPaper);
  ASSERT_EQ(gains.size(), 3);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_THAT(gains[i].unknown, HasSubstr("ffn_hidden"));
  }
  EXPECT_THAT(Float8GainText(*plan, gains),
              HasSubstr("with training.precision: fp8_blockwise not known: "));
}

// Goal: a device without 8 bits is named where a job asks for attention in
// them. Method: 8B on a data sheet.
TEST(PrecisionGainTest, NamesADeviceWithoutEightBits) {
  PlanningCase planned = CaseOn("a100-80gb");
  planned.job.model.attention_format = AttentionFormat::kFloat8;
  const auto plan = PlanOnPaper(planned);
  EXPECT_THAT(std::string(plan.status().message()),
              ::testing::AllOf(HasSubstr("training.attention is fp8, but "),
                               HasSubstr("has no 8-bit products"),
                               HasSubstr("set training.attention to bf16")));
}

}  // namespace
}  // namespace millrace
