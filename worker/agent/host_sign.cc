#include "worker/agent/host_sign.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/files.h"

namespace millrace {
namespace {

std::string TextOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  return text.ok() ? *text : "";
}

// The sum over all processors; below zero if the kernel counts none.
int64_t CountThrottles() {
  int64_t sum = -1;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/devices/system/cpu", error)) {
    const std::string text = TextOf(
        (entry.path() / "thermal_throttle/core_throttle_count").string());
    int64_t count = 0;
    if (absl::SimpleAtoi(text, &count)) sum = std::max<int64_t>(sum, 0) + count;
  }
  return sum;
}

}  // namespace

double ParsePressure(absl::string_view pressure) {
  for (const absl::string_view word :
       absl::StrSplit(pressure, absl::ByAnyChar(" \n"))) {
    absl::string_view value = word;
    double percent = 0;
    // The first line is that of "some".
    if (absl::ConsumePrefix(&value, "avg10=")) {
      return absl::SimpleAtod(value, &percent) ? percent / 100 : -1;
    }
  }
  return -1;
}

double ParseMegahertz(absl::string_view cpuinfo) {
  double sum = 0;
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::StartsWith(line, "cpu MHz")) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ':');
    double megahertz = 0;
    if (parts.size() < 2 || !absl::SimpleAtod(parts[1], &megahertz)) continue;
    sum += megahertz;
    ++count;
  }
  return count == 0 ? -1 : sum / count;
}

StolenTime ParseStolenTime(absl::string_view proc_stat) {
  constexpr size_t kStealColumn = 8;
  constexpr size_t kLastColumn = 8;  // Guests are counted in user.
  StolenTime time;
  for (const absl::string_view line : absl::StrSplit(proc_stat, '\n')) {
    if (!absl::StartsWith(line, "cpu ")) continue;
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    for (size_t i = 1; i < columns.size() && i <= kLastColumn; ++i) {
      double ticks = 0;
      if (!absl::SimpleAtod(columns[i], &ticks)) continue;
      time.all += ticks;
      if (i == kStealColumn) time.stolen = ticks;
    }
  }
  return time;
}

HostSignReader::HostSignReader(const std::string& gpu_bus_id,
                               const std::string& nvml_library)
    : gpu_bus_id_(gpu_bus_id) {
  if (gpu_bus_id.empty()) return;
  gpu_reader_ = std::make_unique<GpuReader>(nvml_library);
  gpu_reading_ = gpu_reader_->Read(gpu_bus_id);
}

GpuSign HostSignReader::ReadGpu() {
  if (gpu_reader_ == nullptr) return {};
  const std::optional<GpuReading> reading =
      TakeReading(&gpu_reading_, absl::ZeroDuration());
  if (!reading.has_value()) return {};
  gpu_seconds_ = reading->seconds;
  gpu_reading_ = gpu_reader_->Read(gpu_bus_id_);
  return reading->sign;
}

HostSign HostSignReader::Read() {
  HostSign sign = {
      .megahertz = ParseMegahertz(TextOf("/proc/cpuinfo")),
      .num_throttles = CountThrottles(),
      .processor_pressure = ParsePressure(TextOf("/proc/pressure/cpu")),
      .memory_pressure = ParsePressure(TextOf("/proc/pressure/memory")),
      .gpu = ReadGpu()};
  const StolenTime time = ParseStolenTime(TextOf("/proc/stat"));
  if (stolen_ >= 0 && time.all > all_) {
    sign.steal_share = (time.stolen - stolen_) / (time.all - all_);
  }
  stolen_ = time.stolen;
  all_ = time.all;
  return sign;
}

void ToMessage(const HostSign& sign, protocol::HostSign* message) {
  message->set_megahertz(sign.megahertz);
  message->set_num_throttles(sign.num_throttles);
  message->set_steal_share(sign.steal_share);
  message->set_processor_pressure(sign.processor_pressure);
  message->set_memory_pressure(sign.memory_pressure);
  const GpuSign& from = sign.gpu;
  if (from.present < 0) return;
  protocol::GpuSign* const gpu = message->mutable_gpu();
  gpu->set_present(from.present);
  gpu->set_clock_mhz(from.clock_mhz);
  gpu->set_throttle_reasons(from.throttle_reasons);
  gpu->set_corrected_errors(from.corrected_errors);
  gpu->set_uncorrected_errors(from.uncorrected_errors);
  gpu->set_remap_pending(from.remap_pending);
  gpu->set_remap_failed(from.remap_failed);
  gpu->set_nvlinks(from.nvlinks);
  gpu->set_active_nvlinks(from.active_nvlinks);
  gpu->set_nvlink_errors(from.nvlink_errors);
  gpu->set_pcie_width(from.pcie_width);
}

}  // namespace millrace
