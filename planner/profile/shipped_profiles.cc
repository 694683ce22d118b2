#include "planner/profile/shipped_profiles.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/profile/profile_file.h"
#include "planner/text/nearest_word.h"

namespace millrace {
namespace {

constexpr char kFolder[] = "configs/hardware";

}  // namespace

absl::StatusOr<std::string> FindShippedFolder(const std::string& path) {
  std::error_code error;  // An unreadable folder counts as empty.
  std::filesystem::path above =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  while (!above.empty()) {
    if (std::filesystem::is_directory(above / path, error)) {
      return (above / path).string();
    }
    if (above == above.root_path()) break;
    above = above.parent_path();
  }
  if (std::filesystem::is_directory(path, error)) return path;
  return absl::NotFoundError(
      absl::StrCat("no folder ", path,
                   " beside or above the program or in the current folder"));
}

absl::StatusOr<std::string> ShippedProfilesFolder() {
  absl::StatusOr<std::string> folder = FindShippedFolder(kFolder);
  if (folder.ok()) return folder;
  return absl::NotFoundError(
      absl::StrCat(folder.status().message(),
                   "; give the path of a profile instead of its name"));
}

std::vector<std::string> ShippedProfileNames() {
  std::vector<std::string> names;
  const absl::StatusOr<std::string> folder = ShippedProfilesFolder();
  if (!folder.ok()) return names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(*folder, error)) {
    if (entry.path().extension() == ".yaml") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsShippedProfile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::weakly_canonical(path, error).parent_path();
  return folder.filename() == "hardware" &&
         folder.parent_path().filename() == "configs";
}

absl::StatusOr<std::string> FindShippedProfile(const std::string& name) {
  ASSIGN_OR_RETURN(const std::string folder, ShippedProfilesFolder());
  const std::vector<std::string> names = ShippedProfileNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return absl::StrCat(folder, "/", name, ".yaml");
  }
  const auto nearest = NearestWord(name, names);
  return absl::NotFoundError(absl::StrCat(
      "no hardware profile '", name, "'; ",
      nearest.has_value() ? absl::StrCat("did you mean '", *nearest, "'? ")
                          : "",
      "known: ", absl::StrJoin(names, ", "),
      "; or give the path of a file, as millrace profile writes one"));
}

absl::StatusOr<HardwareProfile> LoadNamedProfile(
    const std::string& name_or_path) {
  std::error_code error;
  if (absl::StrContains(name_or_path, '/') ||
      std::filesystem::is_regular_file(name_or_path, error)) {
    return LoadProfile(name_or_path);
  }
  ASSIGN_OR_RETURN(const std::string path, FindShippedProfile(name_or_path));
  return LoadProfile(path);
}

}  // namespace millrace
