// The hardware profiles that come with Millrace (configs/hardware/), by name.

#ifndef MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_
#define MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"

namespace millrace {

// A folder that comes with Millrace, by its path in the source tree: below the
// folder of the program or the nearest one above it that has it, which is where
// the bundle and a source tree keep it, or else below the current folder.
// NotFound if there is none.
absl::StatusOr<std::string> FindShippedFolder(const std::string& path);

// That of "configs/hardware".
absl::StatusOr<std::string> ShippedProfilesFolder();

// Names of the profiles there ("h100-sxm"), sorted. Empty if there are none.
std::vector<std::string> ShippedProfileNames();

// Whether the file is one of them, of this copy of Millrace or another: it lies
// in a folder configs/hardware.
bool IsShippedProfile(const std::string& path);

// The file of a shipped profile. NotFound for another name, with the known
// ones and the nearest of them.
absl::StatusOr<std::string> FindShippedProfile(const std::string& name);

// The profile of the file `name_or_path`, or the shipped one of that name.
absl::StatusOr<HardwareProfile> LoadNamedProfile(
    const std::string& name_or_path);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_
