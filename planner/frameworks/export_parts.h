// What the exports of all frameworks do alike; export.h is the door.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/frameworks/framework_keys.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

struct Export {
  Framework framework;
  JobSpec job;  // Its layout section pinned to `layout`.
  Layout layout;
  int32_t num_hosts = 1;
  int32_t devices_per_host = 1;
  std::vector<std::string> differences;  // What the framework cannot express.
  std::vector<std::string> assumptions;

  const char* title() const { return FrameworkTitle(framework); }
  // Of a job's key, as YAML.
  std::string Value(const char* job_path) const;
  // Whether the key holds a real number.
  bool IsReal(const char* job_path) const;
  // Layers of each chunk in the order in which a micro-batch visits them; a
  // stage without interleaving is one chunk.
  std::vector<LayerRange> Chunks() const;
};

// Comment lines: what this is, what it cannot say, what was assumed.
std::vector<std::string> CommentLines(const Export& out);
// The same behind hash signs.
std::string HashComment(const Export& out);
std::string ShellQuoted(const std::string& text);
// The command that starts a script on every device of this host, up to the
// script's name.
std::string TorchrunCommand(const Export& out);

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

absl::StatusOr<std::string> ExportMegatron(Export out);
absl::StatusOr<std::string> ExportMegatronBridge(Export out);
absl::StatusOr<std::string> ExportNemo(Export out);
absl::StatusOr<std::string> ExportTorchtitan(Export out);
absl::StatusOr<std::string> ExportDeepSpeed(Export out);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_
