#include "planner/evaluate/run_devices.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

// The first word found decides, so GB200 stands before B200.
constexpr RunDevice kDevices[] = {
    {"GB300", "gb300-nvl72"}, {"GB200", "gb200-nvl72"}, {"B300", "b300-hgx"},
    {"B200", "b200-hgx"},     {"H200", "h200-cluster"}, {"H800", "h800-sxm"},
    {"H100", "h100-sxm"},     {"A100", "a100-80gb"},
};
constexpr char kLessPower[] = "500W";  // An H100 limited to 500 W.
constexpr char kH100WithLessPower[] = "h100-500w";

// Whether `gpu` has `word` as a whole name: "H200" is not in "GH200", nor
// "A100" in "A1000".
bool Names(absl::string_view gpu, absl::string_view word) {
  for (size_t at = gpu.find(word); at != absl::string_view::npos;
       at = gpu.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool is_longer = end < gpu.size() && absl::ascii_isdigit(gpu[end]);
    const bool is_grace = at > 0 && gpu[at - 1] == 'G';
    if (!is_longer && !is_grace) return true;
  }
  return false;
}

// Whether it is a variant with less bandwidth, fewer processors or no NVLink
// between all devices of a node.
bool IsUnlikeSxm(absl::string_view gpu) {
  return absl::StrContains(gpu, "PCIE") ||
         (absl::StrContains(gpu, "NVL") && !absl::StrContains(gpu, "NVL72")) ||
         (Names(gpu, "A100") &&
          (absl::StrContains(gpu, "40GB") || absl::StrContains(gpu, "40 GB")));
}

// Returns null if the text, which must be in capitals, names no device.
const RunDevice* DeviceNamed(absl::string_view text) {
  const auto* const device = std::ranges::find_if(
      kDevices, [&](const RunDevice& d) { return Names(text, d.word); });
  return device == std::end(kDevices) ? nullptr : device;
}

}  // namespace

absl::StatusOr<RunDevice> DeviceOfRun(const std::string& gpu) {
  const std::string upper = absl::AsciiStrToUpper(gpu);
  const RunDevice* const device = DeviceNamed(upper);
  if (device == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpu '", gpu, "' is unknown; known are ",
                     absl::StrJoin(DeviceWords(), ", ")));
  }
  if (IsUnlikeSxm(upper)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpu '", gpu, "' is another device than that of ",
                     device->profile, ", which no profile describes"));
  }
  if (absl::StrContains(upper, kLessPower)) {
    return RunDevice{.word = device->word, .profile = kH100WithLessPower};
  }
  return *device;
}

std::string ProfileOfDevice(const std::string& text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  const RunDevice* const device = DeviceNamed(upper);
  return device == nullptr || IsUnlikeSxm(upper) ? "" : device->profile;
}

std::vector<std::string> DeviceWords() {
  std::vector<std::string> words;
  for (const RunDevice& device : kDevices) words.emplace_back(device.word);
  return words;
}

std::vector<std::string> DeviceProfiles() {
  std::vector<std::string> profiles = {kH100WithLessPower};
  for (const RunDevice& device : kDevices) {
    profiles.emplace_back(device.profile);
  }
  return profiles;
}

}  // namespace millrace
