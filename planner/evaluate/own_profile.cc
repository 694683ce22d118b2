#include "planner/evaluate/own_profile.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner/evaluate/run_devices.h"
#include "planner/profile/prediction_interval.h"

namespace millrace {
namespace {

bool IsNoise(const ModelConstant& constant) {
  return constant.name == kPassNoise || constant.name == kRunNoise;
}

// Adds the data sheet's constants if the profile has none, or only those of
// noise.
void AddConstants(const std::vector<ModelConstant>& sheet,
                  HardwareProfile* profile) {
  std::vector<ModelConstant>& own = profile->constants;
  if (!std::ranges::all_of(own, IsNoise)) return;
  for (const ModelConstant& constant : sheet) {
    if (std::ranges::find(own, constant.name, &ModelConstant::name) ==
        own.end()) {
      own.push_back(constant);
    }
  }
}

}  // namespace

absl::StatusOr<OwnProfile> MakeOwnProfile(HardwareProfile profile,
                                          const RunRules& rules,
                                          const ProfileSource& others) {
  const std::string nearest =
      ProfileOfDevice(profile.device.is_given() ? profile.device.name
                                                : profile.provenance.machine);
  if (IsProfileOfRuns(rules, profile.name)) {
    std::string name = profile.name;
    return OwnProfile{std::move(profile), [name](const std::string& asked) {
                        return asked == name;
                      }};
  }
  const absl::StatusOr<HardwareProfile> sheet =
      nearest.empty() ? absl::NotFoundError("") : others(nearest);
  if (!sheet.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hardware profile '", profile.name, "' is of ",
        profile.provenance.machine,
        ", which no run is known to have been measured on: device.name or "
        "provenance.machine must hold one of the words that docs/evaluate.md "
        "lists at the key gpu",
        nearest.empty() ? ""
                        : absl::StrCat(" (", sheet.status().message(), ")")));
  }
  if (!profile.device.is_given()) profile.device = sheet->device;
  if (profile.network.empty()) profile.network = sheet->network;
  AddConstants(sheet->constants, &profile);
  const std::string device = sheet->device.name;
  return OwnProfile{std::move(profile),
                    [device, others](const std::string& asked) {
                      const auto other = others(asked);
                      return other.ok() && other->device.name == device;
                    }};
}

ProfileSource OwnProfileFirst(OwnProfile own, ProfileSource others) {
  return [own = std::move(own), others = std::move(others)](
             const std::string& name) -> absl::StatusOr<HardwareProfile> {
    if (own.stands_for(name)) return own.profile;
    return others(name);
  };
}

}  // namespace millrace
