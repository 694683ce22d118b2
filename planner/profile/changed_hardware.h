// Better or worse hardware than a profile describes: data sheet, links and
// measured tables changed together, so that whatever prices a layout by them
// sees the same machine.

#ifndef MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_
#define MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/profile/profile.h"

namespace millrace {

// All matrix rates, and the measured times of GEMMs, attention and the head.
// These are taken to keep the share of the peak that they reached.
void ScaleFlops(double factor, HardwareProfile* profile);

// The rate of products that read `format`; tables follow where they were
// measured in it (a profile of bf16, kAsStored).
void ScaleFlopsOf(GemmFormat format, double factor, HardwareProfile* profile);
// The data sheet's rate; 0: not stated.
double FlopsOf(GemmFormat format, const HardwareProfile& profile);

// The data sheet's bandwidth, and the measured times of ops bound by it.
void ScaleMemoryBandwidth(double factor, HardwareProfile* profile);

// The bandwidth of network level `level`, and the measured times of the groups
// that span it: of more ranks than a domain of the level below joins, and no
// more than one of its own. The latency, that of the level or the time of the
// smallest measured message, stays.
void ScaleLink(size_t level, double factor, HardwareProfile* profile);
// Of every level and all measured groups, also where no levels are stated.
void ScaleAllLinks(double factor, HardwareProfile* profile);

// The level of this name; "intra_node" is the innermost and, where there are
// several or the only one joins all devices, "inter_node" the outermost.
std::optional<size_t> LinkLevel(absl::string_view name,
                                const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_CHANGED_HARDWARE_H_
