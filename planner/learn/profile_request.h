// Lists what `millrace profile` has to measure for one job: the shapes and
// sizes that its possible layouts use, reduced to fit a budget.

#ifndef MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_
#define MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/job/job.h"
#include "planner/learn/step_mix.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// One collective or transfer to time on all ranks at once. Blocks of group_size
// * stride ranks hold `stride` groups whose members are `stride` apart. kSend
// stands for a send and its receive between the two ranks of a group.
struct ProfileCommunication {
  OpKind kind;
  // group_size * stride divides the number of ranks. Transfers may leave ranks
  // that only wait.
  int32_t group_size;
  int32_t stride = 1;
  // Above zero: transfers between hosts of so many ranks. `stride` ranks at the
  // end of every other host send to as many at the begin of the next.
  int32_t from_host_of = 0;
  int64_t bytes;  // Bytes of the full tensor.
  bool by_copy_engines = false;
};
// The members of the group of `rank`; empty if it only waits.
std::vector<Rank> MembersOf(const ProfileCommunication& what, Rank rank,
                            int32_t num_ranks);
int32_t NumBusyRanks(const ProfileCommunication& what, int32_t num_ranks);
// InvalidArgument if there are no such groups among so many ranks.
absl::Status CheckGroups(const ProfileCommunication& what, int32_t num_ranks);

struct ProfileRequest {
  std::vector<ProfileOp> ops;
  std::vector<ProfileCommunication> communication;
  std::vector<StepMix> mixes;  // The load around the ops; by micro-batch.
};

// Limits on the number and size of measurements.
struct ProfileBudget {
  // Floating-point operations of all chosen ops together, one call each.
  double flops;
  // Shapes of each kind of products, attention and heads. More shapes would lie
  // closer together than a cost model tells apart.
  size_t shapes_per_kind;
  // Sizes of each bandwidth-bound kind and of messages, spread evenly.
  size_t sizes_per_kind;
  // Also measures communication by copy engines.
  bool copy_engines = false;
};
// A measurement makes some five calls. A slow core (20 GFLOP/s) then needs ten
// seconds, which leaves ten of twenty for the other tables.
inline constexpr ProfileBudget kCpuProfileBudget = {
    .flops = 40e9, .shapes_per_kind = 64, .sizes_per_kind = 4};
// Some ten calls on a GPU of 600 TFLOP/s take half a minute, of three in all.
// The limits are so large that most shapes of the layout that will be chosen
// are measured.
inline constexpr ProfileBudget kGpuProfileBudget = {.flops = 2e15,
                                                    .shapes_per_kind = 160,
                                                    .sizes_per_kind = 10,
                                                    .copy_engines = true};

// Collects the distinct instructions of every layout that the model and batch
// allow on `num_ranks` devices, of which `ranks_per_host` neighbours share a
// host. Groups on one host are measured among neighbours, groups on several as
// they lie. It ignores the job's pinned layout, so that one profile serves all
// layouts. For 8-bit products it also collects the instructions without them,
// since the search compares the two. Deterministic. Returns InvalidArgument if
// there is no layout.
absl::StatusOr<ProfileRequest> BuildProfileRequest(
    const ModelSpec& model, const TrainingSpec& training, int32_t num_ranks,
    int32_t ranks_per_host, const ProfileBudget& budget = kCpuProfileBudget,
    Backend backend = Backend::kCpu);

// Returns the op of a kind that takes a GPU longest, among those that take no
// longer than `max_flops` of computing. If there is none, returns the shortest;
// null if the request has no op of this kind. Bytes moved count as well as
// FLOPs, since an activation of a large micro-batch has few FLOPs but tens of
// gigabytes. Both are counted as in bf16.
const ProfileOp* LargestWithin(const ProfileRequest& request, OpKind kind,
                               double max_flops);

// Returns the part of a profile's file name that says what the request depends
// on: "h256-f704-n8-k4-d32-v4096-s256-b16".
std::string ProfileShapeKey(const ModelSpec& model,
                            const TrainingSpec& training);

// Adds one measured time to the profile's table for its kind. The profile says
// how many ranks share a host.
void RecordOpTime(const ProfileOp& op, double seconds,
                  HardwareProfile* profile);
void RecordCommunicationTime(const ProfileCommunication& communication,
                             double seconds, HardwareProfile* profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_
