#include "planner/search/short_step.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/planning_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

CostModel ShortStepCost() {
  absl::StatusOr<CostModel> cost = CostModel::Create(
      MakeProfile({.link_bytes_per_second = 1e8, .contention_per_rank = 0.2}));
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

// Goal: what few micro-batches say of a long step is what simulating all of
// them says, a hundred times nearer than IsSlowerThan() leaves room for, of
// memory too. Method: lower and simulate in full; layouts of every axis,
// schedule and ZeRO stage, with numbers of micro-batches that the short steps'
// do not divide.
TEST(ShortStepTest, IsWhatTheWholeStepTakes) {
  const CostModel cost = ShortStepCost();
  const ModelSpec model = SmallJob().model;
  int num_short = 0, num_cases = 0;
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t data : {1, 2}) {
      for (const int32_t tensor : {1, 2}) {
        for (const int32_t zero : {0, 1, 2, 3}) {
          for (const Schedule schedule :
               {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
            if (num_cases++ % SweepStep(7) != 0) continue;
            Layout layout;
            layout.pipeline = pipeline;
            layout.data = data;
            layout.tensor = tensor;
            layout.zero = zero;
            layout.schedule = schedule;
            layout.num_microbatches = 51 * pipeline;
            if (!ValidateLayout(model, layout, layout.global_batch()).ok()) {
              continue;
            }
            SCOPED_TRACE(LayoutToString(layout));
            const absl::StatusOr<std::optional<ShortStep>> step =
                PredictFromFewMicrobatches(model, layout, cost);
            ASSERT_TRUE(step.ok()) << step.status();
            ASSERT_EQ(step->has_value(),
                      pipeline == 1 || !layout.shards_gradients());
            if (!step->has_value()) continue;
            ++num_short;
            Timeline timeline;
            std::vector<Program> programs;
            const absl::StatusOr<Prediction> whole =
                PredictLayout(model, layout, cost, &timeline, &programs);
            ASSERT_TRUE(whole.ok()) << whole.status();
            const Prediction& predicted = (*step)->prediction;
            const double step_s = whole->step_time_s;
            EXPECT_NEAR(predicted.step_time_s, step_s, 5e-5 * step_s);
            EXPECT_NEAR(predicted.bubble_fraction, whole->bubble_fraction,
                        1e-4);
            EXPECT_NEAR(predicted.exposed_communication_fraction,
                        whole->exposed_communication_fraction, 1e-4);
            // Arenas of more buffers may have other gaps.
            EXPECT_NEAR(static_cast<double>(predicted.memory_bytes()),
                        static_cast<double>(whole->memory_bytes()),
                        1e-2 * static_cast<double>(whole->memory_bytes()));
            int64_t num_instructions = 0;
            for (const Program& program : programs) {
              num_instructions +=
                  static_cast<int64_t>(program.instructions.size());
            }
            EXPECT_LT((*step)->num_instructions, num_instructions / 2);
          }
        }
      }
    }
  }
  EXPECT_GE(num_short, kSanitized ? 3 : 20);
}

// Goal: steps of few micro-batches and listed ones are left to be lowered as
// they are, and what cannot be lowered is an error. Method: by hand.
TEST(ShortStepTest, LeavesShortAndListedStepsAlone) {
  const CostModel cost = ShortStepCost();
  const ModelSpec model = SmallJob().model;
  Layout layout;
  layout.pipeline = 2;
  layout.num_microbatches = 95;
  auto step = PredictFromFewMicrobatches(model, layout, cost);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_FALSE(step->has_value());
  layout.num_microbatches = 96;
  EXPECT_TRUE(PredictFromFewMicrobatches(model, layout, cost)->has_value());
  layout.schedule = Schedule::kListScheduled;
  EXPECT_FALSE(PredictFromFewMicrobatches(model, layout, cost)->has_value());
  layout.schedule = Schedule::kOneForwardOneBackward;
  layout.tensor = 3;
  EXPECT_FALSE(PredictFromFewMicrobatches(model, layout, cost).ok());
}

}  // namespace
}  // namespace millrace
