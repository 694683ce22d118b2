#include "worker/agent/run_directory.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "planner/job/job_file.h"

namespace millrace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> CreateRunDirectory(const JobSpec& job,
                                               absl::Time now) {
  std::error_code error;
  const fs::path output = fs::absolute(job.output_directory, error);
  if (error) {
    return absl::InternalError(absl::StrCat(
        "output.directory ", job.output_directory, ": ", error.message()));
  }
  // Messages between processes and the records of a run are UTF-8.
  if (!IsUtf8(output.string())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output.directory ", output.string(),
        ": the path is not UTF-8; rename its folders, or set output.directory "
        "to another"));
  }
  RETURN_IF_ERROR(MakeDirectories(output.string()));
  const std::string base = absl::StrCat(
      job.name, "-",
      absl::FormatTime("%Y%m%d-%H%M%S", now, absl::LocalTimeZone()));
  std::string name = base;
  // create_directory says false if it is there: two runs in one second.
  for (int i = 2; !fs::create_directory(output / name, error); ++i) {
    if (error) {
      return absl::PermissionDeniedError(absl::StrCat(
          "cannot create ", (output / name).string(), ": ", error.message(),
          "; set output.directory to a folder that can be "
          "written"));
    }
    name = absl::StrCat(base, "-", i);
  }
  const std::string path = (output / name).string();
  RETURN_IF_ERROR(MakeDirectories(path + "/logs"));
  RETURN_IF_ERROR(WriteFileAtomically(path + "/job.yaml", JobToYaml(job)));
  const fs::path latest = output / absl::StrCat(job.name, "-latest");
  fs::remove(latest, error);
  // A convenience: file systems without links do without it.
  fs::create_directory_symlink(name, latest, error);
  return path;
}

}  // namespace millrace
