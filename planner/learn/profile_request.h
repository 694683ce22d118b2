// What `millrace profile` has to measure for one job: the shapes and sizes that
// its possible layouts use, thinned to what fits a budget.

#ifndef MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_
#define MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// One op to time on a rank that computes alone: any kind but collectives and
// transfers.
struct ProfileOp {
  OpKind kind;
  OpAttributes attributes;
};

// One collective or transfer to time among all ranks at once. Ranks form
// num_ranks / group_size groups of neighbours in rank order; kSend stands for a
// send and its receive, between rank 2i and rank 2i + 1.
struct ProfileCommunication {
  OpKind kind;
  int32_t group_size;  // Divides the number of ranks.
  int64_t bytes;       // Of the full tensor.
  bool by_copy_engines = false;
};

struct ProfileRequest {
  std::vector<ProfileOp> ops;
  std::vector<ProfileCommunication> communication;
};

// How much is asked for.
struct ProfileBudget {
  // Floating-point operations of one call of each chosen op.
  double flops;
  // Of products, attention and heads, each kind; beyond, shapes lie closer than
  // a cost model tells apart.
  size_t shapes_per_kind;
  // Of bandwidth-bound kinds and messages, spread evenly.
  size_t sizes_per_kind;
  // Also what copy engines can do of the communication.
  bool copy_engines = false;
};
// A measurement makes some five calls, so that a slow core (20 GFLOP/s) needs
// ten seconds and leaves the rest of twenty for the other tables.
inline constexpr ProfileBudget kCpuProfileBudget = {
    .flops = 40e9, .shapes_per_kind = 64, .sizes_per_kind = 4};
// Some ten calls on a GPU of 600 TFLOP/s: half a minute of three. So many
// shapes that those of the layout to be chosen are mostly among them.
inline constexpr ProfileBudget kGpuProfileBudget = {.flops = 2e15,
                                                    .shapes_per_kind = 160,
                                                    .sizes_per_kind = 10,
                                                    .copy_engines = true};

// Collects the distinct instructions of every layout the model and batch allow
// on `num_ranks` devices, whatever the job pins, so that one profile serves all
// layouts. Deterministic. Returns InvalidArgument when there is no layout.
absl::StatusOr<ProfileRequest> BuildProfileRequest(
    const ModelSpec& model, const TrainingSpec& training, int32_t num_ranks,
    const ProfileBudget& budget = kCpuProfileBudget);

// The request's op of a kind that takes a GPU longest, up to what it computes
// `max_flops` in, or else the shortest; null for none. The bytes that an op
// moves count too: an activation of a large micro-batch is few FLOPs but tens
// of gigabytes. Both as in bf16.
const ProfileOp* LargestWithin(const ProfileRequest& request, OpKind kind,
                               double max_flops);

// What the request depends on, as part of a file name:
// "h256-f704-n8-k4-d32-v4096-s256-b16".
std::string ProfileShapeKey(const ModelSpec& model,
                            const TrainingSpec& training);

// Adds one measured time to the profile's table for its kind.
void RecordOpTime(const ProfileOp& op, double seconds,
                  HardwareProfile* profile);
void RecordCommunicationTime(const ProfileCommunication& communication,
                             double seconds, HardwareProfile* profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_PROFILE_REQUEST_H_
