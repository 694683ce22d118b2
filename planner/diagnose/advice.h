// What the planner would change about a recorded step. A trace says how long a
// step took and what the device did; it says neither the model nor the batch
// nor the layout, so these come from a job file.

#ifndef MILLRACE_PLANNER_DIAGNOSE_ADVICE_H_
#define MILLRACE_PLANNER_DIAGNOSE_ADVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/trace_analysis.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/search/plan.h"

namespace millrace {

// The time that a better layout could save at most, judged by the trace alone.
// Kernels, launches and copies are not counted: no layout changes them.
struct LayoutShare {
  int64_t exposed_communication_ns = 0;
  int64_t waiting_ns = 0;  // Idle with work launched: for a transfer, mostly.
  int64_t window_ns = 0;
};
LayoutShare LayoutShareOf(const Diagnosis& diagnosis);

struct PlannedLayout {
  Layout layout;
  Prediction prediction;
};

struct Advice {
  std::string profile;
  int32_t num_devices = 0;
  double measured_s = 0;  // The step diagnosed, of its slowest device.
  PlannedLayout
      recorded;        // What the job pins; the planner's where it does not.
  PlannedLayout best;  // With no layout pinned.
  std::vector<std::string> changes;  // From recorded to best: "tensor 4 to 2".
  // The questions that the trace, the job or the profile leaves open.
  std::vector<std::string> caveats;

  // How many times shorter the predicted step is.
  double speedup() const {
    return recorded.prediction.step_time_s / best.prediction.step_time_s;
  }
  // The step time of the best layout, if it falls as far short of its
  // prediction as the recorded one does.
  double expected_s() const { return measured_s / speedup(); }
  // Recorded over predicted, of one layout: what no change of layout mends.
  double shortfall() const {
    return measured_s / recorded.prediction.step_time_s;
  }
  // Whether trace, job and profile can be of one step. Steps are seldom twice
  // as fast as predicted, and slower where the host is late.
  bool fits_trace() const { return shortfall() > 0.5 && shortfall() < 5; }
};

// `job` is the one that was recorded, its layout section as it ran.
// `num_devices` 0: the trace's world size, or the product of the job's axes.
//
// InvalidArgument, naming both sides, where trace, job and `num_devices`
// disagree on the number of devices; for a diagnosis that is of no one step;
// and as FindPlan.
absl::StatusOr<Advice> Advise(const Trace& trace, const Diagnosis& diagnosis,
                              const JobSpec& job, int32_t num_devices,
                              const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_ADVICE_H_
