// Plans for devices of several types that share the work as they can do it:
// pipeline stages with layers by the speed of their devices, or replicas with
// micro-batches by theirs. Only planned so far.

#ifndef MILLRACE_PLANNER_FLEET_UNEVEN_H_
#define MILLRACE_PLANNER_FLEET_UNEVEN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/fleet/device_pools.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/simulate/pass_timeline.h"

namespace millrace {

// What the devices of one type do in an uneven plan.
struct UnevenPart {
  std::string devices;  // Their profile's name.
  int32_t num_devices = 0;
  // Of split stages: where they are, and the layers of each.
  int32_t first_stage = 0;
  std::vector<int64_t> layers_by_stage;
  // Of split replicas: how many, and the micro-batches of each; some have one
  // less.
  int32_t num_replicas = 0;
  int32_t num_microbatches = 0;
  int32_t num_replicas_with_one_less = 0;
  int64_t memory_bytes = 0;  // Of the most loaded one.
  // Seconds of a step, of the slowest stage of these.
  double busy_s = 0;
};

// A plan that shares the work among devices of several types by what they can
// do.
struct UnevenPlan {
  enum class Split : uint8_t { kStages, kReplicas };
  Split split;
  // Of split stages, all but which layers they have. Of split replicas, `data`
  // of all types and the most micro-batches.
  Layout layout;
  bool pipeline_outermost = false;
  std::vector<UnevenPart> parts;  // By stage, or as the pools.
  StepPrediction closed_form;     // Of the slowest part, the fullest's memory.
  double step_time_s = 0;         // Simulated by passes.
  double bubble_fraction = 0;
  double exposed_communication_fraction = 0;
  int64_t layouts_considered = 0;
  ClusterTimeline timeline;  // Of split replicas, of the slowest type.
};

// What is searched, and what must be beaten.
struct UnevenSearch {
  const JobSpec& job;
  std::span<const DevicePool> pools;  // Two types at least.
  double slowest_s;  // Slower plans, by the closed form, are of no interest.
};

struct UnevenFound {
  std::optional<UnevenPlan> plan;
  // Seconds that the closed form says of no plan of this kind that is faster
  // than asked for; infinity if there is none. With two types; more are not all
  // looked at.
  double floor_s = 0;
};

// The plan whose stages lie on one type of devices each, those of a type in a
// row: layers by speed as far as memory holds them (SplitLayers), the same
// tensor, context and data axes everywhere; whichever stages, order of types
// and number of devices of each make one-forward-one-backward quickest by the
// closed form. ZeRO 0 and 1, and models whose layers are alike. Its fastest few
// are simulated by passes, and the fastest of these is the plan. Nothing where
// none is faster than asked for, or none fits.
absl::StatusOr<UnevenFound> FindUnevenStages(const UnevenSearch& search);

// The plan whose replicas lie on one type of devices each, all in the same
// layout: micro-batches by speed (SplitMicrobatches), with as few devices of
// each type as do that. Gradients are sums over all tokens of the global batch,
// so that each replica's count as its share of them. Experts lie within
// replicas. Likewise simulated.
absl::StatusOr<UnevenFound> FindUnevenReplicas(const UnevenSearch& search);

// Seconds that the closed form says of no plan of either search: as if nothing
// but passes took time, shares could be of any size, and each layer and end of
// the model could lie anywhere (a solution of the dual of that linear program).
// Infinity if there is none.
absl::StatusOr<double> UnevenFloor(const UnevenSearch& search);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_UNEVEN_H_
