// The history that a profile keeps of the runs that taught it. It decides how
// far a further run may move each value.

#ifndef MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_
#define MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_

#include <map>
#include <string>

#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"

namespace millrace {

inline constexpr size_t kRunsKept = 20;
inline constexpr size_t kUpdatesKept = 3;  // Of each value.

// The share of what a run shows by which a value moves that so many runs have
// measured already: what a Kalman filter (Kalman, 1960) comes to whose first
// guess is wide, and whose value drifts.
double GainAfter(int num_runs);

// For each value, how many runs measured it; counts end at kUpdatesKept.
class EvidenceCounts {
 public:
  explicit EvidenceCounts(const HardwareProfile& profile);
  int Of(const std::string& value) const;
  // The most of any row of the shape's kind.
  int OfKind(const OpShape& shape) const;

 private:
  std::map<std::string, int> by_value_;
  std::map<std::string, int> by_kind_;
};

// Append, and forget what is beyond the limits: of updates that others of a
// value's kind brought, the newest alone is kept.
void Remember(const LearntRun& run, HardwareProfile* profile);
void Remember(const LearntChange& value, HardwareProfile* profile);
// To be called once after the last value.
void ForgetOld(HardwareProfile* profile);

// How plans with the profile were off, by what it predicted for runs before it
// learnt from them; not given before the second run. Runs with slow ranks say
// nothing of the machine, runs of one layout little of others.
StepError ErrorOfHistory(const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_
