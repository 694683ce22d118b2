#include "worker/agent/gpu_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "fault/gpu_sign.h"

namespace millrace {
namespace {

// A GPU in trouble may repeat itself for hours; the first messages tell most.
constexpr size_t kXidsKept = 64;

}  // namespace

GpuWatch::GpuWatch(const std::vector<std::string>& pci_bus_ids)
    : GpuWatch(pci_bus_ids, kNvmlLibrary,
               pci_bus_ids.empty() ? nullptr : std::make_unique<KernelLog>()) {}

GpuWatch::GpuWatch(const std::vector<std::string>& pci_bus_ids,
                   const std::string& nvml_library,
                   std::unique_ptr<KernelLog> log)
    : log_(std::move(log)) {
  if (pci_bus_ids.empty()) return;
  reader_ = std::make_unique<GpuReader>(nvml_library);
  for (const std::string& id : pci_bus_ids) {
    Gpu& gpu = gpus_.emplace_back();
    gpu.pci_bus_id = id;
    gpu.address = ParsePciAddress(id);
  }
}

GpuWatch::Gpu* GpuWatch::Find(int32_t gpu) {
  const auto idx = static_cast<size_t>(gpu);
  return gpu < 0 || idx >= gpus_.size() ? nullptr : &gpus_[idx];
}

void GpuWatch::ReadLog() {
  if (log_ == nullptr) return;
  for (const Xid& xid : log_->Take()) {
    for (Gpu& gpu : gpus_) {
      if (gpu.address == xid.gpu && gpu.xids.size() < kXidsKept) {
        gpu.xids.push_back(xid.number);
      }
    }
  }
}

void GpuWatch::NoteStart(int32_t gpu) {
  ReadLog();
  Gpu* const found = Find(gpu);
  if (found == nullptr) return;
  found->xids.clear();
  found->at_start.reset();
  found->asked_at_start = reader_->Read(found->pci_bus_id);
}

std::vector<std::string> GpuWatch::Explain(const std::vector<int32_t>& gpus,
                                           absl::Duration limit) {
  const absl::Time deadline = MonotonicNow() + limit;
  ReadLog();
  std::vector<std::future<GpuReading>> asked(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) {
    const Gpu* const gpu = Find(gpus[i]);
    if (gpu != nullptr) asked[i] = reader_->Read(gpu->pci_bus_id);
  }
  std::vector<std::string> texts(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) {
    Gpu* const gpu = Find(gpus[i]);
    if (gpu == nullptr) continue;
    std::vector<std::string> phrases;
    const std::string reported = XidSentence(gpu->xids);
    if (!reported.empty()) phrases.push_back(reported);
    // The driver was asked for the start's reading first, so that one is there
    // if the newer one is.
    const std::optional<GpuReading> now = TakeReading(
        &asked[i], std::max(absl::ZeroDuration(), deadline - MonotonicNow()));
    const std::optional<GpuReading> at_start =
        TakeReading(&gpu->asked_at_start, absl::ZeroDuration());
    if (at_start.has_value()) gpu->at_start = at_start;
    if (now.has_value() && gpu->at_start.has_value()) {
      for (std::string& phrase : GpuFailures(gpu->at_start->sign, now->sign)) {
        phrases.push_back(std::move(phrase));
      }
    }
    texts[i] = absl::StrJoin(phrases, "; ");
  }
  return texts;
}

}  // namespace millrace
