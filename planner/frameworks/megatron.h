// What the source files of Megatron-LM share with one another, and with the
// frameworks on its core (megatron_core.cc).

#ifndef MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_
#define MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/frameworks/export_parts.h"
#include "planner/frameworks/job_importer.h"

namespace millrace {

// One argument of Megatron-LM. Frameworks built on its core have the same ones
// under other names (megatron_core_keys.h).
struct MegatronFlag {
  std::string name;   // Without dashes.
  std::string value;  // Empty: a switch.
};
// The model, layout and training of the job; data, launcher and precision are
// each framework's own. InvalidArgument names the job's key that cannot be
// said.
absl::StatusOr<std::vector<MegatronFlag>> MegatronFlagsOf(Export& out);

// The import of Megatron-LM and of the frameworks on its core.
void ImportMegatron(const ImportOptions& options, Importer& importer);
// Its part that takes the model.
void ImportMegatronModel(Importer& importer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_H_
