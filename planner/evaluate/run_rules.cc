#include "planner/evaluate/run_rules.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/evaluate/run_devices.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

constexpr char kFrameworksFile[] = "frameworks.yaml";
constexpr char kModelsFile[] = "models.yaml";
// The folder of the runs that the rules describe, in a source tree and in the
// bundle.
constexpr char kShippedRules[] = "tests/data/published_runs";

absl::StatusOr<RunRules> LoadRules(const std::string& frameworks_path,
                                   const std::string& models_path) {
  RunRules rules;
  ASSIGN_OR_RETURN(const std::string frameworks, ReadFile(frameworks_path));
  ASSIGN_OR_RETURN(rules.frameworks,
                   ParseFrameworkRules(frameworks, frameworks_path));
  ASSIGN_OR_RETURN(const std::string models, ReadFile(models_path));
  ASSIGN_OR_RETURN(rules.models, ParseKnownModels(models, models_path));
  return rules;
}

absl::StatusOr<std::string> FindRules(const std::filesystem::path& beside,
                                      const char* name) {
  const std::string own = (beside / name).string();
  if (FileExists(own)) return own;
  const absl::StatusOr<std::string> folder = FindShippedFolder(kShippedRules);
  if (folder.ok()) {
    const std::string shipped = absl::StrCat(*folder, "/", name);
    if (FileExists(shipped)) return shipped;
  }
  return absl::NotFoundError(absl::StrCat(
      "no ", name, ", which completes runs (docs/evaluate.md): looked for ",
      own, " beside the runs and for ", kShippedRules, "/", name,
      " beside or above the program and in the current folder; name the folder "
      "that has it with --rules"));
}

}  // namespace

absl::StatusOr<RunRules> LoadRunRules(const std::string& folder) {
  const std::filesystem::path path(folder);
  return LoadRules((path / kFrameworksFile).string(),
                   (path / kModelsFile).string());
}

absl::StatusOr<RunRules> LoadRulesBeside(const std::string& runs_path) {
  const std::filesystem::path beside =
      std::filesystem::path(runs_path).parent_path();
  ASSIGN_OR_RETURN(const std::string frameworks,
                   FindRules(beside, kFrameworksFile));
  ASSIGN_OR_RETURN(const std::string models, FindRules(beside, kModelsFile));
  return LoadRules(frameworks, models);
}

bool IsProfileOfRuns(const RunRules& rules, const std::string& name) {
  const std::vector<std::string> devices = DeviceProfiles();
  if (std::ranges::find(devices, name) != devices.end()) return true;
  for (const FrameworkRule& rule : rules.frameworks.frameworks) {
    for (const auto& [device, other] : rule.profiles) {
      if (other.name == name) return true;
    }
  }
  return false;
}

}  // namespace millrace
