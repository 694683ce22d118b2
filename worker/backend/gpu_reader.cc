#include "worker/backend/gpu_reader.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace millrace {
namespace {

constexpr absl::Duration kEndLimit = absl::Seconds(1);

struct Order {
  std::string pci_bus_id;
  std::promise<GpuReading> reading;
};

}  // namespace

// Outlives the reader where its thread hangs in the driver.
struct GpuReader::Shared {
  std::string library;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Order> orders;
  bool ending = false;
  bool ended = false;
};

GpuReader::GpuReader(const std::string& library)
    : shared_(std::make_shared<Shared>()) {
  shared_->library = library;
  thread_ = std::thread([shared = shared_] { Run(shared); });
}

GpuReader::~GpuReader() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  const bool ended =
      shared_->changed.wait_for(lock, absl::ToChronoMilliseconds(kEndLimit),
                                [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::future<GpuReading> GpuReader::Read(const std::string& pci_bus_id) {
  Order order = {.pci_bus_id = pci_bus_id, .reading = {}};
  std::future<GpuReading> reading = order.reading.get_future();
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->orders.push_back(std::move(order));
  }
  shared_->changed.notify_all();
  return reading;
}

void GpuReader::Run(const std::shared_ptr<Shared>& shared) {
  absl::StatusOr<std::unique_ptr<Nvml>> nvml =
      absl::UnavailableError("not loaded yet");
  bool is_tried = false;
  while (true) {
    std::unique_lock<std::mutex> lock(shared->mutex);
    shared->changed.wait(
        lock, [&] { return shared->ending || !shared->orders.empty(); });
    if (shared->ending) break;
    Order order = std::move(shared->orders.front());
    shared->orders.pop_front();
    lock.unlock();
    if (!std::exchange(is_tried, true)) nvml = Nvml::Create(shared->library);
    GpuReading reading;
    if (nvml.ok()) {
      const double began_s = MonotonicSeconds();
      reading.sign = (*nvml)->ReadSignAt(order.pci_bus_id);
      reading.seconds = MonotonicSeconds() - began_s;
    }
    order.reading.set_value(reading);
  }
  nvml = absl::UnavailableError("ended");
  std::lock_guard<std::mutex> lock(shared->mutex);
  shared->ended = true;
  shared->changed.notify_all();
}

std::optional<GpuReading> TakeReading(std::future<GpuReading>* reading,
                                      absl::Duration limit) {
  if (!reading->valid() || reading->wait_for(absl::ToChronoNanoseconds(
                               limit)) != std::future_status::ready) {
    return std::nullopt;
  }
  return reading->get();
}

}  // namespace millrace
