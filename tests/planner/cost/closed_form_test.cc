#include "planner/cost/closed_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/job/job_file.h"
#include "planner/job/layout_space.h"
#include "planner/profile/shipped_profiles.h"
#include "planner/search/program_prediction.h"
#include "planner/simulate/simulate_passes.h"
#include "tests/planner/known_models.h"
#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// As NVIDIA's MLPerf Training code computes
// (tests/data/published_runs/frameworks.yaml).
Implementation Megatron() {
  Implementation implementation;
  implementation.balances_stages = false;
  implementation.pipeline_outermost = true;
  implementation.gradient_bytes = 4;
  return implementation;
}

Layout MlperfLayout() {
  return {.pipeline = 8,
          .data = 16,
          .tensor = 8,
          .context = 2,
          .interleave = 8,
          .micro_batch = 1,
          .num_microbatches = 72,
          .zero = 1,
          .precision = Precision::kBfloat16,
          .gemm_format = GemmFormat::kFloat8,
          .schedule = Schedule::kInterleaved};
}

StepModel ModelOn(const std::string& profile,
                  const Implementation& implementation = Megatron()) {
  const auto loaded = LoadNamedProfile(profile);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  auto model = StepModel::Create(Llama3_405B(), *loaded, implementation);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

double Seconds(StepModel& model, const Layout& layout) {
  return model.Predict(layout).time.step_time_s();
}

// Goal: an uneven step takes as long and as much memory as its longest
// replica's. Method: the same layout with all replicas that long.
TEST(StepModelTest, PricesTheLongestReplica) {
  StepModel model = ModelOn("h100-sxm");
  Layout even = MlperfLayout();
  even.interleave = 1;
  even.schedule = Schedule::kZeroBubble;
  Layout uneven = even;
  uneven.num_microbatches = 71, uneven.extra_microbatches = 3;
  EXPECT_EQ(Seconds(model, uneven), Seconds(model, even));
  const double bytes = model.Predict(uneven).memory.total();
  EXPECT_EQ(bytes, model.Predict(even).memory.total());
}

// Goal: known answers. MLPerf Training v5.1, Llama 3.1 405B on H100 in fp8:
// 2,048 GPUs 14.22 s, 2,432 GPUs 12.73 s (median of logged steps).
TEST(StepModelTest, PredictsMlperf405B) {
  StepModel model = ModelOn("h100-sxm");
  Layout layout = MlperfLayout();
  EXPECT_NEAR(Seconds(model, layout), 14.219, 0.08 * 14.219);
  layout.data = 19;
  layout.num_microbatches = 64;
  EXPECT_NEAR(Seconds(model, layout), 12.726, 0.08 * 12.726);
}

// Goal: other known answers, none of which the constants were fitted to.
// MLPerf Training v5.1, 405B on 512 GPUs: H100 with TP8 55.1 s, H200 with TP4
// 50.0 s. Korthikanti et al. (2022), table 5: 175B on 64 A100, selective
// recompute, 13.75 s.
TEST(StepModelTest, PredictsRunsThatWereNotFitted) {
  Layout layout = MlperfLayout();
  layout.data = 4;
  layout.num_microbatches = 288;
  StepModel h100 = ModelOn("h100-sxm");
  EXPECT_NEAR(Seconds(h100, layout), 55.133, 0.08 * 55.133);
  layout.tensor = 4;
  layout.data = 8;
  layout.num_microbatches = 144;
  StepModel h200 = ModelOn("h200-cluster");
  EXPECT_NEAR(Seconds(h200, layout), 50.011, 0.08 * 50.011);

  ModelSpec gpt = Gpt3_175B();
  gpt.vocab_size = 51200;  // Padded.
  Implementation megatron_2022 = Megatron();
  megatron_2022.flash_attention = false;
  megatron_2022.dropout = true;
  megatron_2022.chunks_logits = false;
  megatron_2022.overlaps_data = false;
  megatron_2022.overlaps_tensor = false;
  megatron_2022.overlaps_transfers = false;
  megatron_2022.launches_from_host = true;
  megatron_2022.selective = {
      .norms = false, .activation = false, .attention = true};
  const auto a100 = LoadNamedProfile("a100-80gb");
  ASSERT_TRUE(a100.ok()) << a100.status();
  auto model = StepModel::Create(gpt, *a100, megatron_2022);
  ASSERT_TRUE(model.ok()) << model.status();
  const Layout selective{.pipeline = 8,
                         .tensor = 8,
                         .interleave = 3,
                         .micro_batch = 1,
                         .num_microbatches = 64,
                         .precision = Precision::kBfloat16,
                         .recompute = Recompute::kPolicy,
                         .schedule = Schedule::kInterleaved};
  EXPECT_NEAR(Seconds(*model, selective), 13.75, 0.08 * 13.75);
}

// Goal: the pipeline law: with even stages T = t (m + (p - 1) / v) + c, so
// steps of three numbers of micro-batches lie on a line, and its slope times
// (p - 1) / v is the bubble.
TEST(StepModelTest, FollowsThePipelineLaw) {
  for (const int32_t interleave : {1, 2, 4}) {
    Layout layout = MlperfLayout();
    layout.interleave = interleave;
    layout.schedule = interleave > 1 ? Schedule::kInterleaved
                                     : Schedule::kOneForwardOneBackward;
    Implementation in_the_open = Megatron();
    in_the_open.overlaps_data = false;
    StepModel model = ModelOn("h100-sxm", in_the_open);
    double seconds[3];
    for (int i = 0; i < 3; ++i) {
      layout.num_microbatches = 32 + 16 * i;
      seconds[i] = Seconds(model, layout);
    }
    const double slope = (seconds[1] - seconds[0]) / 16;
    EXPECT_NEAR((seconds[2] - seconds[1]) / 16, slope, 1e-9 * slope);
    const double bubble = model.Predict(layout).time.bubble_s;
    EXPECT_NEAR(bubble, slope * 7 / interleave, 0.1 * bubble) << interleave;
  }
}

// Goal: parts sum to the step, none is negative, and each appears with its
// cause: no tensor axis, no tensor communication, and so on.
TEST(StepModelTest, PartsHaveCauses) {
  StepModel model = ModelOn("h100-sxm");
  const StepTime all = model.Predict(MlperfLayout()).time;
  EXPECT_GT(all.compute_s, 0.6 * all.step_time_s());
  EXPECT_EQ(all.recompute_s, 0);
  EXPECT_GT(all.exposed_tensor_s, 0);
  EXPECT_GE(all.exposed_context_s, 0);
  EXPECT_GT(all.exposed_data_s, 0);
  EXPECT_GT(all.bubble_s, 0);
  Layout alone{.micro_batch = 1,
               .num_microbatches = 4,
               .precision = Precision::kBfloat16};
  const StepTime one = model.Predict(alone).time;
  EXPECT_EQ(one.exposed_tensor_s, 0);
  EXPECT_EQ(one.exposed_context_s, 0);
  EXPECT_EQ(one.exposed_data_s, 0);
  EXPECT_EQ(one.bubble_s, 0);
  EXPECT_EQ(one.transfer_s, 0);
  Layout full = MlperfLayout();
  full.recompute = Recompute::kFull;
  const StepTime again = model.Predict(full).time;
  EXPECT_NEAR(again.recompute_s, all.compute_s / 3, 0.15 * all.compute_s);
}

// Goal: gradients in bf16 take half the traffic and some time to round, so that
// they help where the network is slow and nothing hides it, and do nothing to a
// lone replica. Method: links a hundred times slower, no overlap.
TEST(StepModelTest, RoundedGradientsHelpSlowNetworks) {
  HardwareProfile profile = *LoadNamedProfile("h100-sxm");
  Implementation open = Megatron();
  open.overlaps_data = false;
  const auto parts = [&](const Layout& layout) {
    return StepModel::Create(Llama3_405B(), profile, open)
        ->Predict(layout)
        .time;
  };
  for (const int32_t zero : {0, 1, 2}) {
    Layout layout = MlperfLayout();
    layout.zero = zero;
    const StepTime plain = parts(layout);
    layout.gradient_reduction = GradientReduction::kBfloat16;
    const StepTime rounded = parts(layout);
    EXPECT_LT(rounded.exposed_data_s, plain.exposed_data_s);
    EXPECT_GT(rounded.optimizer_s, plain.optimizer_s);
    layout.data = layout.context = 1;
    const StepTime lone = parts(layout);
    layout.gradient_reduction = GradientReduction::kFloat32;
    EXPECT_EQ(lone.optimizer_s, parts(layout).optimizer_s);
  }
  for (NetworkLevel& level : profile.network) level.bytes_per_s /= 100;
  Layout layout = MlperfLayout();
  layout.zero = 0;
  const StepTime plain = parts(layout);
  layout.gradient_reduction = GradientReduction::kBfloat16;
  EXPECT_NEAR(parts(layout).exposed_data_s, plain.exposed_data_s / 2,
              0.1 * plain.exposed_data_s);
  EXPECT_LT(parts(layout).step_time_s(), plain.step_time_s());
}

// Goal: bf16 between groups alone halves what crosses and leaves what is sent
// inside as it was; it pays where the network is slow. Method: four groups of
// eight replicas, one a node, without overlap, for every ZeRO stage: the time
// that is saved is half of what crossing took, which a faster network shows.
TEST(StepModelTest, RoundingBetweenGroupsHalvesWhatCrosses) {
  HardwareProfile slow = *LoadNamedProfile("h100-sxm");
  slow.network.back().bytes_per_s /= 20;
  HardwareProfile fast = slow;
  fast.network.back().bytes_per_s *= 1e6;
  Implementation open = Megatron();
  open.overlaps_data = false;
  const auto predict = [&](const HardwareProfile& profile, int32_t zero,
                           GradientReduction reduction) {
    const Layout layout{.data = 32,
                        .data_groups = 4,
                        .micro_batch = 1,
                        .num_microbatches = 2,
                        .zero = zero,
                        .precision = Precision::kBfloat16,
                        .gradient_reduction = reduction};
    return StepModel::Create(Llama3_8B(), profile, open)->Predict(layout).time;
  };
  constexpr auto kPlain = GradientReduction::kFloat32;
  constexpr auto kAcross = GradientReduction::kBfloat16Across;
  for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
    SCOPED_TRACE(zero);
    const StepTime plain = predict(slow, zero, kPlain);
    const StepTime across = predict(slow, zero, kAcross);
    const double inside_s = predict(fast, zero, kPlain).exposed_data_s;
    const double crossing_s = plain.exposed_data_s - inside_s;
    EXPECT_GT(crossing_s, 0);
    EXPECT_NEAR(plain.exposed_data_s - across.exposed_data_s, crossing_s / 2,
                0.02 * crossing_s);
    EXPECT_GT(across.optimizer_s, plain.optimizer_s);
    EXPECT_LT(across.step_time_s(), plain.step_time_s());
    EXPECT_GT(predict(fast, zero, kAcross).step_time_s(),
              predict(fast, zero, kPlain).step_time_s());
  }
}

// Goal: no layout gets faster on a slower machine, nor slower where more is
// overlapped. Method: halve each link, and switch the overlaps.
TEST(StepModelTest, IsMonotonic) {
  const auto profile = LoadNamedProfile("h100-sxm");
  ASSERT_TRUE(profile.ok());
  StepModel model = ModelOn("h100-sxm");
  for (const int32_t zero : {0, 1, 2, 3}) {
    Layout layout = MlperfLayout();
    layout.zero = zero;
    const double base = Seconds(model, layout);
    for (size_t level = 0; level < profile->network.size(); ++level) {
      HardwareProfile slower = *profile;
      slower.network[level].bytes_per_s /= 2;
      auto slow = StepModel::Create(Llama3_405B(), slower, Megatron());
      EXPECT_GE(Seconds(*slow, layout), base);
    }
    for (bool Implementation::*overlap :
         {&Implementation::overlaps_data, &Implementation::overlaps_tensor,
          &Implementation::overlaps_transfers}) {
      Implementation open = Megatron();
      open.*overlap = false;
      StepModel in_the_open = ModelOn("h100-sxm", open);
      EXPECT_GE(Seconds(in_the_open, layout), base);
    }
  }
}

// Goal: H200's memory bandwidth and room let TP4 beat TP8, as MLPerf's runs of
// 512 H200 and H100 show (50.0 s with TP4 against 55.1 s with TP8).
TEST(StepModelTest, Tp4BeatsTp8OnH200) {
  StepModel h200 = ModelOn("h200-cluster");
  Layout tp8 = MlperfLayout();
  tp8.data = 4;
  tp8.num_microbatches = 288;
  Layout tp4 = tp8;
  tp4.tensor = 4;
  tp4.data = 8;
  tp4.num_microbatches = 144;
  EXPECT_LT(Seconds(h200, tp4), Seconds(h200, tp8));
}

// Goal: the closed form knows what our own workers did on four H200, priced
// from the profile that was measured there
// (docs/results/2026-11-21-training-h200.md).
TEST(StepModelTest, PredictsOwnStepsOnH200) {
  struct Step {
    const char* job;
    Layout layout;
    double seconds;
  };
  const Layout bf16{.precision = Precision::kBfloat16};
  auto with = [&](int32_t pipeline, int32_t data, int32_t tensor,
                  int32_t micro_batch, int32_t num_microbatches, int32_t zero) {
    Layout layout = bf16;
    layout.pipeline = pipeline;
    layout.data = data;
    layout.tensor = tensor;
    layout.micro_batch = micro_batch;
    layout.num_microbatches = num_microbatches;
    layout.zero = zero;
    return layout;
  };
  Layout zero_bubble = with(4, 1, 1, 1, 16, 0);
  zero_bubble.schedule = Schedule::kZeroBubble;
  const Step steps[] = {
      {"llama3-1b-1gpu", with(1, 1, 1, 4, 1, 0), 0.524},
      {"llama3-1b-4gpu", with(1, 4, 1, 4, 1, 1), 0.546},
      {"llama3-8b-4gpu", with(1, 4, 1, 1, 2, 1), 1.463},
      {"llama3-8b-4gpu", with(1, 4, 1, 2, 1, 2), 1.465},
      {"llama3-70b-10-layers-4gpu", with(1, 2, 2, 1, 1, 1), 0.484},
      {"llama3-8b-pipeline-4gpu", with(4, 1, 1, 1, 16, 0), 1.793},
      {"llama3-8b-pipeline-4gpu", zero_bubble, 1.683}};
  const auto profile = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(profile.ok()) << profile.status();
  for (const Step& step : steps) {
    const auto job = LoadJob(absl::StrCat("configs/bench/", step.job, ".yaml"));
    ASSERT_TRUE(job.ok()) << job.status();
    auto model = StepModel::Create(job->model, *profile, {});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_NEAR(Seconds(*model, step.layout) / step.seconds, 1, 0.08)
        << step.job << ": " << LayoutToString(step.layout);
  }
}

// Goal: what the context axis shards is gathered and reduced as often as what
// the data axis shards. Method: one layout of both kinds for each ZeRO stage,
// whose replicas are the same ranks and whose traffic nothing hides.
TEST(StepModelTest, ShardsOverContextAsOverData) {
  Implementation in_the_open;
  in_the_open.overlaps_data = false;
  StepModel model = ModelOn("h100-sxm", in_the_open);
  for (const int32_t zero : {0, 1, 2, 3}) {
    Layout data{.data = 8,
                .num_microbatches = 4,
                .zero = zero,
                .precision = Precision::kBfloat16};
    Layout context = data;
    context.data = 1;
    context.context = 8;
    EXPECT_NEAR(model.Predict(context).time.exposed_data_s /
                    model.Predict(data).time.exposed_data_s,
                1, 1e-9)
        << zero;
  }
}

// Goal: groups of the data axis keep gathers off slow links, and what crosses
// does so once a step, at the price of memory. Method: 8B on four nodes, whose
// traffic nothing hides, by network speed, ZeRO stage and micro-batches.
TEST(StepModelTest, DataGroupsTradeMemoryForTheSlowNetwork) {
  HardwareProfile profile = *LoadNamedProfile("h100-sxm");
  Implementation open;
  open.overlaps_data = false;
  const auto predict = [&](int32_t groups, int32_t zero, int32_t microbatches) {
    return StepModel::Create(Llama3_8B(), profile, open)
        ->Predict({.data = 32,
                   .data_groups = groups,
                   .num_microbatches = microbatches,
                   .zero = zero,
                   .precision = Precision::kBfloat16});
  };
  for (const int32_t zero : {1, 2, 3}) {
    const StepMemory whole = predict(1, zero, 4).memory;
    const StepMemory cut = predict(4, zero, 4).memory;
    EXPECT_GT(cut.optimizer, 3.9 * whole.optimizer) << zero;
    EXPECT_LT(cut.total(), predict(1, 0, 4).memory.total()) << zero;
  }
  NetworkLevel& fabric = profile.network.back();
  fabric.bytes_per_s /= 10;
  // Under ZeRO 1, summing fp32 slices across is as many bytes as scattering
  // fp32 gradients and gathering bf16 parameters once.
  for (const int32_t zero : {2, 3}) {
    EXPECT_LT(predict(4, zero, 4).time.exposed_data_s,
              predict(1, zero, 4).time.exposed_data_s)
        << zero;
  }
  // A further micro-batch of ZeRO 3 costs the inner links alone.
  const auto further = [&](int32_t groups) {
    return predict(groups, 3, 9).time.exposed_data_s -
           predict(groups, 3, 8).time.exposed_data_s;
  };
  const double inside_s = further(4);
  EXPECT_GT(inside_s, 0);
  EXPECT_GT(further(1), 5 * inside_s);
  fabric.bytes_per_s /= 10;
  EXPECT_NEAR(further(4), inside_s, 1e-9);
  // A ring of n ranks sends (n - 1) / n of the bytes twice over each link. A
  // hierarchical all-reduce counts the nodes alone.
  EXPECT_NEAR(predict(4, 0, 1).time.exposed_data_s /
                  predict(1, 0, 1).time.exposed_data_s,
              (3.0 / 4) / (31.0 / 32), 0.02);
}

// Goal: what simulation starts from is what Predict sums. Method: one stage
// without ends: passes times micro-batches.
TEST(StepModelTest, PassCostsSumToTheStep) {
  StepModel model = ModelOn("h100-sxm");
  Layout layout = MlperfLayout();
  const PipelineCosts costs = model.PassCosts(layout);
  ASSERT_EQ(costs.chunks.size(), 64u);
  EXPECT_EQ(costs.stage_of_chunk[9], 1);
  double passes = 0;
  for (const ChunkCosts& chunk : costs.chunks) {
    passes +=
        chunk.forward_s + chunk.input_gradient_s + chunk.weight_gradient_s;
    EXPECT_GT(chunk.activation_bytes, 0);
  }
  const StepTime time = model.Predict(layout).time;
  const double busy =
      time.compute_s + time.exposed_tensor_s + time.exposed_context_s;
  EXPECT_NEAR(layout.num_microbatches * passes / 8, busy, 0.1 * busy);
  const StepModel::StepEnds ends = model.EndsOf(layout);
  EXPECT_GT(ends.gradient_reduction_s, ends.parameter_gather_s);
  EXPECT_GT(ends.optimizer_s, 0);
}

// Goal: interleaving helps less where micro-batches are fewer than stages.
// Method: the step simulated by passes, around their number.
TEST(StepModelTest, FewMicrobatchesInterleaveBadly) {
  StepModel model = ModelOn("h100-sxm");
  for (const int32_t num_microbatches : {4, 7, 8, 16, 24}) {
    Layout layout = MlperfLayout();
    layout.num_microbatches = num_microbatches;
    const auto step = PassStepOf(layout, Megatron(), model);
    ASSERT_TRUE(step.ok()) << step.status();
    const auto simulated = SimulatePasses(*step, {.keeps_timeline = false});
    ASSERT_TRUE(simulated.ok()) << simulated.status();
    EXPECT_NEAR(Seconds(model, layout), simulated->step_time_s,
                0.1 * simulated->step_time_s)
        << num_microbatches;
  }
}

// The same layout with more sharded over replicas or recomputed, by set and
// ZeRO stage. Empty for replicas without ZeRO, of which others shard more.
std::vector<Layout> SmallerLayouts(const LayoutSpace& space,
                                   const Layout& layout) {
  if (layout.data > 1 && layout.zero == 0) return {};
  std::vector<Layout> smaller;
  for (const StageRecomputes& again : AllowedRecomputes(space, layout)) {
    for (int32_t zero = layout.zero; zero <= (layout.data > 1 ? 3 : 0);
         ++zero) {
      Layout variant = layout;
      variant.zero = zero;
      SetRecompute(again, &variant);
      if (variant.shards_gradients()) {
        variant.schedule = Schedule::kOneForwardOneBackward;
      }
      if (variant != layout &&
          ValidateLayout(space.model, variant, space.global_batch).ok()) {
        smaller.push_back(variant);
      }
    }
  }
  return smaller;
}

// Layouts of the job, with and without sharding and recompute.
std::vector<Layout> LayoutsOf(const JobSpec& job, int32_t num_devices) {
  const LayoutSpace space = LayoutSpaceOf(job, num_devices);
  std::vector<Layout> layouts;
  for (const Layout& layout : EnumerateLayouts(space)) {
    layouts.push_back(layout);
    const std::vector<Layout> smaller = SmallerLayouts(space, layout);
    for (size_t i = 0; i < smaller.size(); i += 5) {
      layouts.push_back(smaller[i]);
    }
  }
  return layouts;
}

// Goal: measured tables alone price a step, in fp32 and bf16. Method: layouts
// of a small job on machines with quick and slow links, whose ranks share the
// cores of a host or not, against the simulation by instructions.
TEST(StepModelTest, PricesStepsFromTablesAlone) {
  struct Case {
    double link_bytes_per_second, contention_per_rank;
    Precision precision;
  };
  const JobSpec job = SmallJob();
  for (const Case& machine :
       {Case{1e8, 0, Precision::kFloat32}, Case{1e9, 0.3, Precision::kFloat32},
        Case{1e11, 0.6, Precision::kFloat32},
        Case{1e9, 0, Precision::kBfloat16}}) {
    HardwareProfile profile =
        MakeProfile({.link_bytes_per_second = machine.link_bytes_per_second,
                     .contention_per_rank = machine.contention_per_rank});
    profile.precision = machine.precision;
    const CostModel cost = *CostModel::Create(profile);
    auto model = StepModel::Create(job.model, profile, {});
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<double> errors;
    for (Layout layout : LayoutsOf(job, 4)) {
      layout.precision = machine.precision;
      ASSERT_TRUE(model->CheckPrices(layout).ok());
      Timeline timeline;
      const auto simulated = PredictLayout(job.model, layout, cost, &timeline);
      ASSERT_TRUE(simulated.ok()) << simulated.status();
      const StepPrediction predicted = model->Predict(layout);
      errors.push_back(
          std::abs(predicted.time.step_time_s() / simulated->step_time_s - 1));
      // Loose: the closed form knows no order within a pass.
      EXPECT_LT(errors.back(), 0.2) << LayoutToString(layout);
      // In bf16 the workspace of kernels is more than so small a model. The
      // closed form does not know what deferred weight gradients hold.
      if (layout.precision == Precision::kBfloat16 ||
          layout.schedule == Schedule::kZeroBubble) {
        continue;
      }
      EXPECT_NEAR(static_cast<double>(predicted.memory.total()) /
                      static_cast<double>(simulated->memory_bytes()),
                  1, 0.2)
          << LayoutToString(layout);
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_LT(errors[errors.size() / 2], 0.07)
        << machine.link_bytes_per_second << " B/s";
  }
}

// Goal: a profile of one rank prices that rank exactly, and says that it prices
// no others. Method: all layouts of one rank, against the simulation.
TEST(StepModelTest, PricesOneRankFromTablesAlone) {
  const JobSpec job = SmallJob();
  const HardwareProfile profile =
      MakeProfile({.num_ranks = 1, .ranks_per_host = 1});
  const CostModel cost = *CostModel::Create(profile);
  auto model = StepModel::Create(job.model, profile, {});
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Layout& layout : LayoutsOf(job, 1)) {
    Timeline timeline;
    const double simulated_s =
        PredictLayout(job.model, layout, cost, &timeline)->step_time_s;
    EXPECT_NEAR(Seconds(*model, layout), simulated_s, 1e-3 * simulated_s)
        << LayoutToString(layout);
  }
  EXPECT_THAT(std::string(model->CheckPrices({.data = 2}).message()),
              HasSubstr("measured with one rank"));
  EXPECT_THAT(
      std::string(
          model->CheckPrices({.precision = Precision::kBfloat16}).message()),
      HasSubstr("measured in fp32"));
}

// Goal: models and axes that no worker executes have a price from tables alone
// too. Method: experts, latent attention and the context axis; all parts of the
// time are finite and computing takes longer than on more ranks.
TEST(StepModelTest, PricesPlannedLayoutsFromTablesAlone) {
  ModelSpec model = SmallJob().model;
  model.moe = {.num_experts = 4, .experts_per_token = 2, .expert_hidden = 64};
  auto prices = StepModel::Create(model, MakeProfile({}), {});
  ASSERT_TRUE(prices.ok()) << prices.status();
  const Layout one{.micro_batch = 2, .num_microbatches = 2};
  Layout spread = one;
  spread.expert = spread.context = 2;
  const StepTime alone = prices->Predict(one).time;
  const StepTime shared = prices->Predict(spread).time;
  EXPECT_GT(alone.compute_s, shared.compute_s);
  EXPECT_GT(shared.compute_s, 0);
  EXPECT_EQ(alone.exposed_context_s + alone.exposed_expert_s, 0);
  EXPECT_GT(shared.exposed_expert_s, 0);
  EXPECT_TRUE(std::isfinite(shared.step_time_s()));
}

TEST(StepModelTest, RefusesWhatItCannotPrice) {
  const auto profile = LoadNamedProfile("h100-sxm");
  HardwareProfile nothing = *profile;
  nothing.device = {};
  EXPECT_THAT(std::string(StepModel::Create(Llama3_405B(), nothing, Megatron())
                              .status()
                              .message()),
              HasSubstr("device"));
  // Tables do not make up for a constant with a wrong name.
  HardwareProfile typo = *LoadNamedProfile("h200-sxm");
  typo.constants.front().name = "gem_share";
  EXPECT_THAT(std::string(StepModel::Create(Llama3_405B(), typo, Megatron())
                              .status()
                              .message()),
              HasSubstr("gem"));
  ModelSpec odd = Llama3_405B();
  odd.hidden = 0;
  EXPECT_FALSE(StepModel::Create(odd, *profile, Megatron()).ok());
}

}  // namespace
}  // namespace millrace
