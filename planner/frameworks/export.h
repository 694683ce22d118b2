// Writes a job and the layout chosen for it as another framework's
// configuration. The text lists what that framework cannot express of the plan
// and what was assumed.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_
#define MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "planner/frameworks/adapter.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

// Megatron, Megatron-Bridge and NeMo get a shell command, torchtitan TOML, and
// DeepSpeed JSON with comments as texts under "_comment". docs/frameworks.md
// shows examples.
//
// A host has up to `devices_per_host` devices; 0 means that one host holds all.
// Hosts share the layout's devices equally. If possible, a tensor group fits
// into a host's share or consists of whole shares.
//
// Returns InvalidArgument for a layout that ValidatePlannedLayout() refuses,
// for a job that the framework cannot express (naming the job's key), for an
// uneven layout, and for frameworks without layouts.
absl::StatusOr<std::string> ExportLayout(const JobSpec& job,
                                         const Layout& layout,
                                         Framework framework,
                                         int32_t devices_per_host = 0);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_EXPORT_H_
