#include "coordinator/plan_ahead.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace millrace {

std::optional<DeviceFacts> WithoutOneHost(
    const DeviceFacts& all, std::span<const AgentDevices> agents) {
  if (agents.empty()) return std::nullopt;
  const AgentDevices& first = agents.front();
  const bool are_alike =
      std::ranges::all_of(agents, [&](const AgentDevices& agent) {
        return agent.num_devices == first.num_devices &&
               agent.devices_on_host == first.devices_on_host;
      });
  const bool are_of_one_kind =
      std::ranges::all_of(all.machines, [&](const std::string& machine) {
        return machine == all.machines.front();
      });
  if (!are_alike || !are_of_one_kind || first.num_devices == 0 ||
      first.devices_on_host % first.num_devices != 0 ||
      all.num_devices <= first.devices_on_host) {
    return std::nullopt;
  }
  DeviceFacts left = all;
  left.may_leave_idle = true;
  left.num_devices -= first.devices_on_host;
  left.machines.resize(left.num_devices / first.num_devices);
  return left;
}

PlanAhead::~PlanAhead() {
  if (thread_.joinable()) thread_.join();
}

bool PlanAhead::Begin(const DeviceFacts& devices, Make make) {
  std::promise<std::shared_ptr<const Plan>> promise;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (result_.valid() && (AreAlike(devices, devices_) ||
                            result_.wait_for(std::chrono::seconds(0)) !=
                                std::future_status::ready)) {
      return false;
    }
    devices_ = devices;
    result_ = promise.get_future().share();
  }
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread(
      [make = std::move(make), promise = std::move(promise)]() mutable {
        // On Linux the priority is that of this thread and of those that it
        // starts.
        constexpr int kLowPriority = 19;
        setpriority(PRIO_PROCESS, 0, kLowPriority);
        promise.set_value(make());
      });
  return true;
}

std::shared_ptr<const Plan> PlanAhead::Await(const DeviceFacts& devices) const {
  Result result;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!result_.valid() || !AreAlike(devices, devices_)) return nullptr;
    result = result_;
  }
  const std::shared_ptr<const Plan> plan = result.get();
  return plan != nullptr &&
                 plan->prediction.memory_bytes() <= devices.memory_bytes
             ? plan
             : nullptr;
}

}  // namespace millrace
