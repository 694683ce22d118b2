// Plans how GPUs copy their training state to host memory while training goes
// on, and predicts how long training stalls for one such snapshot. Pure.
//
// A copy engine downloads the state during the step that follows, in the order
// in which the optimizer of that step changes it. An op of the optimizer waits
// until its part of the state has been read. Where a download takes longer than
// the step up to its optimizer, the first bytes of the state are staged: they
// are copied within the device to memory that nothing else uses, and are
// downloaded from there after the rest. The optimizer then waits for the rest
// alone.

#ifndef MILLRACE_PLANNER_SEARCH_SNAPSHOT_PLAN_H_
#define MILLRACE_PLANNER_SEARCH_SNAPSHOT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/program/parameters.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// "training stalls for 8.5 ms, 14.2 GiB are staged on the device", or "training
// does not stall".
std::string SnapshotText(const SnapshotPlan& plan);

// A part of a rank's state.
struct SnapshotPart {
  int64_t bytes = 0;
  // Seconds from the start of a step until its first op that changes the part.
  double readable_s = 0;
};
// One rank's whole state, in the order in which it is read.
using SnapshotParts = std::vector<SnapshotPart>;

// Bytes per second of one device, above 0.
struct SnapshotRates {
  double to_host = 0;        // Downloads to page-locked host memory.
  double within_device = 0;  // Copies within the device's memory.
};

// Predicts the stall of the rank that stalls longest, with `staged_bytes` on
// each rank. A staged copy is counted in full, although passes go on beside it,
// since both need the device's memory. To it is added the time by which the
// optimizer comes too early for the rest.
double SnapshotStall(std::span<const SnapshotParts> ranks,
                     const SnapshotRates& rates, int64_t staged_bytes);

// Stages as much as no rank can download before its optimizer needs it, with a
// tenth of that time as a margin, and at most `free_bytes`.
SnapshotPlan PlanSnapshots(std::span<const SnapshotParts> ranks,
                           const SnapshotRates& rates, int64_t free_bytes);

// Bytes of a checkpoint that one data-parallel rank of a stage writes: the
// parameter and both moments of its share of the elements, in fp32.
int64_t StateBytesOfRank(const StageParameters& parameters,
                         const Layout& layout);

// The part of each bucket (StageParameters::buckets). A state of less than 4
// GiB is one part. A larger one is two, the last of which is a sixteenth: the
// optimizer comes to it late, so its download may end late too. More parts
// would gain little, and each takes an event of every step.
std::vector<int32_t> PartOfBuckets(const StageParameters& parameters,
                                   const Layout& layout);
// The bucket that an op of the optimizer (OpKind::kAdamW) changes.
std::optional<size_t> BucketOfUpdate(const Instruction& instruction,
                                     const StageParameters& parameters);

// Whether the job copies its training state while it trains: for checkpoints,
// exports, or copies in memory.
bool TakesSnapshots(const JobSpec& job);

// The snapshots of a job on GPUs, whose Programs and their simulated timeline
// are given by stage. `memory_limit` is that of one device. Nothing for a job
// that takes no snapshots, for one on CPUs, for moments that the host widens
// (training waits for these), and where the profile states no rate of downloads
// (HardwareProfile::host_link).
std::optional<SnapshotPlan> PlanSnapshotsOf(const JobSpec& job,
                                            std::span<const Program> programs,
                                            const Timeline& timeline,
                                            const CostModel& cost,
                                            int64_t memory_limit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SNAPSHOT_PLAN_H_
