// Changes a profile to better or worse hardware than it describes. Data sheet,
// links and measured tables change together, so that every price comes from the
// same machine.

#ifndef MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_
#define MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/profile/profile.h"

namespace millrace {

// Scales all matrix rates, and the measured times of GEMMs, attention and the
// head. These keep the share of the peak that they reached.
void ScaleFlops(double factor, HardwareProfile* profile);

// Scales the rate of products that read `format`. The tables follow if they
// were measured in it (a profile of bf16, kAsStored).
void ScaleFlopsOf(GemmFormat format, double factor, HardwareProfile* profile);
// Returns the data sheet's rate; 0 if not stated.
double FlopsOf(GemmFormat format, const HardwareProfile& profile);

// Scales the data sheet's bandwidth, and the measured times of ops that it
// bounds.
void ScaleMemoryBandwidth(double factor, HardwareProfile* profile);

// Scales the bandwidth of network level `level`, and the measured times of
// groups that span it: those with more ranks than a domain of the level below
// joins, and at most one domain of this level. The latency stays; it is the
// level's, or the time of the smallest measured message.
void ScaleLink(size_t level, double factor, HardwareProfile* profile);
// Scales every level and all measured groups, also if no levels are stated.
void ScaleAllLinks(double factor, HardwareProfile* profile);

// Returns the level of this name. "intra_node" is the innermost level.
// "inter_node" is the outermost if there are several levels, or if the only one
// joins all devices.
std::optional<size_t> LinkLevel(absl::string_view name,
                                const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_
