// What the keys of a profile file mean together.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_

#include <string>

#include "planner/profile/profile.h"

namespace millrace {

// What is wrong between the fields of a profile that reads well, beginning with
// the key; empty: nothing.
std::string InconsistencyOf(const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
