#include "base/units.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace millrace {
namespace {

// Three significant digits of a value in [0, 1024).
std::string ThreeDigits(double value) {
  if (value >= 99.95) return absl::StrFormat("%.0f", value);
  if (value >= 9.995) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.2f", value);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  if (bytes < kKiB) return absl::StrCat(bytes, " B");
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB",
                                                 "PiB"};
  double value = static_cast<double>(bytes) / kKiB;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 0) return absl::StrCat("-", FormatSeconds(-seconds));
  if (seconds < 1e-6) return absl::StrFormat("%.0f ns", seconds * 1e9);
  if (seconds < 1e-3) return absl::StrCat(ThreeDigits(seconds * 1e6), " us");
  if (seconds < 1) return absl::StrCat(ThreeDigits(seconds * 1e3), " ms");
  if (seconds < 60) return absl::StrCat(ThreeDigits(seconds), " s");
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) {
    return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  }
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

std::string FormatCount(double count) {
  if (count < 1000) return absl::StrFormat("%.0f", count);
  constexpr std::array<const char*, 4> kUnits = {"k", "M", "G", "T"};
  size_t unit = 0;
  count /= 1000;
  while (count >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(count), " ", kUnits[unit]);
}

}  // namespace millrace
