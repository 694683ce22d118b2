// Hardware profiles as YAML, read strictly; docs/profile.md describes the
// format. Equal profiles give equal text.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_FILE_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/profile/profile.h"

namespace millrace {

// Returns InvalidArgument with all errors found, one a line, each with file,
// line and key.
absl::StatusOr<HardwareProfile> ParseProfile(absl::string_view yaml,
                                             const std::string& file_name);
absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path);

// Writes text that ParseProfile() reads back to an equal profile.
std::string ProfileToYaml(const HardwareProfile& profile);

// Creates the folder if needed. A reader never sees a part of the file.
absl::Status SaveProfile(const HardwareProfile& profile,
                         const std::string& path);

// The identity of a machine's cached profile. The path is
// $XDG_CACHE_HOME/millrace/profiles/MACHINE-SHAPE-ranksN-threadsN.yaml, or the
// same under ~/.cache; on several hosts -ranksNbyN, with the ranks of a host.
// Characters other than letters, digits, '.' and '-' become '_'.
struct ProfileIdentity {
  std::string machine;  // Fingerprint, as in ProfileProvenance.
  std::string shape;    // ProfileShapeKey(), planner/learn/profile_request.h.
  int32_t num_ranks = 1;
  int32_t ranks_per_host = 0;  // 0: all of them.
  int32_t threads_per_device = 1;
  bool is_on_several_hosts() const {
    return ranks_per_host > 0 && num_ranks > ranks_per_host;
  }
};
// Returns FailedPrecondition if neither XDG_CACHE_HOME nor HOME is set.
absl::StatusOr<std::string> DefaultProfilePath(const ProfileIdentity& identity);

// Returns the cached profiles of the identity's machine and shape for all ranks
// and threads, sorted by name. Empty if there are none.
std::vector<std::string> CachedProfilePaths(const ProfileIdentity& identity);

// Returns one sentence for each difference between the machine, ranks, hosts or
// threads of `profile` and those of `identity`; empty if there is none.
std::vector<std::string> ProfileWarnings(const HardwareProfile& profile,
                                         const ProfileIdentity& identity);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_FILE_H_
