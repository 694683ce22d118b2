// The hardware profiles that come with Millrace (configs/hardware/), by name.

#ifndef MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_
#define MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"

namespace millrace {

// Finds a folder that comes with Millrace, by its path in the source tree. It
// looks in the folder of the program and in each folder above, which suits the
// bundle and a source tree, and then in the current folder. Returns NotFound if
// there is none.
absl::StatusOr<std::string> FindShippedFolder(const std::string& path);

// Finds "configs/hardware".
absl::StatusOr<std::string> ShippedProfilesFolder();

// Returns the names of the profiles there ("h100-sxm"), sorted. Empty if there
// are none.
std::vector<std::string> ShippedProfileNames();

// Whether the file is a shipped profile of this or another copy of Millrace: it
// lies in a folder configs/hardware.
bool IsShippedProfile(const std::string& path);

// Returns the file of a shipped profile. Returns NotFound for another name,
// with the known names and the nearest one.
absl::StatusOr<std::string> FindShippedProfile(const std::string& name);

// Loads the file `name_or_path`, or the shipped profile of that name.
absl::StatusOr<HardwareProfile> LoadNamedProfile(
    const std::string& name_or_path);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_SHIPPED_PROFILES_H_
