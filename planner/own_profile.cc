#include "planner/own_profile.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner/run_setup.h"

namespace millrace {

absl::StatusOr<OwnProfile> MakeOwnProfile(HardwareProfile profile,
                                          const ProfileSource& others) {
  const std::string nearest =
      ProfileOfDevice(profile.device.is_given() ? profile.device.name
                                                : profile.provenance.machine);
  if (IsProfileOfRuns(profile.name)) {
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
  if (profile.constants.empty()) profile.constants = sheet->constants;
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
