// Checks the fields of a profile against each other. It runs after each field
// was read.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_

#include <string>

#include "planner/profile/profile.h"

namespace millrace {

// Describes a contradiction between fields that are valid one by one. The text
// begins with the key; empty if there is no contradiction.
std::string InconsistencyOf(const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_CONSISTENCY_H_
