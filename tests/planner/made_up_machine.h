// Machines that do otherwise than their profiles say, and runs on them as a
// coordinator observes them.

#ifndef MILLRACE_TESTS_PLANNER_MADE_UP_MACHINE_H_
#define MILLRACE_TESTS_PLANNER_MADE_UP_MACHINE_H_

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "planner/cost/op_cost.h"
#include "planner/learn/learn_from_run.h"
#include "planner/lower/lower.h"
#include "planner/profile/op_shape.h"
#include "planner/search/program_prediction.h"
#include "tests/planner/played_step.h"

namespace millrace {

// The ways in which a machine differs from its profile.
struct Truth {
  HardwareProfile profile;  // As it should be.
  double noise = 0.03;      // Standard deviation of log(time) of a call.
  // So many calls take five times as long: an interrupt, a page fault.
  double outlier_share = 0.002;
  // By what factor all of a step takes longer that is measured op by op, while
  // others are not.
  double measuring = 1;
  // Standard deviation of log(time) of all that a run does.
  double run_noise = 0;
  int32_t slow_rank = -1;  // Takes five times as long over everything.
};

// Every kind of op has a slow-down of its own, every row a little one.
inline HardwareProfile SlowedDown(HardwareProfile profile, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> of_kind(-0.25, 0.55);
  std::normal_distribution<double> of_row(0, 0.02);
  std::map<std::string, double> by_kind;
  VisitRows(profile, [&](const OpShape& shape, double& seconds) {
    const double shared =
        by_kind.emplace(KindText(shape), of_kind(random)).first->second;
    seconds *= std::exp(shared + of_row(random));
  });
  return profile;
}

class Machine {
 public:
  Machine(ModelSpec model, Truth truth, uint32_t seed)
      : model_(std::move(model)), truth_(std::move(truth)), random_(seed) {}

  const HardwareProfile& truth() const { return truth_.profile; }

  // Median of the steps that a run of the layout would measure.
  double StepSeconds(const Layout& layout) {
    const std::vector<Program> programs =
        *BuildTrainingPrograms(model_, layout);
    BeginRun();
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) times.push_back(Play(programs).step_time_s);
    return MedianOf(times);
  }
  double Predicted(const Layout& layout, const HardwareProfile& profile) const {
    const std::vector<Program> programs =
        *BuildTrainingPrograms(model_, layout);
    return SimulatePrograms(programs, *CostModel::Create(profile))->step_time_s;
  }

  // A run of some steps, as its coordinator would observe them.
  MeasuredRun Run(const std::string& name, const Layout& layout,
                  const HardwareProfile& profile, int num_steps = 6) {
    const std::vector<Program> programs =
        *BuildTrainingPrograms(model_, layout);
    const CostModel known = *CostModel::Create(profile);
    MeasuredRun run{.name = name,
                    .date = "2026-02-03T04:05:06Z",
                    .model = model_,
                    .layout = layout,
                    .planned_with = profile,
                    .step_times_s = {},
                    .steps = {}};
    BeginRun();
    run.ran_apart = truth_.measuring != 1;
    std::vector<double>& times = run.step_times_s;
    for (int i = 0; i < num_steps; ++i) {
      Timeline timeline = Play(programs);
      times.push_back(timeline.step_time_s);
      for (RankTimeline& rank : timeline.ranks) {
        for (TimelineEvent& event : rank.events) {
          event.start_s *= truth_.measuring;
          event.end_s *= truth_.measuring;
        }
      }
      ShiftClocks(&timeline, 0.3 * timeline.step_time_s);
      run.steps.push_back(*ObserveStep(programs, known, timeline,
                                       {.ran_apart = run.ran_apart}));
    }
    run.step_time_s = MedianOf(times);
    return run;
  }

 private:
  void BeginRun() {
    if (truth_.run_noise == 0) return;
    run_factor_ = std::exp(
        std::normal_distribution<double>(0, truth_.run_noise)(random_));
  }

  Timeline Play(const std::vector<Program>& programs) {
    const CostModel cost = *CostModel::Create(truth_.profile);
    std::map<int32_t, std::vector<double>> by_stage;
    for (const Program& program : programs) {
      by_stage[program.stage] = cost.ProgramSeconds(program);
    }
    std::normal_distribution<double> noise(0, truth_.noise);
    std::uniform_real_distribution<double> chance(0, 1);
    const Layout& layout = programs.front().layout;
    return PlayStep(
        programs,
        [&](size_t rank, InstructionId id) {
          const auto rank_id = Rank{static_cast<int32_t>(rank)};
          const int32_t stage = CoordinatesOf(layout, rank_id).pipeline;
          double seconds = by_stage[stage][static_cast<size_t>(id)];
          seconds *= run_factor_ * std::exp(noise(random_));
          if (chance(random_) < truth_.outlier_share) seconds *= 5;
          const Instruction& instruction =
              programs[static_cast<size_t>(stage)]
                  .instructions[static_cast<size_t>(id)];
          const bool is_slow = ToInt(rank_id) == truth_.slow_rank &&
                               instruction.lane == Lane::kCompute;
          return is_slow ? 5 * seconds : seconds;
        },
        truth_.profile.launch_overhead_s);
  }

  ModelSpec model_;
  Truth truth_;
  std::mt19937 random_;
  double run_factor_ = 1;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_MADE_UP_MACHINE_H_
