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
  // With what a data sheet says of its device where it does not itself.
  HardwareProfile profile;
  // Whether the profile stands for the one of this name.
  std::function<bool(const std::string& name)> stands_for;
};

// `profile` is of the device that its `device` names, or its
// provenance.machine, as rows do ("NVIDIA-H200-x4"); where it lacks device,
// network or constants they are those of `others` for that device.
// InvalidArgument saying what to add if that cannot be told. Names that a row
// can have stand for themselves alone: a100-80gb-100g has other links.
absl::StatusOr<OwnProfile> MakeOwnProfile(HardwareProfile profile,
                                          const RunRules& rules,
                                          const ProfileSource& others);

// `own` where it stands for the name, `others` elsewhere.
ProfileSource OwnProfileFirst(OwnProfile own, ProfileSource others);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_OWN_PROFILE_H_
