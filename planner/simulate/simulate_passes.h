// A discrete-event simulator of a training step at the level of passes, for any
// number of devices: ranks that do alike are simulated once, and where noise or
// slow machines make replicas differ, each replica is.
//
// Each stage runs its passes in their order on its compute lane. A chunk hands
// its results to the next over the sender's lane of that direction. Buckets of
// parameters are gathered before the first forward pass of their chunk, which
// goes through them one by one. Buckets of gradients are reduced as the last
// backward or weight-gradient pass of their chunk is through with each. The
// optimizer runs when all stages have all their gradients, since their norm is
// common.
//
// Replicas run their passes apart and meet in gathers and reductions, which
// take their time from the last replica's arrival.

#ifndef MILLRACE_PLANNER_SIMULATE_SIMULATE_PASSES_H_
#define MILLRACE_PLANNER_SIMULATE_SIMULATE_PASSES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/graph/style.h"
#include "planner/layout/layout.h"
#include "planner/pipeline/passes.h"
#include "planner/profile/profile.h"
#include "planner/simulate/pass_timeline.h"

namespace millrace {

struct PassOps;  // planner/simulate/pass_ops.h

struct PassStep {
  PipelineCosts costs;
  PassOrder order;  // planner/pipeline/pass_order.h, or any other.
  // Once-a-step work by stage; one entry stands for all stages. A stage's
  // chunks have equal shares of it.
  std::vector<StepModel::StepEnds> ends;
  int32_t num_buckets = 1;  // Buckets of each chunk.
  // The ops of the step, if Programs say them (passes_of_programs.h). Then only
  // the numbers of stages, micro-batches and ranks count beside them.
  std::shared_ptr<const PassOps> ops;
  // The share of gathers and reductions that passes may hide. The rest of the
  // gathers comes before a stage's passes, that of the reductions after them.
  double data_hidden_share = 1;
  // False: the sender computes nothing during a transfer.
  bool overlaps_transfers = true;
  int32_t num_replicas = 1;
  // Ranks that compute a pass together, in step with each other: neighbours in
  // rank order. Replica r's stage s holds the ranks from (r x num_stages + s) x
  // ranks_per_pass on or, with the pipeline outermost, from (s x num_replicas +
  // r) x ranks_per_pass on.
  int32_t ranks_per_pass = 1;
  bool pipeline_outermost = false;
};

// Frameworks reduce and gather in buckets of some tens of millions of elements:
// a stage of a large model has eight at least.
int32_t BucketsOfChunk(int32_t chunks_of_stage);

// The step of `layout` by the prices of `model`, which is of this
// implementation, in the order that the layout's schedule names. Ranks that
// share experts compute together, however many replicas they belong to; what
// the traffic of each micro-batch costs under ZeRO 2 and 3 is part of its
// backward passes. InvalidArgument for what OrderOf refuses.
absl::StatusOr<PassStep> PassStepOf(const Layout& layout,
                                    const Implementation& implementation,
                                    StepModel& model);

// A machine whose link of one level of the network is slower than others':
// factors on what uses it there (planner/fleet/disturbance.h prices them).
struct SlowLink {
  int32_t machine;
  std::vector<double> passes;  // By stage.
  double transfer = 1;
  // A slow link inside the machine slows transfers that stay there, another
  // those that leave it or reach it.
  bool is_inside = false;
  // All ranks that reduce or gather together wait for the slowest link.
  double parameter_gather = 1;
  double gradient_reduction = 1;
};

// A rank whose computing takes so many times as long.
struct SlowRank {
  int64_t rank;
  double factor;
};

struct PassOptions {
  // While a stage computes and sends, receives, gathers or reduces, each goes
  // on so much slower. `waits` counts for ops made of Programs only, since
  // other passes do not tell their kernels.
  OverlapFactors overlap;
  // Standard deviation of the logarithm of a pass's time on ranks_per_pass
  // ranks; the mean time stays.
  double noise_sigma = 0;
  // Standard deviation of the logarithm of a factor on a whole step, which all
  // ranks share; the factor's mean is 1. Timelines leave it out.
  double step_sigma = 0;
  // Machines that are slow for good, drawn at random: their share, and the
  // factor on the time of what is computed on them.
  double straggler_share = 0;
  double straggler_factor = 1;
  int32_t ranks_per_machine = 8;
  // Known factors, by machine; those left out have 1.
  std::vector<double> machine_slowdown;
  std::vector<SlowRank> slow_ranks;
  std::vector<SlowLink> slow_links;
  uint64_t seed = 0;
  int32_t num_steps = 1;  // Drawn with different noise.
  bool keeps_timeline = true;
  bool finds_causes = false;

  bool replicas_differ() const {
    return noise_sigma > 0 || straggler_share > 0 ||
           !machine_slowdown.empty() || !slow_ranks.empty() ||
           !slow_links.empty();
  }
};

// A cause of waiting in a step: ops on the critical path, the chain of ops each
// of which starts as the one before ends, up to the end of the step.
struct SlowdownCause {
  enum class Kind : uint8_t {
    kPasses,
    kTransfers,
    kGathers,
    kReductions,
    kOptimizer,
  };
  Kind kind;
  int32_t stage;          // Sender of a transfer.
  int32_t receiver = -1;  // Receiving stage of a transfer.
  int32_t replica = -1;   // -1: ops that all replicas run together.
  // Seconds of a mean step that these ops take longer on the critical path than
  // undisturbed.
  double seconds = 0;
};

struct PassSimulation {
  double step_time_s = 0;  // Mean of step_times_s.
  std::vector<double> step_times_s;
  double undisturbed_step_time_s = 0;  // Without noise and slow machines.
  int32_t num_slow_machines = 0;
  // Most first, if asked for and replicas differ. They sum to at least
  // step_time_s - undisturbed_step_time_s, but for step_sigma: the path
  // undisturbed is no longer than the undisturbed step.
  std::vector<SlowdownCause> causes;
  // Shares of the mean stage's undisturbed step: its passes and optimizer,
  // waiting for gathers and reductions, and waiting for other stages. They sum
  // to 1.
  double compute_fraction = 0;
  double exposed_data_fraction = 0;
  double bubble_fraction = 0;
  // The first step drawn; empty unless kept. Where replicas differ, a stage has
  // two classes: the slowest replica, and the middle one for the others.
  // Otherwise a stage has one class.
  PassTimeline timeline;
};

// Equal inputs give equal results. InvalidArgument naming what is wrong with an
// order or an option; Internal naming the passes that wait for each other, if
// the order deadlocks.
absl::StatusOr<PassSimulation> SimulatePasses(const PassStep& step,
                                              const PassOptions& options);

// The first rank that computes the passes of a replica's stage.
int64_t FirstRankOf(const PassStep& step, int32_t replica, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_SIMULATE_PASSES_H_
