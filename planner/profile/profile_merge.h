// Merges profiles of one kind of machine: those of other models' shapes, of
// fewer ranks, of another day, or of a data sheet. `millrace profile --merge`
// writes the result.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/profile.h"

namespace millrace {

// Returns the kind of machine of a fingerprint (ProfileProvenance::machine)
// without the number of GPUs: "NVIDIA-H200" for "NVIDIA-H200-x4". Fingerprints
// of processors stay whole.
std::string MachineKind(const std::string& machine);

struct ProfilePart {
  std::string file;  // For messages and the merged profile's description.
  HardwareProfile profile;
};

struct MergedProfile {
  HardwareProfile profile;
  // One sentence for each row whose slowest time is more than 1.1 times its
  // quickest.
  std::vector<std::string> warnings;
};

// Merges at least two parts.
//
// Tables get every row of the parts, in the order of first appearance. A row
// that several parts measured takes the median of their seconds, of two the
// mean. Communication rows join by kind, group size and bytes, whatever number
// of ranks measured them.
//
// Every other value, and every section as a whole, comes from the newest part
// that states it. A part with tables counts as newer than one without, since a
// measurement outranks a data sheet. Then the later provenance.date counts as
// newer, then the part given later.
//
// Some values come from the part with the most ranks instead, since a newer
// part of fewer ranks knows less. ranks_per_host and compute_contention come
// from the part with the most ranks a host, provenance.machine and num_ranks
// from the part with the most ranks, both again from parts with tables first.
// Each tuning choice comes from the newest tuning that made it, by tuning.date,
// among those of the newest tuning's device. provenance.date is the latest, and
// provenance.description says what was merged.
//
// Returns InvalidArgument for fewer than two parts and for a date that is not
// ISO 8601 in UTC (2026-01-31T12:00:00Z). Also for parts that contradict each
// other, naming both files and the key: in precision, threads_per_device, the
// figures of one device, or the kind of machine. The kind is the device's name
// if both give a device, else MachineKind() of provenance.machine.
absl::StatusOr<MergedProfile> MergeProfiles(
    const std::vector<ProfilePart>& parts);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_MERGE_H_
