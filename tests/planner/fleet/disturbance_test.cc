#include "planner/fleet/disturbance.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/op_cost.h"
#include "planner/explain/explain.h"
#include "planner/explain/explain_json.h"
#include "planner/profile/profile_file.h"
#include "planner/search/search.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Llama 3 8B on 64 of a data sheet's devices.
class DisturbanceTest : public ::testing::Test {
 protected:
  // Planned once for all tests.
  struct Planned {
    HardwareProfile profile;
    JobSpec job;
    Plan plan;
  };

  static Planned MakePlanned() {
    Planned planned;
    const auto loaded = LoadProfile("configs/hardware/h100-sxm.yaml");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return planned;
    planned.profile = *loaded;
    planned.job = Llama8B(128);
    planned.job.layout = {.pipeline = 2, .data = 16, .tensor = 2};
    const auto cost = CostModel::Create(planned.profile);
    EXPECT_TRUE(cost.ok()) << cost.status();
    const auto plan = FindPlan(
        {.job = planned.job, .num_devices = 64, .allows_plan_only = true},
        *cost);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) planned.plan = *plan;
    return planned;
  }

  void SetUp() override {
    static const Planned planned = MakePlanned();
    ASSERT_EQ(planned.plan.layout.num_ranks(), 64);
    profile_ = planned.profile;
    job_ = planned.job;
    plan_ = planned.plan;
  }

  DisturbedStep Disturbed(const DisturbanceSpec& spec) {
    const auto disturbed = SimulateDisturbed(job_, profile_, plan_, spec);
    EXPECT_TRUE(disturbed.ok()) << disturbed.status();
    return disturbed.ok() ? *disturbed : DisturbedStep{};
  }
  std::string Refusal(const DisturbanceSpec& spec) {
    return std::string(
        SimulateDisturbed(job_, profile_, plan_, spec).status().message());
  }

  HardwareProfile profile_;
  JobSpec job_;
  Plan plan_;
};

// Goal: a node of the slowest stage that is slow slows the step by no more than
// its factor and by most of it, and is named; more so the slower it is. Method:
// with the pipeline outermost, nodes 4 to 7 have the last stage, with the
// head.
TEST_F(DisturbanceTest, NamesTheSlowNode) {
  ASSERT_TRUE(plan_.pipeline_outermost);
  double previous = 0;
  for (const double factor : {1.05, 1.2, 1.5}) {
    const DisturbedStep slow = Disturbed(
        {.stragglers = {
             {.what = Straggler::What::kNode, .idx = 5, .factor = factor}}});
    EXPECT_GT(slow.slowdown, 0.7 * (factor - 1));
    EXPECT_LT(slow.slowdown, factor - 1);
    EXPECT_GT(slow.slowdown, previous);
    previous = slow.slowdown;
    EXPECT_NEAR(slow.step_time_s,
                plan_.prediction.step_time_s * (1 + slow.slowdown), 1e-9);
    ASSERT_FALSE(slow.causes.empty());
    EXPECT_THAT(slow.causes[0].text, HasSubstr("of node 5"));
    EXPECT_EQ(slow.num_slow_nodes, 1);
    EXPECT_LE(slow.low_s, slow.step_time_s);
    EXPECT_GE(slow.high_s, slow.step_time_s);
  }
  const DisturbedStep device = Disturbed(
      {.stragglers = {
           {.what = Straggler::What::kDevice, .idx = 29, .factor = 1.2}}});
  EXPECT_THAT(device.causes[0].text, HasSubstr("ranks 28 to 29 of node 3"));
}

// Goal: a node's slow fabric slows reductions of gradients that cross it, and
// its slow NVLink the tensor axis inside.
TEST_F(DisturbanceTest, NamesTheSlowLink) {
  const DisturbedStep fabric =
      Disturbed({.links = {{.node = 1, .level = "inter_node", .rate = 0.1}}});
  EXPECT_GT(fabric.slowdown, 0.01);
  EXPECT_THAT(fabric.causes[0].text, HasSubstr("inter_node of node 1"));
  const DisturbedStep inside =
      Disturbed({.links = {{.node = 1, .level = "nvlink", .rate = 0.5}}});
  EXPECT_GT(inside.slowdown, 0.001);
  EXPECT_THAT(inside.causes[0].text, HasSubstr("of node 1"));
  EXPECT_THAT(inside.causes[0].text, HasSubstr("passes of stage"));
}

// Goal: noise scatters steps and holds up all, by what the seed decides alone.
TEST_F(DisturbanceTest, DrawsNoise) {
  const DisturbanceSpec spec = {
      .pass_noise = 0.05,
      .step_noise = 0.01,
      .stragglers = {{.what = Straggler::What::kShareOfNodes,
                      .share = 0.5,
                      .factor = 1.1}},
      .seed = 9,
      .num_steps = 50};
  const DisturbedStep noisy = Disturbed(spec);
  EXPECT_EQ(noisy.num_steps, 50);
  EXPECT_GT(noisy.num_slow_nodes, 0);
  EXPECT_LT(noisy.num_slow_nodes, 8);
  EXPECT_GT(noisy.slowdown, 0.01);
  EXPECT_GT(noisy.deviation_s, 0);
  EXPECT_LT(noisy.p5_s, noisy.median_s);
  EXPECT_LT(noisy.median_s, noisy.p95_s);
  EXPECT_LE(noisy.p95_s, noisy.longest_s);
  const DisturbedStep again = Disturbed(spec);
  EXPECT_EQ(again.step_time_s, noisy.step_time_s);
  EXPECT_EQ(again.p95_s, noisy.p95_s);
  DisturbanceSpec other = spec;
  other.seed = 10;
  EXPECT_NE(Disturbed(other).step_time_s, noisy.step_time_s);
}

// Goal: plans of instructions are disturbed too. Method: a machine with tables
// alone, one of whose devices is slow.
TEST_F(DisturbanceTest, TakesPlansOfInstructions) {
  job_ = SmallJob();
  profile_ = MakeProfile({});
  const auto plan =
      FindPlan({.job = job_, .num_devices = 4}, *CostModel::Create(profile_));
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan_ = *plan;
  ASSERT_FALSE(plan_.timeline.ranks.empty());
  const DisturbedStep slow = Disturbed(
      {.stragglers = {
           {.what = Straggler::What::kDevice, .idx = 1, .factor = 1.5}}});
  EXPECT_GT(slow.slowdown, 0.2);
  EXPECT_LT(slow.slowdown, 0.5 + 1e-9);
  EXPECT_THAT(slow.causes[0].text, HasSubstr("of node 0"));
  EXPECT_THAT(Refusal({.links = {{.node = 0, .level = "fabric", .rate = 0.5}}}),
              HasSubstr("no network section"));
}

// Goal: it is told, for people and for programs.
TEST_F(DisturbanceTest, IsTold) {
  PlanAnswers answers;
  answers.disturbed = Disturbed(
      {.pass_noise = 0.02,
       .stragglers = {
           {.what = Straggler::What::kNode, .idx = 3, .factor = 1.2}}});
  const std::string text = SummarizePlan(job_, profile_, plan_, answers);
  EXPECT_THAT(text, HasSubstr("  disturbed    "));
  EXPECT_THAT(text, HasSubstr("1 node is slow"));
  EXPECT_THAT(text, HasSubstr("of node 3"));
  const std::string json = PlanToJson(plan_, answers);
  for (const char* key : {"\"disturbed\"", "\"slowdown\"", "\"p95_s\"",
                          "\"causes\"", "\"num_slow_nodes\": 1"}) {
    EXPECT_THAT(json, HasSubstr(key));
  }
}

// Goal: options mean what they say, and others are refused with what was
// expected.
TEST_F(DisturbanceTest, ReadsOptions) {
  const StepNoise noise = {.pass = 0.03};
  DisturbanceSpec spec;
  EXPECT_FALSE(spec.is_given());
  ASSERT_TRUE(ParseNoise("2%", noise, &spec).ok());
  EXPECT_DOUBLE_EQ(spec.pass_noise, 0.02);
  ASSERT_TRUE(ParseNoise("passes=0.5%,steps=0.01", noise, &spec).ok());
  EXPECT_DOUBLE_EQ(spec.pass_noise, 0.005);
  EXPECT_DOUBLE_EQ(spec.step_noise, 0.01);
  ASSERT_TRUE(ParseNoise("profile", noise, &spec).ok());
  EXPECT_DOUBLE_EQ(spec.pass_noise, 0.03);
  ASSERT_TRUE(ParseStraggler("node=3,slower=20%", &spec).ok());
  ASSERT_TRUE(ParseStraggler("slower=0.5,device=17", &spec).ok());
  ASSERT_TRUE(ParseStraggler("nodes=0.5%,slower=8%", &spec).ok());
  ASSERT_EQ(spec.stragglers.size(), 3u);
  EXPECT_DOUBLE_EQ(spec.stragglers[0].factor, 1.2);
  EXPECT_EQ(spec.stragglers[1].what, Straggler::What::kDevice);
  EXPECT_EQ(spec.stragglers[1].idx, 17);
  EXPECT_DOUBLE_EQ(spec.stragglers[2].share, 0.005);
  ASSERT_TRUE(ParseSlowLink("node=1,link=fabric,rate=50%", &spec).ok());
  EXPECT_DOUBLE_EQ(spec.links[0].rate, 0.5);
  EXPECT_TRUE(spec.is_given());

  for (const char* wrong : {"", "x", "-1%", "200%", "2%,steps=1%", "steps",
                            "passes=1%,passes=2%", "nan"}) {
    EXPECT_THAT(std::string(ParseNoise(wrong, noise, &spec).message()),
                HasSubstr("--noise"))
        << wrong;
  }
  for (const char* wrong : {"", "node=3", "slower=20%", "node=-1,slower=20%",
                            "node=a,slower=20%", "node=3,device=2,slower=20%",
                            "nodes=200%,slower=1%", "nodes=1%,slower=2%"}) {
    EXPECT_THAT(std::string(ParseStraggler(wrong, &spec).message()),
                HasSubstr("--straggler"))
        << wrong;
  }
  for (const char* wrong :
       {"node=3", "node=3,link=fabric", "link=fabric",
        "node=3,link=fabric,rate=0", "node=3,link=fabric,rate=2"}) {
    EXPECT_THAT(std::string(ParseSlowLink(wrong, &spec).message()),
                HasSubstr("--slow-link"))
        << wrong;
  }
  EXPECT_THAT(Refusal({.stragglers = {{.what = Straggler::What::kNode,
                                       .idx = 8,
                                       .factor = 2}}}),
              HasSubstr("has 8 nodes"));
  EXPECT_THAT(Refusal({.stragglers = {{.what = Straggler::What::kDevice,
                                       .idx = 64,
                                       .factor = 2}}}),
              HasSubstr("has 64 devices"));
  EXPECT_THAT(Refusal({.links = {{.node = 0, .level = "x", .rate = 0.5}}}),
              HasSubstr("has no link 'x'"));
}

}  // namespace
}  // namespace millrace
