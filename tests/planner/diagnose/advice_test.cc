#include "planner/diagnose/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"
#include "planner/diagnose/diagnosis_text.h"
#include "planner/diagnose/trace_reader.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

class AdviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Trace> trace =
        LoadTrace("tests/data/diagnose/three_steps.json");
    ASSERT_TRUE(trace.ok()) << trace.status();
    trace_ = *std::move(trace);
    trace_.world_size = 4;
    absl::StatusOr<Diagnosis> diagnosis = Diagnose(trace_, {});
    ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
    diagnosis_ = *std::move(diagnosis);
    job_ = SmallJob();
    // Slow links and much tensor parallelism: not what a planner would choose.
    job_.layout = {.pipeline = 1,
                   .data = 1,
                   .tensor = 4,
                   .micro_batch = 1,
                   .zero = 0,
                   .recompute = "full",
                   .schedule = "1f1b"};
  }

  static CostModel Cost() {
    absl::StatusOr<CostModel> cost = CostModel::Create(
        MakeProfile({.link_latency_s = 1e-3, .link_bytes_per_second = 1e8}));
    EXPECT_TRUE(cost.ok()) << cost.status();
    return *std::move(cost);
  }
  // As if the step diagnosed had taken so long.
  void RecordStepOf(double seconds) {
    for (RecordedStep& step : diagnosis_.steps) {
      step.length_ns = static_cast<int64_t>(seconds * 1e9);
    }
  }
  absl::StatusOr<Advice> Ask(int32_t num_devices = 0) const {
    return Advise(trace_, diagnosis_, job_, num_devices, Cost());
  }
  std::string ErrorOf(int32_t num_devices = 0) const {
    const absl::StatusOr<Advice> advice = Ask(num_devices);
    return advice.ok() ? "no error" : std::string(advice.status().message());
  }

  Trace trace_;
  Diagnosis diagnosis_;
  JobSpec job_;
};

// Goal: the advice compares two predictions of the planner and carries the
// ratio over to what was measured. Method: a layout with needless
// communication; the same two searches by hand.
TEST_F(AdviceTest, SaysWhatThePlannerWouldChange) {
  const absl::StatusOr<Advice> foreign = Ask();
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  RecordStepOf(1.5 * foreign->recorded.prediction.step_time_s);
  const absl::StatusOr<Advice> advice = Ask();
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_EQ(advice->num_devices, 4);
  EXPECT_EQ(advice->recorded.layout.tensor, 4);
  EXPECT_EQ(advice->recorded.layout.recompute, Recompute::kFull);
  JobSpec open = job_;
  open.layout = {};
  const absl::StatusOr<Plan> best =
      FindPlan({.job = open, .num_devices = 4}, Cost());
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ(advice->best.layout, best->layout);
  EXPECT_GT(advice->speedup(), 1);
  EXPECT_DOUBLE_EQ(advice->expected_s() * advice->speedup(),
                   advice->measured_s);
  EXPECT_THAT(advice->changes, Contains("recompute full to none"));
  EXPECT_THAT(advice->caveats,
              AllOf(Contains(HasSubstr("the trace cannot confirm them")),
                    Contains(HasSubstr("of 4 devices 1 was recorded")),
                    Contains(HasSubstr("ran on NVIDIA H100"))));
  const std::string text = DiagnosisToText("t", trace_, diagnosis_, &*advice);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("predicted, as is"), HasSubstr("recompute full to none"),
            HasSubstr("x predicted\n"), HasSubstr("would become")));
  const Json json =
      Json::parse(DiagnosisToJson("t", trace_, diagnosis_, &*advice));
  EXPECT_DOUBLE_EQ(json["plan"]["predicted_speedup"], advice->speedup());
  EXPECT_EQ(json["plan"]["devices"], 4);
}

// Goal: a layout that is already the best is left alone. Method: pin what the
// planner chose.
TEST_F(AdviceTest, LeavesTheBestLayout) {
  const absl::StatusOr<Advice> first = Ask();
  ASSERT_TRUE(first.ok()) << first.status();
  const Layout& best = first->best.layout;
  job_.layout = {.pipeline = best.pipeline,
                 .data = best.data,
                 .tensor = best.tensor,
                 .micro_batch = best.micro_batch,
                 .zero = best.zero,
                 .recompute = RecomputeName(best.recompute),
                 .schedule = ScheduleName(best.schedule)};
  const absl::StatusOr<Advice> advice = Ask();
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_THAT(advice->changes, IsEmpty());
  EXPECT_DOUBLE_EQ(advice->speedup(), 1);
  EXPECT_THAT(DiagnosisToText("t", trace_, diagnosis_, &*advice),
              HasSubstr("change  none"));
}

// Goal: a trace that cannot be of the job gets no forecast. Method: a step a
// hundred times as short, and as long, as what is predicted.
TEST_F(AdviceTest, ForecastsNothingOfAForeignTrace) {
  const absl::StatusOr<Advice> first = Ask();
  ASSERT_TRUE(first.ok()) << first.status();
  for (const double factor : {0.01, 100.0}) {
    RecordStepOf(factor * first->recorded.prediction.step_time_s);
    const absl::StatusOr<Advice> advice = Ask();
    ASSERT_TRUE(advice.ok()) << advice.status();
    EXPECT_FALSE(advice->fits_trace());
    EXPECT_THAT(advice->caveats,
                Contains(HasSubstr("job or profile are not those")));
    EXPECT_THAT(DiagnosisToText("t", trace_, diagnosis_, &*advice),
                Not(HasSubstr("would become")));
    const Json json =
        Json::parse(DiagnosisToJson("t", trace_, diagnosis_, &*advice));
    EXPECT_TRUE(json["plan"]["expected_step_time_s"].is_null());
  }
}

// Goal: contradictions between trace, job and command line name both sides, and
// what is open is said. Method: one of each.
TEST_F(AdviceTest, NamesContradictions) {
  EXPECT_THAT(ErrorOf(8), AllOf(HasSubstr("--devices is 8"),
                                HasSubstr("the trace's world size is 4")));
  trace_.world_size = 16;
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr("the trace's world size is 16"),
                               HasSubstr("the job's layout axes is 4")));
  for (const int64_t none : {int64_t{-4}, int64_t{0}, int64_t{4} << 32}) {
    trace_.world_size = none;
    EXPECT_THAT(ErrorOf(), HasSubstr("expected a number of devices"));
  }
  trace_.world_size.reset();
  job_.layout.data.reset();
  EXPECT_THAT(ErrorOf(), HasSubstr("give --devices N"));
  const absl::StatusOr<Advice> advice = Ask(4);
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_THAT(advice->caveats, Contains(HasSubstr("leaves layout.data open")));
  const absl::StatusOr<Diagnosis> whole = Diagnose(trace_, {.whole = true});
  ASSERT_TRUE(whole.ok());
  diagnosis_ = *whole;
  EXPECT_THAT(ErrorOf(4), HasSubstr("leave out --whole"));
}

// Goal: without a job the trace still says how much a layout could matter, and
// no more. Method: the sample's own figures.
TEST_F(AdviceTest, SaysTheShareOfLayouts) {
  const LayoutShare share = LayoutShareOf(diagnosis_);
  EXPECT_EQ(share.exposed_communication_ns,
            diagnosis_.total.split.exposed_communication_ns);
  EXPECT_LE(share.exposed_communication_ns + share.waiting_ns, share.window_ns);
  EXPECT_THAT(DiagnosisToText("t", trace_, diagnosis_),
              AllOf(HasSubstr("plan: another layout could save at most"),
                    HasSubstr("--job JOB")));
}

}  // namespace
}  // namespace millrace
