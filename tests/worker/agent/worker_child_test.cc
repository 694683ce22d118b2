#include "worker/agent/worker_child.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

// The argument behind `name`, or "none".
std::string ArgumentOf(const ChildOptions& child, const std::string& name) {
  const std::vector<std::string>& all = child.arguments;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i] == name) return all[i + 1];
  }
  return "none";
}

// Goal: a worker is told where its GPU is, on a second agent of a host too, and
// nothing of the kind without GPUs.
TEST(WorkerChildTest, IsToldItsGpu) {
  HostJob host_job;
  host_job.job.resources.backend = "cuda";
  host_job.devices.num_devices = 2;
  host_job.devices.gpu_bus_ids = {"0000:3b:00.0", "0000:4b:00.0"};
  WorkerPlaces places;
  EXPECT_EQ(places.DeviceOf(7), 0);
  const WorkerChild worker = {.worker_idx = 8,
                              .device_idx = places.DeviceOf(8)};
  const ChildOptions child = OptionsOf(worker, host_job, {});
  EXPECT_EQ(ArgumentOf(child, "--gpu-bus-id"), "0000:4b:00.0");

  host_job.job.resources.backend = "cpu";
  host_job.devices.gpu_bus_ids.clear();
  const ChildOptions on_cpu = OptionsOf(worker, host_job, {});
  EXPECT_EQ(ArgumentOf(on_cpu, "--gpu-bus-id"), "none");
}

}  // namespace
}  // namespace millrace
