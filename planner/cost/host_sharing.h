// How ranks that share the cores of a host slow each other down.

#ifndef MILLRACE_PLANNER_COST_HOST_SHARING_H_
#define MILLRACE_PLANNER_COST_HOST_SHARING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"

namespace millrace {

// By pipeline stage, how many of its ranks are on the host of `rank`, itself
// among them; hosts have `ranks_per_host` ranks each, in order.
std::vector<int32_t> RanksBeside(const Layout& layout, Rank rank,
                                 int32_t ranks_per_host);

// `factors[n - 1]`, of at least one, is how many times as long an op takes when
// n ranks of a host compute at once (HardwareProfile::compute_contention).

// Whether ranks of a host slow each other down. GPUs do not; that one of four
// measures 0.1 % more is noise. False without factors.
bool SharesCores(std::span<const double> factors);

// The factor when `num_busy` threads compute or communicate at once, which may
// be more than there are ranks: each further one then adds to what all get done
// together as much as the last of the factors did.
double SharingSlowdown(std::span<const double> factors, int32_t num_busy);

// The factor of SharingSlowdown() on the time of communication, which is
// measured while all ranks of the host communicate. Never below 1.
double CommunicationSlowdown(std::span<const double> factors, int32_t num_busy);

// How many ranks of a host compute at once on average over a step of the
// layout, since ranks wait for others in a pipeline while these compute. Zero
// where the ranks of a host do not slow each other down.
double NumComputing(const Layout& layout, const HardwareProfile& profile);
// The factor on the time of their ops.
double ContentionOf(double num_computing, const HardwareProfile& profile);
// The factors when each of them communicates as well, beside that factor: a
// thread that communicates is busy as one that computes is.
OverlapFactors OverlapOf(double num_computing, const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_HOST_SHARING_H_
