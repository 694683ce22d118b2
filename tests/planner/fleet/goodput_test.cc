#include "planner/fleet/goodput.h"

#include <algorithm>
#include <boost/math/distributions/poisson.hpp>
#include <cmath>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// "The Llama 3 Herd of Models", 2024, section 3.3.4: 419 unexpected stops in 54
// days on 16,384 GPUs, more than 90 % of the time effective.
constexpr double kLlamaHoursBetweenFailures = 54 * 24.0 / 419;
constexpr double kLlamaDevices = 16384;

GoodputSpec LlamaSpec() {
  GoodputSpec spec;
  spec.objective = "goodput";
  spec.mean_time_between_failures_hours =
      kLlamaHoursBetweenFailures * kLlamaDevices;
  spec.checkpoint_seconds = 10;
  spec.recovery_seconds = 300;
  return spec;
}

// Goal: known figures come out. Method: Llama 3's run; and 100,000 such
// devices, which fail every half hour (planner's notes on the paper).
TEST(GoodputTest, KnowsLlama3) {
  const GoodputSpec spec = LlamaSpec();
  EXPECT_NEAR(spec.mean_time_between_failures_hours, 50'677, 5);
  GoodputInput input = {.step_time_s = 11,
                        .tokens_per_step = 16e6,
                        .num_devices = 16384,
                        .devices_per_node = 8};
  const GoodputReport report = PredictGoodput(spec, input);
  EXPECT_TRUE(report.considers_failures);
  EXPECT_NEAR(report.cluster_mean_time_between_failures_s,
              kLlamaHoursBetweenFailures * 3600, 1e-6);
  EXPECT_GT(report.goodput_fraction, 0.9);
  EXPECT_LT(report.goodput_fraction, 0.96);
  EXPECT_NEAR(report.tokens_per_s, report.goodput_fraction * 16e6 / 11, 1e-6);
  // Young's rule, which is good where a checkpoint is cheap.
  EXPECT_NEAR(report.checkpoint_interval_s,
              std::sqrt(2 * 10 * kLlamaHoursBetweenFailures * 3600), 11);

  input.num_devices = 100'000;
  EXPECT_NEAR(PredictGoodput(spec, input).cluster_mean_time_between_failures_s,
              30.4 * 60, 10);
}

// Goal: where checkpoint and recovery are short, goodput is what the usual
// first-order formula says, 1 - C / t - (t / 2 + R) / M.
TEST(GoodputTest, AgreesWithFirstOrderFormula) {
  for (const double recovery : {0.0, 1.0, 5.0}) {
    for (const double interval : {50.0, 100.0, 200.0}) {
      const FailureModel failures = {.mean_time_between_failures_s = 1e5,
                                     .checkpoint_s = 0.05,
                                     .recovery_s = recovery};
      EXPECT_NEAR(SharesOf(failures, interval).useful,
                  1 - 0.05 / interval - (interval / 2 + recovery) / 1e5, 2e-6);
    }
  }
}

// Goal: the interval is the best there is, for cheap checkpoints and for those
// that cost as much as the time between failures, where Young's rule is far
// off. Method: no interval beside it is more useful.
TEST(GoodputTest, BestIntervalIsBest) {
  for (const double checkpoint : {1e-6, 1e-3, 0.1, 1.0, 5.0, 40.0, 100.0}) {
    const FailureModel failures = {.mean_time_between_failures_s = 1,
                                   .checkpoint_s = checkpoint,
                                   .checkpoint_lag_s = 0.2,
                                   .recovery_s = 0.3};
    const double best = BestCheckpointInterval(failures);
    EXPECT_LE(best, 1);
    const double useful = SharesOf(failures, best).useful;
    for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0}) {
      EXPECT_LE(SharesOf(failures, factor * best).useful, useful * (1 + 1e-12))
          << checkpoint << " x " << factor;
    }
  }
  EXPECT_NEAR(BestCheckpointInterval(
                  {.mean_time_between_failures_s = 1e6, .checkpoint_s = 1e-3}),
              std::sqrt(2 * 1e-3 * 1e6), 0.01);
}

// One long run: work, checkpoints that count after a lag, failures at random,
// recoveries that fail too.
TimeShares SimulateFailures(const FailureModel& failures, double interval_s,
                            int64_t num_failures, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> next(
      1 / failures.mean_time_between_failures_s);
  double total = 0, recovery = 0, saved = 0, checkpoints = 0;
  for (int64_t i = 0; i < num_failures; ++i) {
    double until = next(random);
    total += until;
    if (until < failures.recovery_s) {
      recovery += until;
      continue;
    }
    recovery += failures.recovery_s;
    until -= failures.recovery_s;
    double now = 0;
    while (true) {
      now += interval_s + failures.checkpoint_s;
      if (now + failures.checkpoint_lag_s > until) break;
      saved += interval_s;
      checkpoints += failures.checkpoint_s;
    }
  }
  return {.useful = saved / total,
          .checkpoint = checkpoints / total,
          .lost_work = (total - saved - checkpoints - recovery) / total,
          .recovery = recovery / total};
}

// Goal: the closed form is what happens. Method: a million simulated failures,
// rare and frequent against checkpoints, within four standard errors (shares
// of one failure's time scatter by at most about 1).
TEST(GoodputTest, AgreesWithSimulatedFailures) {
  constexpr int64_t kFailures = 1'000'000;
  uint32_t seed = 1;
  for (const double interval : {0.02, 0.3, 1.5}) {
    for (const double checkpoint : {0.01, 0.4}) {
      for (const double lag : {0.0, 0.25}) {
        const FailureModel failures = {.mean_time_between_failures_s = 1,
                                       .checkpoint_s = checkpoint,
                                       .checkpoint_lag_s = lag,
                                       .recovery_s = 0.1};
        SCOPED_TRACE(absl::StrCat(interval, " ", checkpoint, " ", lag));
        const TimeShares expected =
            SimulateFailures(failures, interval, kFailures, ++seed);
        const TimeShares shares = SharesOf(failures, interval);
        const double tolerance = 4 / std::sqrt(kFailures);
        EXPECT_NEAR(shares.useful, expected.useful, tolerance);
        EXPECT_NEAR(shares.checkpoint, expected.checkpoint, tolerance);
        EXPECT_NEAR(shares.lost_work, expected.lost_work, tolerance);
        EXPECT_NEAR(shares.recovery, expected.recovery, tolerance);
        EXPECT_NEAR(shares.useful + shares.checkpoint + shares.lost_work +
                        shares.recovery,
                    1, 1e-12);
      }
    }
  }
}

struct RepairRun {
  double failures_per_s;  // All nodes' together, while all run.
  int32_t num_nodes;
  int32_t num_spares;
  int32_t num_plans = 0;  // For fewer nodes; with none left, all wait.
};

// Nodes that fail and are back after one second, over `duration` seconds;
// shares of the time by the number under repair.
std::vector<double> SimulateRepairs(const RepairRun& run, double duration,
                                    uint32_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> next(run.failures_per_s /
                                             run.num_nodes);
  std::priority_queue<double, std::vector<double>, std::greater<>> back;
  const int32_t last = run.num_spares + run.num_plans + 1;
  std::vector<double> seconds(last + 1, 0);
  double now = 0;
  while (now < duration) {
    const auto absent = static_cast<int32_t>(back.size());
    const int32_t running =
        run.num_nodes - std::max(0, absent - run.num_spares);
    const double failure = absent == last
                               ? std::numeric_limits<double>::infinity()
                               : now + next(random) / running;
    const double until = back.empty() ? failure : std::min(failure, back.top());
    seconds[absent] += until - now;
    now = until;
    if (!back.empty() && back.top() <= now) {
      back.pop();
    } else {
      back.push(now + 1);
    }
  }
  for (double& share : seconds) share /= now;
  return seconds;
}

double ProbabilitySparesSuffice(double mean_absent, int32_t num_spares) {
  return boost::math::cdf(boost::math::poisson(mean_absent), num_spares);
}

// The share of time that a job which needs all its nodes waits for one:
// Erlang's loss formula for num_spares + 1 places.
double WaitingShare(double mean_absent, int32_t num_spares) {
  double blocked = 1;
  for (int32_t k = 1; k <= num_spares + 1; ++k) {
    blocked = mean_absent * blocked / (k + mean_absent * blocked);
  }
  return blocked;
}

// Goal: spares suffice as often as said, and waiting takes the share said,
// though repairs take a fixed time and not a random one.
TEST(GoodputTest, SparesSufficeAsOftenAsSaid) {
  for (const double mean_absent : {0.2, 1.0, 6.0}) {
    for (const int32_t spares : {0, 1, 4, 8}) {
      const std::vector<double> shares =
          SimulateRepairs({mean_absent, 100, spares}, 200'000, 17 + spares);
      EXPECT_NEAR(shares.back(), WaitingShare(mean_absent, spares), 0.01)
          << mean_absent << " " << spares;
    }
    // So many places that nobody ever waits: the number absent is Poisson.
    const std::vector<double> shares =
        SimulateRepairs({mean_absent, 100, 60}, 200'000, 5);
    double sum = 0;
    for (int32_t k = 0; k < 12; ++k) {
      sum += shares[k];
      EXPECT_NEAR(sum, ProbabilitySparesSuffice(mean_absent, k), 0.01);
    }
    for (const double confidence : {0.5, 0.9, 0.99, 0.9999}) {
      const int32_t spares = SparesFor(mean_absent, confidence);
      EXPECT_GE(ProbabilitySparesSuffice(mean_absent, spares), confidence);
      if (spares > 0) {
        EXPECT_LT(ProbabilitySparesSuffice(mean_absent, spares - 1),
                  confidence);
      }
    }
  }
  EXPECT_EQ(SparesFor(0, 0.99), 0);
}

double SumOfShares(const GoodputReport& report) {
  return report.goodput_fraction + report.checkpoint_fraction +
         report.lost_work_fraction + report.recovery_fraction +
         report.waiting_fraction + report.missing_nodes_fraction;
}

// Goal: more spares never yield less; a report's shares are all of the time;
// waiting without spares is Erlang's. Method: 1,024 devices that fail often.
TEST(GoodputTest, SparesHelpAndSharesSumToOne) {
  GoodputSpec spec = LlamaSpec();
  spec.mean_time_between_failures_hours = 5000;
  spec.repair_hours = 48;
  GoodputInput input = {.step_time_s = 4,
                        .tokens_per_step = 4e6,
                        .num_devices = 1024,
                        .devices_per_node = 8};
  double previous = 0;
  for (int32_t spares = 0; spares <= 20; ++spares) {
    input.num_spare_nodes = spares;
    const GoodputReport report = PredictGoodput(spec, input);
    EXPECT_EQ(report.num_spare_nodes, spares);
    EXPECT_GT(report.tokens_per_s, previous);
    EXPECT_NEAR(SumOfShares(report), 1, 1e-9);
    // A node of 8 fails every 625 hours; 128 of them, 48 hours each.
    EXPECT_NEAR(report.waiting_fraction, WaitingShare(128 * 48 / 625.0, spares),
                1e-12);
    previous = report.tokens_per_s;
  }
  input.num_spare_nodes = -1;
  const GoodputReport chosen = PredictGoodput(spec, input);
  EXPECT_GE(ProbabilitySparesSuffice(128 * 48 / 625.0, chosen.num_spare_nodes),
            0.99);
  EXPECT_EQ(chosen.num_spare_nodes, SparesFor(128 * 48 / 625.0, 0.99));
  EXPECT_FALSE(chosen.replans);
}

// Goal: going on with fewer nodes is chosen exactly where it yields more than
// waiting, and then both figures are said.
TEST(GoodputTest, ReplansWhereThatYieldsMore) {
  GoodputSpec spec = LlamaSpec();
  spec.mean_time_between_failures_hours = 5000;
  GoodputInput input = {.step_time_s = 4,
                        .tokens_per_step = 4e6,
                        .num_devices = 1024,
                        .devices_per_node = 8,
                        .num_spare_nodes = 1,
                        .throughput_by_nodes_lost = {0.96, 0.95, 0.95, 0.9}};
  const GoodputReport good = PredictGoodput(spec, input);
  EXPECT_TRUE(good.replans);
  GoodputInput without = input;
  without.throughput_by_nodes_lost.clear();
  const double waiting = PredictGoodput(spec, without).tokens_per_s;
  EXPECT_GT(good.tokens_per_s, 1.5 * waiting);
  EXPECT_GT(good.missing_nodes_fraction, 0);
  EXPECT_NEAR(SumOfShares(good), 1, 1e-9);

  // At a crawl, what more nodes lost meanwhile cost outweighs the gain.
  input.throughput_by_nodes_lost = {0.001, 0.001};
  const GoodputReport poor = PredictGoodput(spec, input);
  EXPECT_FALSE(poor.replans);
  EXPECT_EQ(poor.tokens_per_s, waiting);
  EXPECT_EQ(poor.missing_nodes_fraction, 0);
  EXPECT_NEAR(SumOfShares(poor), 1, 1e-9);
}

// Goal: with plans for fewer nodes, the time on each number of nodes is what
// happens. Method: simulated failures of 12 nodes; where a plan yields half,
// half the time on it is lost.
TEST(GoodputTest, KnowsHowLongNodesAreMissing) {
  GoodputSpec spec = LlamaSpec();
  spec.repair_hours = 24;
  // Each node fails every 72 hours: 4 of 12 are absent.
  spec.mean_time_between_failures_hours = 8 * 72;
  for (const int32_t spares : {0, 2, 5}) {
    const GoodputReport report =
        PredictGoodput(spec, {.step_time_s = 4,
                              .tokens_per_step = 4e6,
                              .num_devices = 96,
                              .devices_per_node = 8,
                              .num_spare_nodes = spares,
                              .throughput_by_nodes_lost = {0.5, 0.5, 0.5}});
    ASSERT_TRUE(report.replans);
    const std::vector<double> shares =
        SimulateRepairs({4, 12, spares, 3}, 200'000, 3 + spares);
    double on_fewer = 0;
    for (int32_t missing = 1; missing <= 3; ++missing) {
      on_fewer += shares[spares + missing];
    }
    EXPECT_NEAR(report.missing_nodes_fraction, on_fewer / 2, 0.01);
    EXPECT_NEAR(report.waiting_fraction, shares.back(), 0.01);
  }
}

// Goal: without failures the report is the step's own; cost counts spares, and
// the cheapest number of them is neither none nor as many as possible.
TEST(GoodputTest, CountsMoney) {
  GoodputSpec spec;
  spec.objective = "cost";
  spec.price_per_device_hour = 2;
  GoodputInput input = {.step_time_s = 4,
                        .tokens_per_step = 4e6,
                        .num_devices = 1024,
                        .devices_per_node = 8};
  GoodputReport report = PredictGoodput(spec, input);
  EXPECT_FALSE(report.considers_failures);
  EXPECT_EQ(report.goodput_fraction, 1);
  EXPECT_DOUBLE_EQ(report.tokens_per_s, 1e6);
  EXPECT_DOUBLE_EQ(report.tokens_per_dollar, 1e6 * 3600 / 2048);
  EXPECT_DOUBLE_EQ(ObjectiveOf(spec, input), 1 / report.tokens_per_dollar);

  spec.mean_time_between_failures_hours = 5000;
  spec.checkpoint_bytes_per_second = 1'000'000'000;
  input.checkpoint_bytes_per_device = 20e9;
  report = PredictGoodput(spec, input);
  EXPECT_DOUBLE_EQ(report.checkpoint_s, 20);
  EXPECT_GT(report.num_spare_nodes, 0);
  for (const int32_t spares :
       {0, report.num_spare_nodes - 1, report.num_spare_nodes + 1, 60}) {
    input.num_spare_nodes = spares;
    EXPECT_GE(report.tokens_per_dollar,
              PredictGoodput(spec, input).tokens_per_dollar);
  }
}

// Goal: objectives order layouts as they say: half the devices at 60 % of the
// speed are slower, but cheaper.
TEST(GoodputTest, ObjectivesDiffer) {
  GoodputSpec spec = LlamaSpec();
  spec.price_per_device_hour = 2;
  const GoodputInput large = {.step_time_s = 3,
                              .tokens_per_step = 4e6,
                              .num_devices = 2048,
                              .devices_per_node = 8};
  GoodputInput small = large;
  small.num_devices = 1024;
  small.step_time_s = 5;
  for (const char* objective : {"step_time", "goodput"}) {
    spec.objective = objective;
    EXPECT_LT(ObjectiveOf(spec, large), ObjectiveOf(spec, small));
  }
  spec.objective = "cost";
  EXPECT_GT(ObjectiveOf(spec, large), ObjectiveOf(spec, small));
}

}  // namespace
}  // namespace millrace
