#include "planner/learn/learn_from_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/op_cost.h"
#include "planner/learn/measured_noise.h"
#include "planner/learn/outliers.h"
#include "planner/learn/profile_update.h"
#include "planner/learn/shape_errors.h"
#include "planner/learn/unexplained_time.h"
#include "planner/lower/lower.h"
#include "planner/profile/learnt_history.h"
#include "planner/profile/prediction_interval.h"
#include "planner/profile/profile_merge.h"
#include "planner/search/program_prediction.h"

namespace millrace {
namespace {

// More errors would take seconds to solve for. Those that take most of the step
// come first.
constexpr size_t kMostErrors = 400;
// A table with more rows would make planning slow.
constexpr size_t kMostRows = 2000;
// Limit on the share of an op in the time of all ops. A smaller share matters
// to nobody.
constexpr double kMinorShare = 2e-3;
// Limit on the share of a shape's calls in one context. Calls in rarer
// circumstances were odd.
constexpr double kRareShare = 0.1;

// One shape in one context, over the steps of the run.
struct Measured {
  std::vector<double> log_ratios;  // Indexed by step.
  // The same for whole calls, which take a launch beside the row's time.
  std::vector<double> log_call_ratios;
  int64_t num_calls = 0;
  double step_share_s = 0;
};

absl::Status CheckSameMachine(const HardwareProfile& planned_with,
                              const HardwareProfile& profile) {
  const auto kind = [](const HardwareProfile& of) {
    return absl::StrCat(MachineKind(of.provenance.machine), ", ",
                        of.provenance.threads_per_device, " threads a device, ",
                        PrecisionName(of.precision));
  };
  if (kind(planned_with) == kind(profile)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the run was planned for ", kind(planned_with),
                   ", the profile to update is of ", kind(profile),
                   "; name another profile, or measure one with millrace "
                   "profile JOB"));
}

class Learning {
 public:
  Learning(const MeasuredRun& run, const HardwareProfile& profile)
      : run_(run), before_(profile), update_(run, profile) {}

  absl::StatusOr<LearntProfile> Learn() {
    RETURN_IF_ERROR(Check());
    ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(before_));
    ASSIGN_OR_RETURN(programs_, BuildTrainingPrograms(run_.model, run_.layout));
    RETURN_IF_ERROR(CheckProfile(run_.layout, cost));
    ASSIGN_OR_RETURN(const Timeline predicted,
                     SimulatePrograms(programs_, cost));
    // The unexplained time shows only if all that ops explain is accounted for.
    ASSIGN_OR_RETURN(CostModel explained,
                     CostModel::Create(LearnOps(cost, /*damps=*/false)));
    if (run_.ran_apart) {
      RETURN_IF_ERROR(LearnMeasuring(explained));
      ASSIGN_OR_RETURN(explained,
                       CostModel::Create(LearnOps(cost, /*damps=*/false)));
    }
    LearnOps(cost, /*damps=*/true);
    RETURN_IF_ERROR(LearnWaits(explained));
    LearnNoise();
    ASSIGN_OR_RETURN(const CostModel after, CostModel::Create(profile()));
    ASSIGN_OR_RETURN(const Timeline now, SimulatePrograms(programs_, after));
    RETURN_IF_ERROR(Record(predicted.step_time_s, now.step_time_s));
    return std::move(update_.result());
  }

 private:
  HardwareProfile& profile() { return update_.profile(); }

  absl::Status Check() const {
    for (const LearntRun& known : before_.learnt_runs) {
      if (known.run == run_.name) {
        return absl::AlreadyExistsError(absl::StrCat(
            "the profile learnt from the run ", run_.name, " on ", known.date));
      }
    }
    if (run_.steps.empty() || run_.step_time_s <= 0) {
      return absl::InvalidArgumentError(
          "no step to learn from: the first two of a generation warm up, and "
          "no other was measured op by op; train for more steps");
    }
    return CheckSameMachine(run_.planned_with, before_);
  }

  // Changes the profile and also returns it.
  HardwareProfile LearnOps(const CostModel& cost, bool damps) {
    update_.Restart(damps);
    num_calls_.clear();
    named_.clear();
    LearnOverheads();
    const ShapeErrors errors(Errors(cost));
    LearnRows(cost, errors);
    LearnFactors(errors);
    return profile();
  }

  // If steps are measured apart, measuring lengthens all their ops by about one
  // factor. This shortens them so that together they explain no more time than
  // the other steps take.
  absl::Status LearnMeasuring(const CostModel& explained) {
    ASSIGN_OR_RETURN(const Timeline all,
                     SimulatePrograms(programs_, explained));
    measuring_ = std::clamp(run_.step_time_s / all.step_time_s,
                            1 / kMostContentionRatio, 1.0);
    return absl::OkStatus();
  }

  void LearnOverheads() {
    if (run_.ran_apart) return;
    std::vector<double> launches, ends;
    for (const StepObservation& step : run_.steps) {
      launches.push_back(step.launch_s);
      ends.push_back(step.between_steps_s);
    }
    update_.MoveOverhead("launch_overhead_s", MedianOf(std::move(launches)),
                         &profile().launch_overhead_s);
    update_.MoveOverhead("waits.between_steps_s", MedianOf(std::move(ends)),
                         &profile().waits.between_steps_s);
  }

  // Returns the ratio of two slow-downs in a context: the one by which the
  // observed seconds were divided, and the one of the current profile.
  double Rebase(const OpContext& context, bool communication) const {
    const auto factor = [&](const HardwareProfile& of) {
      const std::vector<double>& contention = of.compute_contention;
      const int last = static_cast<int>(contention.size()) - 1;
      const double shared =
          contention[std::clamp(context.num_computing - 1, 0, last)];
      if (!context.overlapped) return shared;
      return shared *
             (communication ? of.overlap.communication : of.overlap.compute);
    };
    return factor(run_.planned_with) / factor(before_);
  }

  // Returns the error of each shape, without those beyond the limits.
  std::vector<ShapeError> Errors(const CostModel& cost) {
    std::map<std::pair<OpShape, OpContext>, Measured> measured;
    for (const StepObservation& step : run_.steps) {
      for (const OpObservation& op : step.ops) {
        Measured& of = measured[{op.shape, op.context}];
        const double alone_s = op.seconds * measuring_ *
                               Rebase(op.context, IsCommunication(op.shape));
        const double launch_s = profile().launch_overhead_s;
        // A time that is nearly all launch tells nothing.
        if (alone_s - launch_s < 0.2 * alone_s) continue;
        const double listed_s = cost.RowSeconds(op.shape);
        of.log_ratios.push_back(std::log((alone_s - launch_s) / listed_s));
        of.log_call_ratios.push_back(std::log(alone_s / (listed_s + launch_s)));
        of.num_calls += op.num_calls;
        of.step_share_s +=
            op.seconds * op.slowdown * static_cast<double>(op.num_calls);
      }
    }
    double all_s = 0;
    std::map<OpShape, int64_t> calls_of_shape;
    for (const auto& [key, of] : measured) {
      all_s += of.step_share_s;
      calls_of_shape[key.first] += of.num_calls;
    }
    std::vector<std::pair<double, ShapeError>> errors;
    for (const auto& [key, of] : measured) {
      if (of.log_ratios.empty() ||
          static_cast<double>(of.num_calls) <
              kRareShare * static_cast<double>(calls_of_shape[key.first])) {
        continue;
      }
      const std::vector<bool> credible = AreCredible(of.log_ratios);
      double sum = 0, count = 0;
      for (size_t i = 0; i < credible.size(); ++i) {
        if (!credible[i]) continue;
        sum += of.log_ratios[i];
        ++count;
      }
      if (count == 0) continue;
      const double log_ratio = sum / count;
      const double share = of.step_share_s / all_s;
      if (Refuses(key.first, MedianOf(of.log_call_ratios), share)) continue;
      num_calls_[key.first] += of.num_calls;
      errors.push_back({share,
                        {.shape = key.first,
                         .context = key.second,
                         .log_ratio = log_ratio,
                         .num_calls = of.num_calls,
                         .is_minor = share < kMinorShare}});
    }
    std::ranges::stable_sort(errors, std::greater<>(),
                             &std::pair<double, ShapeError>::first);
    errors.resize(std::min(errors.size(), kMostErrors));
    std::vector<ShapeError> chosen;
    for (auto& [share, error] : errors) chosen.push_back(error);
    return chosen;
  }

  bool Refuses(const OpShape& shape, double log_ratio, double share) {
    const double most = FindSeconds(shape, &profile()) != nullptr
                            ? kMostRowRatio
                            : kMostGuessRatio;
    if (std::fabs(log_ratio) <= std::log(most)) return false;
    // Reports each shape once, not for each context.
    if (share < kMinorShare || !named_.insert(shape).second) return true;
    update_.Refuse(absl::StrFormat(
        "%s: took %.2f times as long as the profile says; at most %g are "
        "learnt, either way: if it stays so, measure again with millrace "
        "profile JOB",
        ShapeText(shape), std::exp(log_ratio), most));
    return true;
  }

  void LearnRows(const CostModel& cost, const ShapeErrors& errors) {
    size_t num_rows = 0;
    VisitRows(profile(), [&](const OpShape& shape, double& seconds) {
      ++num_rows;
      const auto seen = num_calls_.find(shape);
      update_.ScaleRow(shape, errors.OfRow(shape),
                       seen == num_calls_.end() ? 0 : seen->second, &seconds);
    });
    for (const auto& [shape, num_calls] : num_calls_) {
      if (FindSeconds(shape, &profile()) != nullptr) continue;
      if (++num_rows > kMostRows) {
        update_.Refuse(absl::StrCat(ShapeText(shape),
                                    ": no room for another measured shape"));
        continue;
      }
      EnsureCurve(shape, cost, errors);
      update_.AddRow(shape, errors.OfRow(shape), num_calls,
                     cost.RowSeconds(shape));
    }
  }

  // Adds rows of other sizes before the first measured row of a kind is added.
  // Otherwise that one row would stand for all sizes of the kind, and a small
  // one is all latency. The added rows keep the times given so far: for
  // communication at the sizes measured for other groups, for other ops at the
  // rate of other kinds.
  void EnsureCurve(const OpShape& shape, const CostModel& cost,
                   const ShapeErrors& errors) {
    const size_t at = IsCommunication(shape) ? 1 : 0;  // Index of the bytes.
    const auto has_sizes_only = [&](const OpShape& row) {
      return at == 1 ? IsCommunication(row) : NumFigures(row) == 1;
    };
    if (!has_sizes_only(shape)) return;
    std::set<int64_t> sizes;
    if (at == 0) sizes = {64 * kKiB, kMiB, 16 * kMiB, 256 * kMiB};
    bool has_curve = false;
    VisitRows(profile(), [&](const OpShape& row, double&) {
      if (!has_sizes_only(row)) return;
      has_curve = has_curve || KindText(row) == KindText(shape);
      if (at == 1) sizes.insert(row.figures[at]);
    });
    if (has_curve) return;
    for (const int64_t bytes : sizes) {
      OpShape row = shape;
      row.figures[at] = bytes;
      if (row == shape) continue;
      update_.AddRow(row, errors.OfRow(row), /*num_calls=*/0,
                     cost.RowSeconds(row));
    }
  }

  void LearnFactors(const ShapeErrors& errors) {
    std::vector<double>& contention = profile().compute_contention;
    for (size_t i = 1; i < contention.size(); ++i) {
      update_.ScaleFactor(ContentionKey(i),
                          errors.OfContention(static_cast<int>(i) + 1),
                          &contention[i]);
    }
    update_.ScaleFactor("overlap.compute",
                        errors.OfOverlap(/*communication=*/false),
                        &profile().overlap.compute);
    update_.ScaleFactor("overlap.communication",
                        errors.OfOverlap(/*communication=*/true),
                        &profile().overlap.communication);
  }

  static std::string ContentionKey(size_t i) {
    return absl::StrCat("compute_contention[", i, "]");
  }

  absl::Status LearnWaits(const CostModel& cost) {
    int64_t num_unplaced = 0;
    std::map<int32_t, size_t> slow;
    for (const StepObservation& step : run_.steps) {
      num_unplaced += step.num_unplaced;
      for (const int32_t rank : step.slow_ranks) ++slow[rank];
    }
    for (const auto& [rank, num_steps] : slow) {
      if (2 * num_steps < run_.steps.size()) continue;
      ++num_slow_ranks_;
      update_.Refuse(absl::StrCat(
          "rank ", rank, ": much slower than the others in ", num_steps, " of ",
          run_.steps.size(), " steps; its ops counted for nothing"));
    }
    if (num_unplaced > 0) {
      update_.Refuse(absl::StrCat(
          num_unplaced,
          " collectives and transfers of ranks that are no neighbours, over "
          "several hosts, or beyond those measured: the tables have none of "
          "these"));
    }
    // The step then holds time that is not the machine's, or of unknown origin.
    if (num_slow_ranks_ > 0 || num_unplaced > 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const StepClosure closure,
                     CloseStep(programs_, cost, run_.step_time_s));
    if (!closure.refused.empty()) update_.Refuse(closure.refused);
    update_.MoveArrivalSpread(closure.arrival_spread);
    for (size_t i = 1; i < profile().compute_contention.size(); ++i) {
      update_.ScaleFactor(ContentionKey(i), std::log(closure.contention_scale),
                          &profile().compute_contention[i]);
    }
    return absl::OkStatus();
  }

  void LearnNoise() {
    std::vector<Scatter> of_steps;
    for (const StepObservation& step : run_.steps) {
      of_steps.push_back(step.passes);
    }
    const StepNoise supposed = NoiseFor(before_);
    update_.MoveNoise(kPassNoise, supposed.pass, Pooled(of_steps));
    update_.MoveNoise(kRunNoise, supposed.run, RunScatterOf(run_.step_times_s));
  }

  absl::Status Record(double predicted_s, double predicted_after_s) {
    const double off = std::fabs(std::log(run_.step_time_s / predicted_s));
    const double now_off =
        std::fabs(std::log(run_.step_time_s / predicted_after_s));
    constexpr double kWorse = 0.01;
    if (num_slow_ranks_ == 0 && now_off > off + kWorse) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a profile that learnt from the run would predict its step at %s, "
          "measured %s; before, %s",
          FormatSeconds(predicted_after_s), FormatSeconds(run_.step_time_s),
          FormatSeconds(predicted_s)));
    }
    LearntProfile& result = update_.result();
    result.run = {.run = run_.name,
                  .date = run_.date,
                  .layout = LayoutToString(run_.layout),
                  .num_steps = static_cast<int32_t>(run_.steps.size()),
                  .num_slow_ranks = num_slow_ranks_,
                  .measured_s = run_.step_time_s,
                  .predicted_s = predicted_s,
                  .predicted_after_s = predicted_after_s};
    Remember(result.run, &profile());
    ForgetOld(&profile());
    const StepError error = ErrorOfHistory(profile());
    if (error.is_given()) profile().step_error = error;
    std::ranges::stable_sort(result.learnt, std::greater<>(), Moved);
    return absl::OkStatus();
  }

  static double Moved(const LearntValue& value) {
    if (value.before <= 0 || value.after <= 0) return 0;
    return std::fabs(std::log(value.after / value.before));
  }

  const MeasuredRun& run_;
  const HardwareProfile& before_;
  ProfileUpdate update_;
  std::vector<Program> programs_;
  std::map<OpShape, int64_t> num_calls_;  // Calls of shapes learnt from.
  std::set<OpShape> named_;               // Shapes refused.
  int32_t num_slow_ranks_ = 0;
  double measuring_ = 1;  // Factor that shortens measured ops.
};

}  // namespace

absl::StatusOr<LearntProfile> LearnFromRun(const MeasuredRun& run,
                                           const HardwareProfile& profile) {
  return Learning(run, profile).Learn();
}

}  // namespace millrace
