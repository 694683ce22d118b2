#include "coordinator/plan_ahead.h"

#include <sys/resource.h>

#include <algorithm>
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
  Stop();
  if (thread_.joinable()) thread_.join();
}

bool PlanAhead::Begin(const DeviceFacts& devices, Make make) {
  if (search_ != nullptr && AreAlike(devices, search_->devices)) return false;
  Stop();
  const auto search = std::make_shared<Search>();
  search->devices = devices;
  search->result = search->promise.get_future().share();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    search_ = search;
  }
  thread_ = std::thread(
      [before = std::move(thread_), make = std::move(make), search]() mutable {
        // On Linux the priority is that of this thread and of those that it
        // starts.
        constexpr int kLowPriority = 19;
        setpriority(PRIO_PROCESS, 0, kLowPriority);
        // The stopped search ends soon, but the owner does not wait even for
        // that.
        if (before.joinable()) before.join();
        SetResult(*search, make(search->stop.get_token()));
      });
  return true;
}

void PlanAhead::Stop() {
  std::shared_ptr<Search> stopped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (search_ == nullptr || search_->has_result) return;
    stopped = std::exchange(search_, nullptr);
  }
  stopped->stop.request_stop();
  SetResult(*stopped, nullptr);
}

void PlanAhead::StopUnlessFor(const DeviceFacts& devices) {
  if (search_ != nullptr && !AreAlike(devices, search_->devices)) Stop();
}

void PlanAhead::SetResult(Search& search, std::shared_ptr<const Plan> plan) {
  if (!search.has_result.exchange(true)) {
    search.promise.set_value(std::move(plan));
  }
}

std::shared_ptr<const Plan> PlanAhead::Await(const DeviceFacts& devices) const {
  std::shared_ptr<const Search> search;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    search = search_;
  }
  if (search == nullptr || !AreAlike(devices, search->devices)) return nullptr;
  const std::shared_ptr<const Plan> plan = search->result.get();
  return plan != nullptr &&
                 plan->prediction.memory_bytes() <= devices.memory_bytes
             ? plan
             : nullptr;
}

}  // namespace millrace
