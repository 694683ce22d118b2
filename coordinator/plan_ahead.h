// A plan for the devices that are left when a host is lost, made while the job
// trains, so that the job then waits for no search.

#ifndef MILLRACE_COORDINATOR_PLAN_AHEAD_H_
#define MILLRACE_COORDINATOR_PLAN_AHEAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
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
  // Returns null where the job cannot run on the devices, and soon, whatever
  // it returns then, once a stop is requested.
  using Make = std::function<std::shared_ptr<const Plan>(std::stop_token)>;

  PlanAhead() = default;
  ~PlanAhead();  // Stops the search under way, and waits for its end.
  PlanAhead(const PlanAhead&) = delete;
  PlanAhead& operator=(const PlanAhead&) = delete;

  // Calls `make`, which plans for `devices`, on a thread of low priority. Stops
  // an earlier search for other devices. Returns false, and does nothing, where
  // the latest search was for such devices and has not been stopped.
  bool Begin(const DeviceFacts& devices, Make make);

  // Stops the search under way, without waiting for its end. There is then no
  // plan for its devices. A plan that is made stays.
  void Stop();
  // The same, unless the search is for such devices.
  void StopUnlessFor(const DeviceFacts& devices);

  // The plan for such devices, once it is made; null if there is none, and as
  // soon as its search is stopped. May be called by any thread.
  std::shared_ptr<const Plan> Await(const DeviceFacts& devices) const;

 private:
  struct Search {
    DeviceFacts devices;
    std::stop_source stop;
    std::promise<std::shared_ptr<const Plan>> promise;
    std::shared_future<std::shared_ptr<const Plan>> result;
    std::atomic<bool> has_result = false;  // Whoever sets it sets the promise.
  };

  static void SetResult(Search& search, std::shared_ptr<const Plan> plan);

  mutable std::mutex mutex_;        // Guards the pointer.
  std::shared_ptr<Search> search_;  // Null: none, or it was stopped.
  std::thread thread_;              // The owner's alone.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PLAN_AHEAD_H_
