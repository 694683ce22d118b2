// Lets a profile measured by the user stand for the shipped profile of the same
// device. Published runs name devices, and planner/evaluate/run_devices.h maps
// these names to shipped profiles.

#ifndef MILLRACE_PLANNER_EVALUATE_OWN_PROFILE_H_
#define MILLRACE_PLANNER_EVALUATE_OWN_PROFILE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/run_rules.h"
#include "planner/profile/profile.h"

namespace millrace {

struct OwnProfile {
  // The user's profile. The data sheet of its device fills the parts that it
  // lacks.
  HardwareProfile profile;
  // Whether the profile stands for the shipped profile of this name.
  std::function<bool(const std::string& name)> stands_for;
};

// Finds the device of `profile` by its `device`, or else by its
// provenance.machine, which may name a device as rows do ("NVIDIA-H200-x4"). If
// it lacks device, network or constants, it gets those that `others` has for
// the device.
//
// A profile that has the name of a shipped one stands for that one alone, since
// shipped profiles of one device may differ (a100-80gb-100g has other links).
// Returns InvalidArgument that says what to add if the device cannot be told.
absl::StatusOr<OwnProfile> MakeOwnProfile(HardwareProfile profile,
                                          const RunRules& rules,
                                          const ProfileSource& others);

// Returns `own` for the names that it stands for, and `others` for the rest.
ProfileSource OwnProfileFirst(OwnProfile own, ProfileSource others);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_OWN_PROFILE_H_
