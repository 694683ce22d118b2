// Makes the plan that runs from a job and the devices that came together.

#ifndef MILLRACE_COORDINATOR_PLANNING_H_
#define MILLRACE_COORDINATOR_PLANNING_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/profile/profile_file.h"
#include "planner/search/plan.h"

namespace millrace {

// The facts that the agents reported.
struct DeviceFacts {
  int32_t num_devices = 0;  // That may train.
  // More of them, of hosts that are kept spare: no plan uses them.
  int32_t num_spare_devices = 0;
  int32_t threads_per_device = 0;
  // Without some of the job's hosts: a plan uses as many devices as it can.
  bool may_leave_idle = false;
  int32_t ranks_per_host = 1;
  std::string machine;                // Fingerprint of the first agent's.
  std::vector<std::string> machines;  // One for each agent that may train.
  int64_t memory_bytes = 0;           // For training, on one device.
};

// Whether a plan for the devices `a` is one for `b`, if it fits their memory.
bool AreAlike(const DeviceFacts& a, const DeviceFacts& b);

// FailedPrecondition unless the agents' machines, given by their fingerprints,
// have GPUs of one kind.
absl::Status CheckOneGpuKind(const std::vector<std::string>& machines);

// InvalidArgument or FailedPrecondition if no plan of the job could run on
// these devices, whatever the profile: before anything is measured.
absl::Status CheckRunnable(const JobSpec& job, const DeviceFacts& devices);

// ProfileWarnings() for a job of GPUs. Measurements on as many GPUs of the same
// kind, or more, hold for fewer, since GPUs share no cores.
std::vector<std::string> GpuProfileWarnings(const HardwareProfile& profile,
                                            ProfileIdentity identity);

// The profile the job names, or this machine's cached one. A named one of fewer
// GPUs of a host than these hosts have is made one of such hosts
// (WithHostsOf()). NotFound if there is none that was measured with the same
// ranks and threads: measure one.
absl::StatusOr<HardwareProfile> FindProfile(const JobSpec& job,
                                            const DeviceFacts& devices);
// InvalidArgument with the numbers if parameters and the optimizer's state
// alone are more than all devices hold, as no layout could mend.
absl::Status CheckStateFits(const JobSpec& job, const DeviceFacts& devices);

// Writes the profile to the file `output` or, if that is empty, to the cache,
// where FindProfile looks. Returns the path.
absl::StatusOr<std::string> KeepProfile(const JobSpec& job,
                                        const DeviceFacts& devices,
                                        const std::string& output,
                                        const HardwareProfile& profile);
// The line that tells who asked for a measurement how plans and runs of the job
// come to use it.
std::string HowToUseProfile(const JobSpec& job, const std::string& job_file,
                            const std::string& path, bool is_cached);

// InvalidArgument if the job cannot work on these devices. Cancelled once a
// stop is requested.
absl::StatusOr<Plan> PlanForDevices(const JobSpec& job,
                                    const DeviceFacts& devices,
                                    const HardwareProfile& profile,
                                    const std::stop_token& stop = {});
// Writes plan.json, profile.yaml, programs/ and timelines/predicted.json into
// the run directory.
absl::Status WritePlan(const Plan& plan, const JobSpec& job,
                       const HardwareProfile& profile,
                       const std::string& run_directory);

// The plans that a run has made, for when the same devices are there again.
// Keeps the first and the latest few.
class MadePlans {
 public:
  void Add(const DeviceFacts& devices, std::shared_ptr<const Plan> plan);
  // The latest one for such devices that fits them; null if there is none.
  std::shared_ptr<const Plan> Find(const DeviceFacts& devices) const;

 private:
  std::vector<std::pair<DeviceFacts, std::shared_ptr<const Plan>>> plans_;
};

// The part of a Plan that a restarted coordinator needs, as a log record.
struct PlanRecord {
  Layout layout;
  int32_t num_devices = 0;  // That the layout was chosen for.
  double step_time_s = 0;
  int64_t memory_bytes = 0;              // On the rank that needs most.
  std::vector<uint64_t> program_hashes;  // By ProgramIdx(), as in Plan.
  // Predicted seconds that a rank computes a step, by ProgramIdx(); empty: not
  // known.
  std::vector<double> compute_s;
  std::optional<SnapshotPlan> snapshots;  // Plan::snapshots.
  bool keeps_standbys = false;            // Plan::keeps_standbys.
  int32_t ranks_per_host = 1;
  std::string resume_path;  // Where training began; empty: from the seed.
  std::vector<WorkerIdx> members;         // By rank.
  std::vector<int32_t> devices_by_agent;  // All agents count.
  std::vector<WorkerIdx> left_out;        // Devices that fail too often.
  friend bool operator==(const PlanRecord&, const PlanRecord&) = default;
};
// PlanRecord::compute_s of a plan with a timeline.
std::vector<double> ComputeSecondsOf(const Plan& plan);
std::string PlanRecordToJson(const PlanRecord& record);
absl::StatusOr<PlanRecord> PlanRecordFromJson(const std::string& json);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PLANNING_H_
