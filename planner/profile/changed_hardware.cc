#include "planner/profile/changed_hardware.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "planner/profile/measured_rows.h"

namespace millrace {
namespace {

// The bytes of larger messages take longer than their latency.
constexpr int64_t kSmallMessageBytes = 64 << 10;

void ScaleComputeTables(double factor, HardwareProfile* profile) {
  for (GemmTime& time : profile->gemms) time.seconds /= factor;
  for (AttentionTime& time : profile->attention) time.seconds /= factor;
  for (CrossEntropyTime& time : profile->cross_entropy) time.seconds /= factor;
}

double& RateOf(GemmFormat format, DeviceSpec* device) {
  switch (format) {
    case GemmFormat::kAsStored:
      return device->bf16_flops_per_s;
    case GemmFormat::kFloat8:
    case GemmFormat::kFloat8Blocks:
      return device->fp8_flops_per_s;
    case GemmFormat::kFloat4:
      return device->fp4_flops_per_s;
  }
  CHECK(false) << "unknown format " << static_cast<int>(format);
  return device->bf16_flops_per_s;
}

// Returns the time of the smallest measured message of the same kind and group;
// 0 if only large ones were measured.
template <typename Row>
double MeasuredLatency(const std::vector<Row>& rows, const Row& row) {
  const Row* smallest = &row;
  for (const Row& other : rows) {
    if (IsSameGroup(other, row) && other.bytes < smallest->bytes) {
      smallest = &other;
    }
  }
  return smallest->bytes <= kSmallMessageBytes ? smallest->seconds : 0;
}

// Scales the measured groups of more than `above` and at most `at_most` ranks.
template <typename Row>
void ScaleCommunication(int32_t above, int32_t at_most, double factor,
                        std::vector<Row>* rows) {
  const std::vector<Row> before = *rows;
  for (Row& row : *rows) {
    if (row.group_size <= above || row.group_size > at_most) continue;
    const double latency = std::min(MeasuredLatency(before, row), row.seconds);
    row.seconds = latency + (row.seconds - latency) / factor;
  }
}

void ScaleCommunicationTables(int32_t above, int32_t at_most, double factor,
                              HardwareProfile* profile) {
  ScaleCommunication(above, at_most, factor, &profile->communication);
  ScaleCommunication(above, at_most, factor, &profile->copy_engines);
}

// Returns the devices that one domain joins; a level without limit joins any
// number.
int32_t DevicesOf(const NetworkLevel& level) {
  return level.devices > 0 ? level.devices
                           : std::numeric_limits<int32_t>::max();
}

}  // namespace

void ScaleFlops(double factor, HardwareProfile* profile) {
  for (const GemmFormat format :
       {GemmFormat::kAsStored, GemmFormat::kFloat8, GemmFormat::kFloat4}) {
    RateOf(format, &profile->device) *= factor;
  }
  ScaleComputeTables(factor, profile);
}

void ScaleFlopsOf(GemmFormat format, double factor, HardwareProfile* profile) {
  RateOf(format, &profile->device) *= factor;
  if (format == GemmFormat::kAsStored &&
      profile->precision == Precision::kBfloat16) {
    ScaleComputeTables(factor, profile);
  }
}

double FlopsOf(GemmFormat format, const HardwareProfile& profile) {
  DeviceSpec device = profile.device;
  return RateOf(format, &device);
}

void ScaleMemoryBandwidth(double factor, HardwareProfile* profile) {
  profile->device.memory_bytes_per_s *= factor;
  for (BandwidthTime& time : profile->bandwidth) time.seconds /= factor;
}

void ScaleLink(size_t level, double factor, HardwareProfile* profile) {
  CHECK(level < profile->network.size()) << "no network level " << level;
  profile->network[level].bytes_per_s *= factor;
  const int32_t above = level == 0 ? 0 : DevicesOf(profile->network[level - 1]);
  ScaleCommunicationTables(above, DevicesOf(profile->network[level]), factor,
                           profile);
}

void ScaleAllLinks(double factor, HardwareProfile* profile) {
  for (NetworkLevel& level : profile->network) level.bytes_per_s *= factor;
  ScaleCommunicationTables(0, std::numeric_limits<int32_t>::max(), factor,
                           profile);
}

std::optional<size_t> LinkLevel(absl::string_view name,
                                const HardwareProfile& profile) {
  const std::vector<NetworkLevel>& network = profile.network;
  for (size_t i = 0; i < network.size(); ++i) {
    if (network[i].name == name) return i;
  }
  if (network.empty()) return std::nullopt;
  if (name == "intra_node") return 0;
  if (name == "inter_node" &&
      (network.size() > 1 || network.back().devices == 0)) {
    return network.size() - 1;
  }
  return std::nullopt;
}

}  // namespace millrace
