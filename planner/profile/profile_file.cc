#include "planner/profile/profile_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/profile/profile_consistency.h"
#include "planner/profile/profile_reader.h"
#include "planner/profile/profile_writer.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

std::string CleanForFileName(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return clean;
}

// Of the key that `what` begins with; 1 where the file does not give it.
int LineOf(const YamlTree& tree, absl::string_view what) {
  const absl::string_view key = what.substr(0, what.find_first_of(":.[ "));
  for (const YamlTree& entry : tree.children) {
    if (entry.key == key) return entry.line;
  }
  return 1;
}

}  // namespace

absl::StatusOr<HardwareProfile> ParseProfile(absl::string_view yaml,
                                             const std::string& file_name) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  HardwareProfile profile;
  std::vector<std::string> errors;
  ProfileReader(tree, file_name, "", &errors).Read(profile);
  // As many factors are made below; no host has nearly as many.
  constexpr int32_t kMaxRanksPerHost = 1024;
  if (profile.ranks_per_host > kMaxRanksPerHost) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":1: ranks_per_host: expected ", kMaxRanksPerHost,
        " at most, found ", profile.ranks_per_host));
  }
  if (profile.compute_contention.empty() && !profile.network.empty()) {
    profile.compute_contention.assign(
        static_cast<size_t>(std::max(profile.ranks_per_host, 1)), 1.0);
  }
  if (errors.empty()) {
    const std::string inconsistency = InconsistencyOf(profile);
    if (!inconsistency.empty()) {
      errors.push_back(absl::StrCat(file_name, ":", LineOf(tree, inconsistency),
                                    ": ", inconsistency));
    }
  }
  if (!errors.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  }
  return profile;
}

absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadFile(path));
  return ParseProfile(yaml, path);
}

std::string ProfileToYaml(const HardwareProfile& profile) {
  // The field lists give mutable members, so that reading can share them.
  HardwareProfile copy = profile;
  ProfileWriter writer(0,
                       profile.device.is_given() && !profile.network.empty());
  VisitFields(writer, copy);
  return absl::StrCat(
      profile.gemms.empty() ? "# " : "# Measured by `millrace profile`. ",
      "docs/profile.md explains each key.\n", writer.Text());
}

absl::Status SaveProfile(const HardwareProfile& profile,
                         const std::string& path) {
  if (const size_t slash = path.rfind('/');
      slash != std::string::npos && slash > 0) {
    RETURN_IF_ERROR(MakeDirectories(path.substr(0, slash)));
  }
  return WriteFileAtomically(path, ProfileToYaml(profile));
}

absl::StatusOr<std::string> DefaultProfilePath(
    const ProfileIdentity& identity) {
  std::string cache;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME");
      xdg != nullptr && xdg[0] == '/') {
    cache = xdg;
  } else if (const char* home = std::getenv("HOME");
             home != nullptr && home[0] == '/') {
    cache = absl::StrCat(home, "/.cache");
  } else {
    return absl::FailedPreconditionError(
        "no place to keep hardware profiles: neither XDG_CACHE_HOME nor HOME "
        "is set; set one, or give profile: PATH in the job file");
  }
  return absl::StrCat(
      cache, "/millrace/profiles/", CleanForFileName(identity.machine), "-",
      CleanForFileName(identity.shape), "-ranks", identity.num_ranks,
      "-threads", identity.threads_per_device, ".yaml");
}

std::vector<std::string> CachedProfilePaths(const ProfileIdentity& identity) {
  std::vector<std::string> paths;
  const absl::StatusOr<std::string> own = DefaultProfilePath(identity);
  if (!own.ok()) return paths;
  const std::string prefix = own->substr(0, own->rfind("-ranks") + 6);
  std::error_code error;  // No folder means no profiles.
  const std::filesystem::path folder =
      std::filesystem::path(prefix).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string path = entry.path().string();
    if (absl::StartsWith(path, prefix) && absl::EndsWith(path, ".yaml")) {
      paths.push_back(std::move(path));
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> ProfileWarnings(const HardwareProfile& profile,
                                         const ProfileIdentity& identity) {
  const ProfileProvenance& provenance = profile.provenance;
  std::vector<std::string> warnings;
  if (provenance.machine != identity.machine) {
    warnings.push_back(
        absl::StrCat("foreign profile: measured on ", provenance.description,
                     " (", provenance.machine, "), this machine is ",
                     identity.machine, "; run millrace profile here"));
  }
  if (provenance.num_ranks != identity.num_ranks) {
    warnings.push_back(absl::StrCat("stale profile: measured with ",
                                    provenance.num_ranks,
                                    " ranks, planned for ", identity.num_ranks,
                                    "; run millrace profile again"));
  }
  if (provenance.threads_per_device != identity.threads_per_device) {
    warnings.push_back(absl::StrCat(
        "stale profile: measured with ", provenance.threads_per_device,
        " threads a device, planned for ", identity.threads_per_device,
        "; run millrace profile again"));
  }
  return warnings;
}

}  // namespace millrace
