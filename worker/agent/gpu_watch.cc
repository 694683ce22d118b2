#include "worker/agent/gpu_watch.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
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
                   std::unique_ptr<KernelLog> log, absl::Duration driver_limit)
    : log_(std::move(log)), driver_limit_(driver_limit) {
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
  for (Death& death : deaths_) {
    if (&gpus_[death.gpu_idx] != found || death.is_followed) continue;
    death.is_followed = true;
    death.xids = found->xids;
  }
  found->xids.clear();
  found->at_start.reset();
  found->asked_at_start = reader_->Read(found->pci_bus_id);
}

std::string GpuWatch::NoteDeath(int32_t gpu, const WorkerProcessId& process) {
  ReadLog();
  Gpu* const found = Find(gpu);
  if (found == nullptr) return "";
  deaths_.push_back({.process = process,
                     .gpu_idx = static_cast<size_t>(gpu),
                     .num_told = found->xids.size(),
                     .asked_at_start = std::move(found->asked_at_start),
                     .at_start = found->at_start,
                     .asked = reader_->Read(found->pci_bus_id),
                     .since = MonotonicNow()});
  return XidSentence(found->xids);
}

// `now` is null if the driver has not answered.
std::string GpuWatch::Explain(Death& death, const GpuReading* now) const {
  std::vector<std::string> phrases;
  const std::vector<int32_t>& all =
      death.is_followed ? death.xids : gpus_[death.gpu_idx].xids;
  const std::string reported = XidSentence(
      {all.begin() + static_cast<ptrdiff_t>(death.num_told), all.end()});
  if (!reported.empty()) phrases.push_back(reported);
  if (now == nullptr) {
    phrases.push_back(absl::StrCat("the driver has not said for ",
                                   absl::FormatDuration(driver_limit_),
                                   " how its GPU is"));
    return absl::StrJoin(phrases, "; ");
  }
  // The driver was asked for the start's reading first, so that one is there if
  // the newer one is.
  if (!death.at_start.has_value()) {
    death.at_start = TakeReading(&death.asked_at_start, absl::ZeroDuration());
  }
  if (death.at_start.has_value()) {
    for (std::string& phrase : GpuFailures(death.at_start->sign, now->sign)) {
      phrases.push_back(std::move(phrase));
    }
  }
  return absl::StrJoin(phrases, "; ");
}

std::vector<GpuWatch::Finding> GpuWatch::TakeFindings() {
  ReadLog();
  std::vector<Finding> findings;
  const absl::Time now = MonotonicNow();
  std::erase_if(deaths_, [&](Death& death) {
    const std::optional<GpuReading> reading =
        TakeReading(&death.asked, absl::ZeroDuration());
    if (!reading.has_value() && now - death.since < driver_limit_) return false;
    std::string text =
        Explain(death, reading.has_value() ? &*reading : nullptr);
    if (!text.empty()) findings.push_back({death.process, std::move(text)});
    return true;
  });
  return findings;
}

}  // namespace millrace
