// A discrete-event simulator: runs the Programs of all pipeline stages against
// the times of their instructions and yields a Timeline.

#ifndef MILLRACE_PLANNER_SIMULATE_SIMULATE_INSTRUCTIONS_H_
#define MILLRACE_PLANNER_SIMULATE_SIMULATE_INSTRUCTIONS_H_

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

struct StageSimulation {
  const Program* program;
  // Seconds of each instruction run alone (planner/cost/op_cost.h), by
  // InstructionId. A collective's or transfer's time counts from when its last
  // member arrives.
  std::vector<double> seconds;
  // Whether copy engines run the instruction, by InstructionId; empty means
  // none. A collective of copy engines ends with a kernel, which has to wait
  // where NCCL's do.
  std::vector<bool> by_copy_engines;
};

struct SimulationOptions {
  // Ranks whose compute lanes share the cores of one host, and how much each is
  // slowed when n of them compute at once (profile.h). Empty: not at all. Where
  // they share cores, communication takes cores too, one of each of its ranks
  // while it is under way, and is slowed in the same way
  // (planner/cost/host_sharing.h).
  std::vector<double> compute_contention;
  int32_t ranks_per_host = 1;
  // While a rank computes and something of its communication is under way, not
  // waiting for others, each goes on so much slower.
  OverlapFactors overlap;
  // The same for communication by copy engines, which never waits to begin.
  OverlapFactors copy_engine_overlap;
  // How far ranks that do alike are apart when they meet (StepWaits,
  // profile.h).
  double arrival_spread = 0;
};

// `stages[i]` is pipeline stage i; one representative of each stage is
// simulated, standing for all its tensor and data coordinates (they do alike).
// A transfer joins stage i and i + 1; a world collective joins all stages.
// Returns one RankTimeline a stage, under the rank of its first coordinate.
// Returns Internal naming the stuck instructions if the Programs deadlock,
// Cancelled once a stop is requested.
absl::StatusOr<Timeline> Simulate(std::span<const StageSimulation> stages,
                                  const SimulationOptions& options,
                                  const std::stop_token& stop = {});

// Seconds from the start of a part of a stage's step, by the places of its
// instructions in the span that names them.
struct PartTimes {
  std::vector<double> start_s;
  std::vector<double> end_s;
};

// The activity of another communication's kernels while a part runs.
enum class BesidePart : uint8_t { kNothing, kTraffic, kWaitForPeer };

// When these instructions of one stage run by themselves: all else that they
// wait for is there. They are given lane by lane, in each lane's order.
PartTimes TimesOfPart(const StageSimulation& stage,
                      const SimulationOptions& options,
                      std::span<const InstructionId> part, BesidePart beside);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_SIMULATE_INSTRUCTIONS_H_
