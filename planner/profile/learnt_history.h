// The history that a profile keeps of the runs that taught it. The history
// decides how far the next run may move each value.

#ifndef MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_
#define MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_

#include <map>
#include <string>

#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"

namespace millrace {

inline constexpr size_t kRunsKept = 20;
inline constexpr size_t kUpdatesKept = 3;  // For each value.

// Returns the share of a run's change by which a value moves if `num_runs` runs
// have measured it already. It is what a Kalman filter (Kalman, 1960) gives for
// a value that drifts and whose first guess is uncertain.
double GainAfter(int num_runs);

// Counts for each value how many runs measured it, up to kUpdatesKept.
class EvidenceCounts {
 public:
  explicit EvidenceCounts(const HardwareProfile& profile);
  int Of(const std::string& value) const;
  // Returns the largest count of any row of the shape's kind.
  int OfKind(const OpShape& shape) const;

 private:
  std::map<std::string, int> by_value_;
  std::map<std::string, int> by_kind_;
};

// Append a run or a value to the history.
void Remember(const LearntRun& run, HardwareProfile* profile);
void Remember(const LearntChange& value, HardwareProfile* profile);
// Removes what exceeds the limits; call it once after the last value. If other
// values of a kind caused updates, keeps only the newest of these.
void ForgetOld(HardwareProfile* profile);

// Returns how far plans with the profile were off, from its predictions for
// runs before it learnt from them. Not given before the second run. Runs with
// slow ranks are left out, since they tell nothing about the machine. If all
// runs have one layout, the error is at least as wide as for a single run,
// since they tell little about other layouts.
StepError ErrorOfHistory(const HardwareProfile& profile);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_LEARNT_HISTORY_H_
