// Times how long a job is without a plan after it has lost a host: the search
// over the devices that are left, and writing the plan and its Programs into
// the run directory, as a coordinator does. Also times how long a search goes
// on after a stop is requested. Proves first that the plan fits the devices
// that are left and keeps the batch.
//
//   replan_bench JOB PROFILE DEVICES LOST_DEVICES
//
// Prints wall seconds and the processor seconds of all threads, the least of
// three, and the longest of the times after a stop.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/planning.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"

namespace millrace {
namespace {

// Stops searches at moments spread over the `plan_s` seconds that one takes.
// Returns the most seconds that one went on after that.
absl::StatusOr<double> LongestAfterStop(const JobSpec& job,
                                        const DeviceFacts& devices,
                                        const HardwareProfile& profile,
                                        double plan_s) {
  constexpr int kNumStops = 10;
  double longest_s = 0;
  for (int i = 0; i < kNumStops; ++i) {
    std::stop_source stop;
    absl::Status ended;
    double ended_s = 0;
    std::thread search([&] {
      ended = PlanForDevices(job, devices, profile, stop.get_token()).status();
      ended_s = MonotonicSeconds();
    });
    absl::SleepFor(absl::Seconds(plan_s * i / kNumStops));
    const double stopped_s = MonotonicSeconds();
    stop.request_stop();
    search.join();
    // The search may have been quicker this time.
    if (ended.ok()) continue;
    if (!absl::IsCancelled(ended)) return ended;
    longest_s = std::max(longest_s, ended_s - stopped_s);
  }
  return longest_s;
}

absl::Status Run(const std::string& job_file, const std::string& profile_file,
                 int32_t num_devices, int32_t num_lost,
                 const std::string& folder) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(job_file));
  ASSIGN_OR_RETURN(const HardwareProfile profile, LoadProfile(profile_file));
  const DeviceFacts devices = {.num_devices = num_devices - num_lost,
                               .may_leave_idle = true,
                               .ranks_per_host = num_lost,
                               .machine = profile.provenance.machine,
                               .memory_bytes = profile.device_memory_bytes};
  double plan_s = 1e9, processor_s = 1e9, write_s = 1e9;
  absl::StatusOr<Plan> plan = absl::UnknownError("not run");
  for (int round = 0; round < 3; ++round) {
    const std::clock_t began = std::clock();
    const double began_s = MonotonicSeconds();
    plan = PlanForDevices(job, devices, profile);
    RETURN_IF_ERROR(plan.status());
    const double planned_s = MonotonicSeconds();
    processor_s =
        std::min(processor_s,
                 static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
    RETURN_IF_ERROR(WritePlan(*plan, job, profile, folder));
    plan_s = std::min(plan_s, planned_s - began_s);
    write_s = std::min(write_s, MonotonicSeconds() - planned_s);
  }
  const Layout& layout = plan->layout;
  if (layout.num_ranks() + plan->num_idle_devices != devices.num_devices ||
      layout.global_batch() != job.training.global_batch) {
    return absl::InternalError(absl::StrCat(
        LayoutToString(layout), " does not fit ", devices.num_devices,
        " devices and a batch of ", job.training.global_batch));
  }
  ASSIGN_OR_RETURN(const double after_stop_s,
                   LongestAfterStop(job, devices, profile, plan_s));
  std::cout << absl::StrFormat(
      "%s, %d devices less %d: %.2f s to plan again (%.2f s of processors), "
      "%.2f s to write the plan, %.3f s after a stop; step %.4g s, %d idle: "
      "%s\n",
      job.name, num_devices, num_lost, plan_s, processor_s, write_s,
      after_stop_s, plan->prediction.step_time_s, plan->num_idle_devices,
      LayoutToString(layout));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int32_t num_devices = 0, num_lost = 0;
  if (argc != 5 || !absl::SimpleAtoi(argv[3], &num_devices) ||
      !absl::SimpleAtoi(argv[4], &num_lost) || num_lost < 1 ||
      num_lost >= num_devices) {
    std::cerr << "usage: replan_bench JOB PROFILE DEVICES LOST_DEVICES\n";
    return 2;
  }
  const std::string folder =
      absl::StrCat(std::filesystem::temp_directory_path().string(),
                   "/millrace-replan-", getpid());
  std::filesystem::create_directories(folder);
  const absl::Status status =
      millrace::Run(argv[1], argv[2], num_devices, num_lost, folder);
  std::filesystem::remove_all(folder);
  if (!status.ok()) std::cerr << "replan_bench: " << status << std::endl;
  return status.ok() ? 0 : 1;
}
