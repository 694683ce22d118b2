#include "fault/slow_cause.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

constexpr double kSlowedClock = 0.9;
constexpr double kNoticedSteal = 0.05;
constexpr double kNoticedPressure = 0.25;
constexpr double kNoticedMemoryPressure = 0.05;

}  // namespace

std::string SlowCause(const HostSign& before, const HostSign& now) {
  std::vector<std::string> causes = SlowGpuCauses(before.gpu, now.gpu);
  if (before.num_throttles >= 0 && now.num_throttles > before.num_throttles) {
    causes.push_back(absl::StrFormat(
        "its host throttled the processors %d times, for heat or power",
        now.num_throttles - before.num_throttles));
  }
  if (before.megahertz > 0 && now.megahertz > 0 &&
      now.megahertz < kSlowedClock * before.megahertz) {
    causes.push_back(
        absl::StrFormat("the processors run at %.0f MHz and ran at %.0f MHz",
                        now.megahertz, before.megahertz));
  }
  if (now.memory_pressure > kNoticedMemoryPressure) {
    causes.push_back(
        absl::StrFormat("processes of its host wait for memory %.0f %% of the "
                        "time",
                        100 * now.memory_pressure));
  }
  if (now.steal_share > kNoticedSteal) {
    causes.push_back(absl::StrFormat(
        "a hypervisor takes %.0f %% of its host's processor time",
        100 * now.steal_share));
  }
  // Ranks of one host wait for each other's processors where these are few, and
  // did so before.
  if (now.processor_pressure > kNoticedPressure &&
      now.processor_pressure > 2 * before.processor_pressure) {
    causes.push_back(absl::StrFormat(
        "processes of its host wait for a processor %.0f %% of the time",
        100 * now.processor_pressure));
  }
  if (causes.empty()) {
    return absl::StrCat(
        "neither ",
        IsKnown(now.gpu) ? "its GPU's clock, throttling, memory and links nor "
                         : "",
        "its host's clock, heat, memory nor other processes explain it");
  }
  return absl::StrJoin(causes, "; ");
}

}  // namespace millrace
