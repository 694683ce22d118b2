// Lists the layouts that a job allows on a given number of devices, or explains
// why there are none.

#ifndef MILLRACE_PLANNER_JOB_LAYOUT_SPACE_H_
#define MILLRACE_PLANNER_JOB_LAYOUT_SPACE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

struct LayoutSpace {
  ModelSpec model;
  int64_t global_batch;
  int32_t num_devices;
  int32_t least_devices = 1;  // Layouts of a LayoutTree use so many at least.
  Precision precision = Precision::kFloat32;
  // Absent: the search chooses between fp32 and bf16 for what hosts send each
  // other alone.
  std::optional<GradientReduction> gradient_reduction =
      GradientReduction::kFloat32;
  MomentFormat moments = MomentFormat::kFloat32;
  Objective objective = Objective::kCrossEntropy;
  int32_t document_length = 0;  // Layout's.
  GemmFormat gemm_format = GemmFormat::kAsStored;
  LayoutConstraints constraints;
  // Neighbours that share the fastest links. 0: no data axis is known to span
  // nodes.
  int32_t devices_per_node = 0;
  // The sets of ops worth computing again in a layout, least first, none of
  // which depends on how often or by whom its stages run; null: where nothing
  // has a price, UnpricedRecomputes(). A plain function of the layout.
  std::function<std::vector<Recompute>(const Layout& layout)> recomputes;
};

// The recompute choices that the job allows for this layout.
std::vector<StageRecomputes> AllowedRecomputes(const LayoutSpace& space,
                                               const Layout& layout);

// Ascending: the sizes into which devices, batches and experts divide.
std::vector<int32_t> DivisorsOf(int64_t value);

LayoutSpace LayoutSpaceOf(const JobSpec& job, int32_t num_devices);

// The part of the space that workers can execute; nothing where the model, the
// format or a pinned key stands against that.
std::optional<LayoutSpace> ExecutableSpace(const LayoutSpace& space);

// Every layout that uses all devices, respects the constraints and passes
// ValidateLayout, the simpler first: fewer tensor shards, fewer stages, no
// ZeRO, fewer and larger micro-batches. ZeRO-1 without data replicas is ZeRO-0
// and appears only where it is asked for; ZeRO-2, ZeRO-3 and recompute, which
// buy memory with time, likewise.
std::vector<Layout> EnumerateLayouts(const LayoutSpace& space);

// For a space without layouts: InvalidArgument with the nearest layout, what
// stands in its way, and the smallest change that gives one.
absl::Status ExplainNoLayout(const LayoutSpace& space);

// OK if the job allows some layout on so many devices; ExplainNoLayout's status
// if not. Needs no profile: memory is not looked at.
absl::Status CheckLayouts(const JobSpec& job, int32_t num_devices);

// Pins the job's axes, micro-batch, ZeRO, recompute, schedule and gradient
// reduction, so that a search considers only `layout`.
void PinLayout(const Layout& layout, JobSpec* job);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_LAYOUT_SPACE_H_
