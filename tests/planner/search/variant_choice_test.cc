#include "planner/search/variant_choice.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/status/statusor.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

// Goal: a variant replaces the plan's layout, prediction and timeline together
// where it is faster or pinned, and changes nothing otherwise; one that cannot
// be is an error. Method: of two layouts of the small job each is the variant
// of the other.
TEST(VariantChoiceTest, TakesWhatIsFasterOrPinned) {
  const JobSpec job = SmallJob();
  const absl::StatusOr<CostModel> cost = CostModel::Create(MakeProfile({}));
  ASSERT_TRUE(cost.ok()) << cost.status();
  const auto plan_of = [&](const Layout& layout) {
    Plan plan;
    plan.layout = layout;
    const absl::StatusOr<Prediction> prediction =
        PredictLayout(job.model, layout, *cost, &plan.timeline);
    EXPECT_TRUE(prediction.ok()) << prediction.status();
    plan.prediction = prediction.value_or(Prediction{});
    return plan;
  };
  Layout data, pipeline;
  data.data = 4;
  data.num_microbatches = 2;
  pipeline.pipeline = 4;
  pipeline.num_microbatches = 8;
  Plan faster = plan_of(data), slower = plan_of(pipeline);
  if (slower.prediction.step_time_s < faster.prediction.step_time_s) {
    std::swap(faster, slower);
  }
  ASSERT_LT(faster.prediction.step_time_s, slower.prediction.step_time_s);
  const auto is = [](const Plan& plan, const Plan& other) {
    return plan.layout == other.layout &&
           plan.prediction.step_time_s == other.prediction.step_time_s &&
           plan.timeline.step_time_s == other.timeline.step_time_s;
  };

  Plan plan = faster;
  ASSERT_TRUE(TakeVariant(job.model, slower.layout, *cost, false, &plan).ok());
  EXPECT_TRUE(is(plan, faster));
  ASSERT_TRUE(TakeVariant(job.model, slower.layout, *cost, true, &plan).ok());
  EXPECT_TRUE(is(plan, slower));
  ASSERT_TRUE(TakeVariant(job.model, faster.layout, *cost, false, &plan).ok());
  EXPECT_TRUE(is(plan, faster));

  Layout odd = faster.layout;
  odd.tensor = 3;
  EXPECT_FALSE(TakeVariant(job.model, odd, *cost, true, &plan).ok());
  EXPECT_TRUE(is(plan, faster));
}

}  // namespace
}  // namespace millrace
