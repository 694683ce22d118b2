// Converts the YAML value of one job key and stores it in the JobSpec.

#ifndef MILLRACE_PLANNER_JOB_JOB_VALUE_H_
#define MILLRACE_PLANNER_JOB_JOB_VALUE_H_

#include "planner/job/job.h"
#include "planner/job/job_keys.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

// False, leaving the job as it is, if the node is not what the key expects
// (DescribeExpected(), job_keys.h).
bool SetFromTree(const JobKey& key, const YamlTree& tree, JobSpec* job);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_JOB_VALUE_H_
