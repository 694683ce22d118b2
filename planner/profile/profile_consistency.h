// Checks the fields of a profile against each other, after each of them was
// read.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_

#include <string>

#include "planner/profile/profile.h"

namespace millrace {

// Describes a contradiction between the fields of a profile whose fields are
// valid one by one. Begins with the key; empty if there is none.
std::string InconsistencyOf(const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
