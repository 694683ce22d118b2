#include "fault/gpu_sign.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace millrace {
namespace {

constexpr double kSlowedGpuClock = 0.9;

struct ReasonBit {
  int64_t bit;
  const char* name;
};
constexpr ReasonBit kSlowing[] = {
    {0x08, "the hardware halves its clocks"},
    {0x20, "heat (by the driver)"},
    {0x40, "heat (by the hardware)"},
    {0x80, "the power supply asks for less (power brake)"},
};

constexpr char kLost[] = "the driver does not find its GPU any more";

// The driver may have been asked for a GPU that it never showed.
bool IsLost(const GpuSign& before, const GpuSign& now) {
  return before.present == 1 && now.present == 0;
}

// How much a counter grew; 0 if either value is not known.
int64_t Growth(int64_t before, int64_t now) {
  return before >= 0 && now > before ? now - before : 0;
}

// "1 new memory error", "2 new memory errors".
std::string Counted(int64_t count, const char* what) {
  return absl::StrCat(count, " new ", what, count == 1 ? "" : "s");
}

void AddLostLinks(const GpuSign& before, const GpuSign& now,
                  std::vector<std::string>* phrases) {
  if (now.active_nvlinks < 0 || now.active_nvlinks >= before.active_nvlinks) {
    return;
  }
  phrases->push_back(absl::StrCat(before.active_nvlinks - now.active_nvlinks,
                                  " of its GPU's ", before.active_nvlinks,
                                  " NVLinks were lost"));
}

}  // namespace

std::string SlowingReasons(int64_t throttle_reasons) {
  std::string text;
  if (throttle_reasons < 0) return text;
  for (const ReasonBit& reason : kSlowing) {
    if ((throttle_reasons & reason.bit) == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", reason.name);
  }
  return text;
}

bool IsKnown(const GpuSign& sign) {
  return sign.clock_mhz >= 0 || sign.throttle_reasons >= 0;
}

std::vector<std::string> SlowGpuCauses(const GpuSign& before,
                                       const GpuSign& now) {
  std::vector<std::string> causes;
  if (IsLost(before, now)) return {kLost};
  const std::string reasons = SlowingReasons(now.throttle_reasons);
  if (!reasons.empty()) {
    causes.push_back(absl::StrCat("its GPU is slowed down: ", reasons));
  }
  if (before.clock_mhz > 0 && now.clock_mhz > 0 &&
      static_cast<double>(now.clock_mhz) <
          kSlowedGpuClock * static_cast<double>(before.clock_mhz)) {
    causes.push_back(absl::StrFormat("its GPU runs at %d MHz and ran at %d MHz",
                                     now.clock_mhz, before.clock_mhz));
  }
  const int64_t corrected =
      Growth(before.corrected_errors, now.corrected_errors);
  if (corrected > 0) {
    causes.push_back(absl::StrCat(
        "its GPU counts ", Counted(corrected, "corrected memory error")));
  }
  const int64_t uncorrected =
      Growth(before.uncorrected_errors, now.uncorrected_errors);
  if (uncorrected > 0) {
    causes.push_back(absl::StrCat(
        "its GPU counts ", Counted(uncorrected, "uncorrected memory error")));
  }
  AddLostLinks(before, now, &causes);
  const int64_t link_errors = Growth(before.nvlink_errors, now.nvlink_errors);
  if (link_errors > 0) {
    causes.push_back(absl::StrCat("its GPU's NVLinks count ",
                                  Counted(link_errors, "error")));
  }
  if (now.pcie_width > 0 && now.pcie_width < before.pcie_width) {
    causes.push_back(absl::StrFormat("its GPU has %d PCIe lanes and had %d",
                                     now.pcie_width, before.pcie_width));
  }
  return causes;
}

std::vector<std::string> GpuFailures(const GpuSign& before,
                                     const GpuSign& now) {
  std::vector<std::string> failures;
  if (IsLost(before, now)) return {kLost};
  const int64_t uncorrected =
      Growth(before.uncorrected_errors, now.uncorrected_errors);
  if (uncorrected > 0) {
    failures.push_back(absl::StrCat(
        "its GPU counts ", Counted(uncorrected, "uncorrected memory error")));
  }
  if (now.remap_failed > 0 && before.remap_failed <= 0) {
    failures.emplace_back(
        "a row of its GPU's memory failed and could not be remapped");
  }
  if (now.remap_pending > 0 && before.remap_pending <= 0) {
    failures.emplace_back(
        "a row of its GPU's memory waits to be remapped at a reset");
  }
  AddLostLinks(before, now, &failures);
  return failures;
}

}  // namespace millrace
