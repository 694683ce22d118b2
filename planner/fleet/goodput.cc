#include "planner/fleet/goodput.h"

#include <algorithm>
#include <boost/math/distributions/poisson.hpp>
#include <boost/math/tools/roots.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

constexpr double kSecondsPerHour = 3600;

// The distribution of the number of absent nodes. Its quantile is the least
// number of nodes that suffices.
using AbsentNodes = boost::math::poisson_distribution<
    double,
    boost::math::policies::policy<boost::math::policies::discrete_quantile<
        boost::math::policies::integer_round_up>>>;

// Shares of the time by the number of missing nodes, in steady state. The job
// runs on all its nodes while spares last, then on fewer as far as there are
// plans. Otherwise it waits, and nothing fails meanwhile.
struct NodeStates {
  std::vector<double> running_on_fewer;  // Index: missing nodes; [0]: none.
  double waiting = 0;
};

// Solves a birth-death chain: a node fails for good after `node_failure_s`
// seconds of running on average, and each of `absent` nodes comes back after
// repair_s.
NodeStates StatesOf(double num_nodes, double node_failure_s, double repair_s,
                    int32_t num_spares, int32_t num_plans) {
  const int32_t last = num_spares + num_plans + 1;
  // Logarithms, since products overflow with many absent nodes.
  std::vector<double> weight(last + 1, 0);
  double largest = 0;
  for (int32_t absent = 1; absent <= last; ++absent) {
    const double running = num_nodes - std::max(0, absent - 1 - num_spares);
    weight[absent] = weight[absent - 1] +
                     std::log(running * repair_s / node_failure_s / absent);
    largest = std::max(largest, weight[absent]);
  }
  double sum = 0;
  for (double& w : weight) sum += w = std::exp(w - largest);
  NodeStates states;
  states.running_on_fewer.assign(num_plans + 1, 0);
  for (int32_t absent = 0; absent < last; ++absent) {
    states.running_on_fewer[std::max(0, absent - num_spares)] +=
        weight[absent] / sum;
  }
  states.waiting = weight[last] / sum;
  return states;
}

// Computes a report's tokens a second and tokens for the price from its
// goodput.
void FillTokens(const GoodputSpec& spec, const GoodputInput& input,
                GoodputReport* report) {
  report->tokens_per_s =
      input.tokens_per_step / input.step_time_s * report->goodput_fraction;
  if (spec.price_per_device_hour == 0) return;
  const double paid_devices =
      input.num_devices +
      static_cast<double>(report->num_spare_nodes) * input.devices_per_node;
  report->tokens_per_dollar = report->tokens_per_s * kSecondsPerHour /
                              (paid_devices * spec.price_per_device_hour);
}

class Predictor {
 public:
  Predictor(const GoodputSpec& spec, const GoodputInput& input)
      : spec_(spec),
        input_(input),
        num_nodes_(std::ceil(static_cast<double>(input.num_devices) /
                             input.devices_per_node)),
        failures_{.mean_time_between_failures_s =
                      spec.mean_time_between_failures_hours * kSecondsPerHour /
                      input.num_devices,
                  .checkpoint_s = spec.checkpoint_seconds.value_or(
                      input.checkpoint_bytes_per_device /
                      static_cast<double>(spec.checkpoint_bytes_per_second)),
                  .checkpoint_lag_s = spec.checkpoint_lag_seconds,
                  .recovery_s = spec.recovery_seconds} {
    // No checkpoint is free; a free one would be taken all the time.
    failures_.checkpoint_s = std::max(failures_.checkpoint_s, 1e-3);
    interval_steps_ = BestSteps();
  }

  GoodputReport Predict() const {
    if (input_.num_spare_nodes >= 0) return With(input_.num_spare_nodes);
    const int32_t enough = SparesFor(MeanAbsent(), spec_.spare_confidence);
    if (spec_.objective != "cost") return With(enough);
    GoodputReport best = With(0);
    // More than twice the spares that nearly always suffice only cost money.
    for (int32_t spares = 1; spares <= 2 * enough + 1; ++spares) {
      const GoodputReport report = With(spares);
      if (report.tokens_per_dollar > best.tokens_per_dollar) best = report;
    }
    return best;
  }

 private:
  double RepairSeconds() const { return spec_.repair_hours * kSecondsPerHour; }
  // Mean seconds until one node fails for good.
  double NodeFailureSeconds() const {
    return failures_.mean_time_between_failures_s * num_nodes_ /
           spec_.repair_share;
  }
  double MeanAbsent() const {
    return MeanAbsentNodes(spec_, input_.num_devices);
  }

  int64_t BestSteps() const {
    const double steps = BestCheckpointInterval(failures_) / input_.step_time_s;
    const auto below = std::max<int64_t>(1, static_cast<int64_t>(steps));
    const auto useful = [&](int64_t count) {
      return SharesOf(failures_,
                      static_cast<double>(count) * input_.step_time_s)
          .useful;
    };
    return useful(below + 1) > useful(below) ? below + 1 : below;
  }

  // Returns the shares of running with `missing` nodes too few. Fewer nodes
  // fail less often.
  TimeShares SharesWithout(size_t missing) const {
    FailureModel failures = failures_;
    failures.mean_time_between_failures_s *=
        num_nodes_ / (num_nodes_ - static_cast<double>(missing));
    return SharesOf(failures,
                    static_cast<double>(interval_steps_) * input_.step_time_s);
  }

  // Adds up the shares with `num_plans` plans for fewer nodes. goodput_fraction
  // is the rest.
  void FillShares(int32_t num_spares, int32_t num_plans,
                  GoodputReport* report) const {
    const NodeStates states = StatesOf(num_nodes_, NodeFailureSeconds(),
                                       RepairSeconds(), num_spares, num_plans);
    double useful = 0;
    report->waiting_fraction = states.waiting;
    for (size_t missing = 0; missing < states.running_on_fewer.size();
         ++missing) {
      const double share = states.running_on_fewer[missing];
      const double speed =
          missing == 0 ? 1 : input_.throughput_by_nodes_lost[missing - 1];
      TimeShares parts = SharesWithout(missing);
      if (missing > 0) {
        // Going back to more nodes after a repair takes a checkpoint and a
        // start, and loses no work.
        const double returns_per_s =
            static_cast<double>(missing + num_spares) / RepairSeconds();
        const double moving = std::min(
            parts.useful,
            returns_per_s * (failures_.checkpoint_s + failures_.recovery_s));
        parts.useful -= moving;
        parts.recovery += moving;
      }
      useful += share * speed * parts.useful;
      report->checkpoint_fraction += share * speed * parts.checkpoint;
      report->lost_work_fraction += share * speed * parts.lost_work;
      report->recovery_fraction += share * speed * parts.recovery;
      report->missing_nodes_fraction += share * (1 - speed);
    }
    report->goodput_fraction = useful;
  }

  GoodputReport With(int32_t num_spares) const {
    GoodputReport waiting;
    waiting.considers_failures = true;
    waiting.cluster_mean_time_between_failures_s =
        failures_.mean_time_between_failures_s;
    waiting.checkpoint_s = failures_.checkpoint_s;
    waiting.checkpoint_interval_steps = interval_steps_;
    waiting.checkpoint_interval_s =
        static_cast<double>(interval_steps_) * input_.step_time_s;
    waiting.num_spare_nodes = num_spares;
    GoodputReport replanning = waiting;
    replanning.replans = true;
    FillShares(num_spares, 0, &waiting);
    // At least one node must remain.
    const auto num_plans = static_cast<int32_t>(
        std::min(static_cast<double>(input_.throughput_by_nodes_lost.size()),
                 num_nodes_ - 1));
    FillShares(num_spares, num_plans, &replanning);
    GoodputReport& better =
        replanning.goodput_fraction > waiting.goodput_fraction ? replanning
                                                               : waiting;
    FillTokens(spec_, input_, &better);
    return better;
  }

  const GoodputSpec& spec_;
  const GoodputInput& input_;
  const double num_nodes_;
  FailureModel failures_;
  int64_t interval_steps_ = 1;
};

GoodputReport WithoutFailures(const GoodputSpec& spec,
                              const GoodputInput& input) {
  GoodputReport report;
  report.num_spare_nodes = std::max(0, input.num_spare_nodes);
  FillTokens(spec, input, &report);
  return report;
}

}  // namespace

TimeShares SharesOf(const FailureModel& failures, double interval_s) {
  const double m = failures.mean_time_between_failures_s;
  // Between two failures, the mean time is M e^(recovery / M), and e^(-lag / M)
  // / (e^((interval + checkpoint) / M) - 1) checkpoints come to count.
  TimeShares shares;
  shares.useful =
      interval_s / m *
      std::exp(-(failures.recovery_s + failures.checkpoint_lag_s) / m) /
      std::expm1((interval_s + failures.checkpoint_s) / m);
  shares.checkpoint = shares.useful * failures.checkpoint_s / interval_s;
  shares.recovery = -std::expm1(-failures.recovery_s / m);
  shares.lost_work =
      std::max(0.0, 1 - shares.useful - shares.checkpoint - shares.recovery);
  return shares;
}

double BestCheckpointInterval(const FailureModel& failures) {
  const double m = failures.mean_time_between_failures_s;
  const double c = failures.checkpoint_s / m;
  CHECK(c > 0) << failures.checkpoint_s << " s a checkpoint";
  if (c > 30) return m;  // Equal up to rounding.
  // The derivative is zero at x = interval / M with x + log(1 - x) + c = 0.
  // This function is concave and falls, and both bounds lie above its root, so
  // Newton's steps descend to it.
  const double bound = std::min(std::sqrt(2 * c), -std::expm1(-1 - c));
  constexpr int kBits = 50;
  std::uintmax_t num_steps = 100;
  const double x = boost::math::tools::newton_raphson_iterate(
      [c](double at) {
        return std::make_pair(at + std::log1p(-at) + c, -at / (1 - at));
      },
      bound, 0.0, bound, kBits, num_steps);
  return x * m;
}

int32_t SparesFor(double mean_absent, double confidence) {
  CHECK(confidence < 1) << confidence;
  if (mean_absent <= 0) return 0;
  // More nodes than anyone has; twice as many still fit the type.
  constexpr double kMost = 1e9;
  return static_cast<int32_t>(std::min(
      kMost, boost::math::quantile(AbsentNodes(mean_absent), confidence)));
}

double MeanAbsentNodes(const GoodputSpec& spec, int32_t num_devices) {
  return spec.mean_time_between_failures_hours > 0
             ? num_devices * spec.repair_share * spec.repair_hours /
                   spec.mean_time_between_failures_hours
             : 0;
}

GoodputReport PredictGoodput(const GoodputSpec& spec,
                             const GoodputInput& input) {
  return spec.mean_time_between_failures_hours > 0
             ? Predictor(spec, input).Predict()
             : WithoutFailures(spec, input);
}

double ObjectiveOf(const GoodputSpec& spec, const GoodputInput& input) {
  if (spec.objective == "step_time") {
    return input.step_time_s / input.tokens_per_step;
  }
  const GoodputReport report = PredictGoodput(spec, input);
  return spec.objective == "cost" ? 1 / report.tokens_per_dollar
                                  : 1 / report.tokens_per_s;
}

}  // namespace millrace
