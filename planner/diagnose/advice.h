// Finds what the planner would change about a recorded step. A trace says how
// long a step took and what the device did, but it has no model, batch or
// layout. These come from a job file.

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
// Kernels, launches and copies are not counted, since no layout changes them.
struct LayoutShare {
  int64_t exposed_communication_ns = 0;
  int64_t waiting_ns = 0;  // Idle with work launched, mostly for a transfer.
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
  double measured_s = 0;  // The diagnosed step on its slowest device.
  PlannedLayout
      recorded;        // The layout of the job; the planner fills open keys.
  PlannedLayout best;  // With an open layout.
  std::vector<std::string> changes;  // From recorded to best: "tensor 4 to 2".
  // The questions that the trace, the job or the profile leaves open.
  std::vector<std::string> caveats;

  // How many times shorter the predicted step is.
  double speedup() const {
    return recorded.prediction.step_time_s / best.prediction.step_time_s;
  }
  // The expected step time of the best layout, if it is as much slower than
  // predicted as the recorded one.
  double expected_s() const { return measured_s / speedup(); }
  // Recorded over predicted time of one layout. No change of layout improves
  // it.
  double shortfall() const {
    return measured_s / recorded.prediction.step_time_s;
  }
  // Whether trace, job and profile can belong to one step. Steps are seldom
  // twice as fast as predicted, but much slower if the host is late.
  bool fits_trace() const { return shortfall() > 0.5 && shortfall() < 5; }
};

// `job` is the recorded job with the layout section as it ran. If `num_devices`
// is 0, it is the trace's world size, or else the product of the job's axes.
//
// Returns InvalidArgument if trace, job and `num_devices` disagree on the
// number of devices, naming both sides, and for a diagnosis of more than one
// step. Other errors are those of FindPlan().
absl::StatusOr<Advice> Advise(const Trace& trace, const Diagnosis& diagnosis,
                              const JobSpec& job, int32_t num_devices,
                              const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_ADVICE_H_
