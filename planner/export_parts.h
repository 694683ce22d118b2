// What the exports of all frameworks do alike; export.h is the door.

#ifndef MILLRACE_PLANNER_EXPORT_PARTS_H_
#define MILLRACE_PLANNER_EXPORT_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/framework_keys.h"
#include "planner/job.h"
#include "planner/layout.h"

namespace millrace {

struct Export {
  JobSpec job;  // Its layout section pinned to `layout`.
  Layout layout;
  std::vector<std::string> differences;  // What the framework cannot express.
  std::vector<std::string> assumptions;

  // Of a job's key, as YAML.
  std::string Value(const char* job_path) const;
  // Whether the key holds a real number.
  bool IsReal(const char* job_path) const;
  int64_t NumLayersOf(int32_t stage) const;
};

// Comment lines: what this is, what it cannot say, what was assumed.
std::vector<std::string> CommentLines(const Export& out, Framework framework);
// The same behind hash signs.
std::string HashComment(const Export& out, Framework framework);

absl::StatusOr<std::string> ExportMegatron(Export out);
absl::StatusOr<std::string> ExportTorchtitan(Export out);
absl::StatusOr<std::string> ExportDeepSpeed(Export out);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPORT_PARTS_H_
