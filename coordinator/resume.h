// Chooses the checkpoint from which training goes on when some may be damaged.
// Damaged ones are skipped, but never silently: a job must not begin again from
// its first step because its checkpoints could not be read.

#ifndef MILLRACE_COORDINATOR_RESUME_H_
#define MILLRACE_COORDINATOR_RESUME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"
#include "planner/job/job.h"
#include "planner/layout/model.h"

namespace millrace {

struct ResumeChoice {
  std::string path;   // The step's folder; empty: start from the seed.
  int64_t step = -1;  // The step of `path`; -1: start from the seed.
  // Why each newer checkpoint was passed over, one line each.
  std::vector<std::string> skipped;
  // Each damaged copy of a part that another host's copy stood in for.
  std::vector<std::string> damaged_copies;
};

// Chooses for `checkpoint.resume: auto`: the newest checkpoint in `directory`
// whose manifest is whole and whose parts are all there, for `model` if one is
// given, or the seed if no checkpoint was ever committed there. Returns
// DataLoss if there are checkpoints and none will do; the message says what is
// wrong with each and what to do. The parts are not read: ranks compare every
// byte that they load, and ChooseRestore() takes another one's place if they
// find damage.
absl::StatusOr<ResumeChoice> ChooseResume(FileSystem& files,
                                          const std::string& directory,
                                          const ModelSpec* model = nullptr);

// Why another start of a job would not go on from the checkpoint that this one
// writes; empty if it would.
std::string ReasonNotToResume(const CheckpointSpec& spec);

// InvalidArgument if the job starts from a model's weights (model.from) and the
// chosen checkpoint is of a training that started otherwise.
absl::Status CheckSameStart(FileSystem& files, const ResumeChoice& choice,
                            const JobSpec& job);

// Whether the job writes checkpoints or looks for one, so that all of its hosts
// must see them.
bool UsesCheckpoints(const JobSpec& job);

// The checkpoint that a generation had to restore when a worker found it
// damaged.
struct DamagedRestore {
  std::string path;  // The step's folder; empty: none, start from the seed.
  // Where whole checkpoints of the same training may be; empty: nowhere.
  std::string directory;
  int64_t newest_step;  // Later ones belong to a history that was rolled back.
  // If not empty, only checkpoints of this very job will do: the directory may
  // hold those of a job that this one was told not to resume.
  std::string job_yaml;
};

// `damaged.path` if it is whole after all (the damage was elsewhere, or on one
// machine only), else the newest whole checkpoint that may take its place.
// DataLoss if there is none; the message says what to do.
absl::StatusOr<ResumeChoice> ChooseRestore(FileSystem& files,
                                           const DamagedRestore& damaged);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_RESUME_H_
