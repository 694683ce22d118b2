// Finds what keeps a job from computing in the formats that it asks for.

#ifndef MILLRACE_PLANNER_JOB_PRECISION_PROBLEMS_H_
#define MILLRACE_PLANNER_JOB_PRECISION_PROBLEMS_H_

#include <string>
#include <utility>
#include <vector>

#include "planner/job/job.h"

namespace millrace {

// The keys that do not fit the backend or each other, each with what is wrong
// and what to do.
std::vector<std::pair<std::string, std::string>> ProblemsOfPrecision(
    const JobSpec& job);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_PRECISION_PROBLEMS_H_
