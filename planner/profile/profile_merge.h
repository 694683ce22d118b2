// Merges profiles of one kind of machine into one: profiles of other models'
// shapes, of fewer ranks, of another day, or of a data sheet. `millrace profile
// --merge` writes the result.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"

namespace millrace {

// The kind of machine of a fingerprint (ProfileProvenance::machine): without
// the number of GPUs of the host, "NVIDIA-H200" of "NVIDIA-H200-x4".
// Processors' stay whole.
std::string MachineKind(const std::string& machine);

struct ProfilePart {
  std::string file;  // For messages and the merged profile's description.
  HardwareProfile profile;
};

struct MergedProfile {
  HardwareProfile profile;
  // A sentence for each row whose seconds are more than 10 % apart: the
  // slowest more than 1.1 times the quickest.
  std::vector<std::string> warnings;
};

// Tables hold every row of the parts, in the order of their first appearance.
// A row that several parts measured takes the median of their seconds, of two
// the mean. Communication joins by kind, group size and bytes, however many
// ranks measured it.
//
// Every other value is the newest part's that states it, whole sections
// together: of two parts the one with tables counts as the newer, since what
// was measured outranks a data sheet; then the one with the later
// provenance.date; then the one given later. Newer parts of fewer ranks do not
// undo what many ranks tell: ranks_per_host and compute_contention come
// together from the part with the most ranks a host, provenance.machine and
// num_ranks from the one with the most ranks, both again by parts with tables
// first. Of tuning, each choice is the newest part's that made it, by
// tuning.date, among those of the newest's device. provenance.date is the
// latest, and provenance.description ends with what was merged.
//
// Returns InvalidArgument for fewer than two parts, for a date that is not ISO
// 8601 in UTC (2026-01-31T12:00:00Z), and, naming both files and the key, where
// parts contradict each other: by precision, threads_per_device, the figures of
// one device, or the kind of machine. That is the device's name where both give
// a device, else provenance.machine without its "-xN", the GPUs of the host.
absl::StatusOr<MergedProfile> MergeProfiles(
    const std::vector<ProfilePart>& parts);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_
