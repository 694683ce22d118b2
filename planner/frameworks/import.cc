#include "planner/frameworks/import.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner/frameworks/job_importer.h"
#include "planner/frameworks/megatron_core_keys.h"
#include "planner/job/job_file.h"

namespace millrace {

absl::StatusOr<ImportedJob> ImportJob(Framework framework,
                                      const Settings& settings,
                                      const ImportOptions& options) {
  const Settings source =
      IsOnCore(framework) ? WithFlagValues(framework, settings) : settings;
  Importer importer(framework, source, options);
  framework->take(options, importer);
  return importer.Finish(options);
}

std::string ImportedJobToYaml(const ImportedJob& imported, Framework framework,
                              const std::string& file_name) {
  std::string yaml = absl::StrCat(
      "# From ", absl::StrReplaceAll(file_name, {{"\n", " "}, {"\r", " "}}),
      " (", framework->title, ", ", framework->version,
      ").\n# A remark says where a value comes from; keys without one have the "
      "default of\n# docs/job.md.\n");
  if (!imported.notes.empty()) {
    absl::StrAppend(&yaml, "#\n# Said there, but not here:\n");
  }
  for (const std::string& note : imported.notes) {
    // A quoted key can hold a line end, which would end the comment.
    absl::StrAppend(&yaml, "#   - ",
                    absl::StrReplaceAll(note, {{"\n", " "}, {"\r", " "}}),
                    "\n");
  }
  return absl::StrCat(yaml, "\n", JobToYaml(imported.job, imported.remarks));
}

}  // namespace millrace
