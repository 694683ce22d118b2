// Search: the best Layout for a job on the measured hardware, and why the
// others lost.

#ifndef MILLRACE_PLANNER_SEARCH_SEARCH_H_
#define MILLRACE_PLANNER_SEARCH_SEARCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"
#include "planner/simulate/timeline.h"

namespace millrace {

struct Prediction {
  double step_time_s = 0;
  double tokens_per_s = 0;  // Over all devices.
  // Model FLOPs of the step over what each rank's best measured GEMM would do
  // in that time; attention counted in full, or its causal half.
  double mfu_full = 0;
  double mfu_causal = 0;
  // Of the most loaded rank, from its Program, or from `closed_form`. Zero
  // together where there is neither.
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;
  // Of device memory beside both arenas (HardwareProfile::memory_overhead).
  int64_t overhead_bytes = 0;
  // What the persistent bytes hold.
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;                // Moments and master weights.
  double bubble_fraction = 0;                 // Of the mean rank's step.
  double exposed_communication_fraction = 0;  // Of the mean rank's step.
  // Spent on computing again, of the mean rank's step; zero for what
  // planner/cost/closed_form.h has not priced and nothing simulated.
  double recompute_fraction = 0;
  // The parts of time and memory where planner/cost/closed_form.h predicted
  // them.
  std::optional<StepPrediction> closed_form;
  // Bounds of the step time, where its spread is known.
  std::optional<double> step_time_low_s;
  std::optional<double> step_time_high_s;
  int64_t memory_bytes() const {
    return persistent_bytes + step_bytes + overhead_bytes;
  }
};

struct Alternative {
  Layout layout;
  // Order of the mesh axes, innermost first: tensor, context, data, pipeline,
  // which is only planned so far; or else tensor, context, pipeline, data.
  bool pipeline_outermost = false;
  bool fits = true;
  bool simulated = false;  // False: closed form only.
  // By stage, what passes may hold in the order that list scheduling makes of
  // them (planner/search/listed_order.h), where that is faster than the one
  // that layout.schedule names; else empty.
  std::vector<int64_t> listed_bytes;
  Prediction prediction;
  // Of a search over all axes that lowered some: what passes or the closed form
  // say, where `prediction` is by instructions or on their scale
  // (planner/search/instruction_finalists.h).
  std::optional<Prediction> by_passes;
  // Of the choice, by the model that priced this layout: where that is not the
  // one of Plan::prediction, only these two times compare.
  double chosen_step_time_s = 0;
  std::string reason;  // Why it lost: "1.23x slower: bubble 43 %", "needs ...".
  // The reason in a few words, for a table's cell: "1.23x slower: bubble 43 %".
  std::string brief_reason;
  // The model that compared it with the choice, where that is not the model of
  // Plan::prediction: "the closed form" or "passes"; else empty.
  std::string compared_by;
};

struct UnevenPlan;  // planner/fleet/uneven.h.

struct Plan {
  Layout layout;
  // Workers cannot execute the layout or the model yet: no timeline and no
  // hashes.
  bool plan_only = false;
  bool pipeline_outermost = false;    // As in Alternative.
  int32_t num_idle_devices = 0;       // That the layout leaves.
  std::vector<int64_t> listed_bytes;  // As in Alternative.
  Prediction prediction;
  std::optional<Prediction> by_passes;    // As in Alternative.
  Timeline timeline;                      // Simulated, of the chosen layout.
  std::vector<uint64_t> program_hashes;   // By stage, training Programs.
  std::vector<Alternative> alternatives;  // Best first; without the chosen.
  int64_t layouts_considered = 0;
  bool simulated = true;       // The choice; as in Alternative.
  bool all_simulated = false;  // All that fit.
  // By what share a layout could be faster at most, by the model that chose; 0:
  // proven to be the best. Absent: not known.
  std::optional<double> optimality_gap;
  double search_seconds = 0;
  // Where anything is computed again: what each op that can be saves and takes
  // in a layer, for one micro-batch, the best first.
  std::vector<RecomputeCandidate> recompute_prices;
  // Where devices of several types have unequal shares; else null.
  std::shared_ptr<const UnevenPlan> uneven;
  // Foreign or stale profile, or one without rows of an op; or Programs that
  // hold more than the closed form says, and than there is.
  std::vector<std::string> warnings;
};

struct SearchInput {
  JobSpec job;
  int32_t num_devices;
  // 0: the profile's. The job's resources.memory_per_device overrides both.
  int64_t device_memory_bytes = 0;
  // Also layouts and models that workers cannot execute yet, ranked by
  // planner/cost/closed_form.h; not all devices need be used.
  bool all_axes = false;
  std::vector<NodeGroup> nodes;  // Where nodes differ, with all_axes.
  // False: of all axes the closed form alone chooses, and stages stay inside
  // replicas, where time is short.
  bool simulates = true;
  // False: of all axes the simulation of passes has the last word, also on what
  // could be lowered, where time is short.
  bool lowers = true;
};

// Whether only a search of all axes can answer: the job asks for what workers
// cannot execute, the profile is a data sheet's, or there are more devices than
// it was measured on and it knows the network between them.
bool NeedsAllAxes(const JobSpec& job, int32_t num_devices,
                  const HardwareProfile& profile);

// Evaluates every layout the job's constraints allow in closed form, lowers and
// simulates the best, and takes the fastest simulated one that fits. Where one
// does not fit, those that shard more of it or compute more again are evaluated
// likewise.
//
// With all_axes planner/search/all_axes_search.h chooses; where the profile has
// tables, those of its best that workers can execute are lowered and simulated
// too, and the fastest by instructions wins
// (planner/search/instruction_finalists.h).
//
// Deterministic but for Plan::search_seconds. Returns InvalidArgument when no
// layout is possible or none fits, with the nearest one, what stands in its
// way, and the smallest change that helps; FailedPrecondition for several
// devices and a profile of one rank, or a profile of another precision or
// without tables.
absl::StatusOr<Plan> FindPlan(const SearchInput& input, const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SEARCH_H_
