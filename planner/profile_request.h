// What `millrace profile` has to measure for one job: the shapes and sizes that
// its possible layouts use, thinned to what fits in some twenty seconds.

#ifndef MILLRACE_PLANNER_PROFILE_REQUEST_H_
#define MILLRACE_PLANNER_PROFILE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/job.h"
#include "planner/ops.h"
#include "planner/profile.h"

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
};

struct ProfileRequest {
  std::vector<ProfileOp> ops;
  std::vector<ProfileCommunication> communication;
};

// Collects the distinct instructions of every layout the model and batch allow
// on `num_ranks` devices, whatever the job pins, so that one profile serves all
// layouts. Deterministic. Returns InvalidArgument when there is no layout.
absl::StatusOr<ProfileRequest> BuildProfileRequest(const ModelSpec& model,
                                                   const TrainingSpec& training,
                                                   int32_t num_ranks);

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

#endif  // MILLRACE_PLANNER_PROFILE_REQUEST_H_
