// Fits a profile to hosts that have more devices than were measured.

#ifndef MILLRACE_PLANNER_PROFILE_HOST_SIZE_H_
#define MILLRACE_PLANNER_PROFILE_HOST_SIZE_H_

#include <cstdint>

#include "planner/profile/profile.h"

namespace millrace {

// Returns whether several ranks of one host, and no more, were measured.
bool WasMeasuredOnOneHost(const HardwareProfile& profile);

// Returns the profile for hosts that have `devices` GPUs each. If fewer GPUs of
// one host were measured, the links to the others are taken to be like theirs,
// as a switch joins all alike; rows stay as they are. Any other profile is
// returned unchanged.
HardwareProfile WithHostsOf(int32_t devices, HardwareProfile profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_HOST_SIZE_H_
