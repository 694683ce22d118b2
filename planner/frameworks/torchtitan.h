// Parts shared by the source files of torchtitan.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_TORCHTITAN_H_
#define MILLRACE_PLANNER_FRAMEWORKS_TORCHTITAN_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "planner/frameworks/export_parts.h"
#include "planner/frameworks/job_importer.h"
#include "planner/layout/model.h"

namespace millrace {

// A model that torchtitan's llama3 knows by name. Its sequence_length is 0,
// since the job sets it.
struct TorchtitanFlavor {
  const char* name;
  ModelSpec model;
};
std::span<const TorchtitanFlavor> TorchtitanFlavors();

absl::StatusOr<std::string> ExportTorchtitan(Export out);
void ImportTorchtitan(const ImportOptions& options, Importer& importer);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_TORCHTITAN_H_
