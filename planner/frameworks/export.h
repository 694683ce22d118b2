// A job and the layout chosen for it, in the words of another framework, with
// what that framework cannot say of the plan and what had to be assumed.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_
#define MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "planner/frameworks/adapter.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

// Megatron, Megatron-Bridge and NeMo: a shell command. torchtitan: TOML.
// DeepSpeed: JSON, whose comments are texts under "_comment".
// docs/frameworks.md shows examples.
//
// Hosts of `devices_per_host` devices share the layout's equally, in parts that
// tensor groups fit into or consist of where there are such; 0: one host holds
// all.
//
// Returns InvalidArgument for a layout that ValidatePlannedLayout refuses, a
// job that the framework has no words for (naming the job's key), and
// frameworks without layouts.
absl::StatusOr<std::string> ExportLayout(const JobSpec& job,
                                         const Layout& layout,
                                         Framework framework,
                                         int32_t devices_per_host = 0);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_
