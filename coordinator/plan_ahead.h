// A plan for the devices that are left when a host is lost, made while the job
// trains, so that the job then waits for no search.

#ifndef MILLRACE_COORDINATOR_PLAN_AHEAD_H_
#define MILLRACE_COORDINATOR_PLAN_AHEAD_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "coordinator/planning.h"
#include "planner/search/plan.h"

namespace millrace {

// The devices of one agent that takes part.
struct AgentDevices {
  int32_t num_devices = 0;
  int32_t devices_on_host = 0;  // Of all agents of that host.
};

// The devices that are left of `all` when any one host is lost. Empty where it
// depends on the host which those are, or none is left.
std::optional<DeviceFacts> WithoutOneHost(const DeviceFacts& all,
                                          std::span<const AgentDevices> agents);

// The latest such plan, or the search for it. All but Await() is for one
// thread.
class PlanAhead {
 public:
  // Returns null where the job cannot run on the devices.
  using Make = std::function<std::shared_ptr<const Plan>()>;

  PlanAhead() = default;
  ~PlanAhead();  // Waits for the search under way.
  PlanAhead(const PlanAhead&) = delete;
  PlanAhead& operator=(const PlanAhead&) = delete;

  // Calls `make`, which plans for `devices`, on a thread of low priority.
  // Returns false, and does nothing, while an earlier search is under way and
  // where the latest one was for such devices.
  bool Begin(const DeviceFacts& devices, Make make);

  // The plan for such devices, once it is made; null if there is none. May be
  // called by any thread.
  std::shared_ptr<const Plan> Await(const DeviceFacts& devices) const;

 private:
  using Result = std::shared_future<std::shared_ptr<const Plan>>;

  mutable std::mutex mutex_;  // Guards what follows.
  DeviceFacts devices_;
  Result result_;
  std::thread thread_;  // The owner's alone.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PLAN_AHEAD_H_
