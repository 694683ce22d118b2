#include "worker/backend/shared_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace millrace {

absl::StatusOr<void*> LoadSharedLibrary(const std::string& path) {
  // Never closed: threads of CUDA and NCCL may outlive every object of theirs.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* const error = dlerror();
  return absl::UnavailableError(error == nullptr ? path : error);
}

std::string MissingLibrary(absl::string_view error) {
  const size_t colon = error.find(": cannot open shared object file");
  if (colon == absl::string_view::npos) return "";
  const absl::string_view name = error.substr(0, colon);
  return absl::StrContains(name, ".so") ? std::string(name) : "";
}

std::vector<std::string> FindInFolders(const std::vector<std::string>& patterns,
                                       const std::string& file) {
  std::vector<std::string> paths;
  for (absl::string_view pattern : patterns) {
    std::string start;
    if (absl::ConsumePrefix(&pattern, "${")) {
      const size_t end = pattern.find('}');
      const char* value =
          std::getenv(std::string(pattern.substr(0, end)).c_str());
      if (value == nullptr || *value == '\0') continue;
      start = value;
      pattern.remove_prefix(end + 1);
    }
    glob_t found = {};
    if (glob(absl::StrCat(start, pattern, "/", file).c_str(), 0, nullptr,
             &found) == 0) {
      paths.insert(paths.end(), found.gl_pathv,
                   found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
  return paths;
}

absl::StatusOr<std::string> ProgramFolder() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot read /proc/self/exe: ", error.message(),
                     "; is /proc mounted?"));
  }
  return program.parent_path().string();
}

std::string CodeFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&CodeFolder), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  std::error_code error;
  const std::filesystem::path file =
      std::filesystem::canonical(info.dli_fname, error);
  return error ? "" : file.parent_path().string();
}

}  // namespace millrace
