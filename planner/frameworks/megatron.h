// Parts shared by the source files of Megatron-LM and of the frameworks on its
// core (megatron_core.cc).

#ifndef MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_
#define MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/frameworks/export_parts.h"
#include "planner/frameworks/job_importer.h"

namespace millrace {

// Returns the arguments of Megatron-LM for the model, layout and training of
// the job, without dashes; a switch has the value "". Frameworks built on its
// core have the same arguments under other names (megatron_core_keys.h). Each
// framework adds its own for data, launcher and precision. InvalidArgument
// names the job's key that cannot be expressed.
absl::StatusOr<KeyValues> MegatronFlagsOf(Export& out);

// Imports Megatron-LM's and its core's configurations.
void ImportMegatron(const ImportOptions& options, Importer& importer);
// The part of the import that takes the model.
void ImportMegatronModel(Importer& importer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_
