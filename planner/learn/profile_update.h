// Applies what one run taught to a profile, value by value. Each change is
// limited (learn_from_run.h), damped by earlier runs, and recorded in the
// profile's history. LearnFromRun() decides which values are off, and by how
// much.

#ifndef MILLRACE_PLANNER_LEARN_PROFILE_UPDATE_H_
#define MILLRACE_PLANNER_LEARN_PROFILE_UPDATE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "planner/learn/learn_from_run.h"
#include "planner/learn/measured_noise.h"
#include "planner/profile/learnt_history.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"

namespace millrace {

class ProfileUpdate {
 public:
  // Borrows both.
  ProfileUpdate(const MeasuredRun& run, const HardwareProfile& before)
      : run_(run), before_(before), counts_(before) {}

  // Starts again from the profile before. Without damping, values move all the
  // way.
  void Restart(bool damps);

  // The profile with the updates made so far.
  HardwareProfile& profile() { return result_.profile; }
  LearntProfile& result() { return result_; }

  void Refuse(std::string why) { result_.refused.push_back(std::move(why)); }

  // Changes a row by `log_ratio`, the logarithm of measured over listed, within
  // its limit. `seconds` points into the profile. `num_calls` calls showed the
  // change; 0 if other rows of the kind showed it.
  void ScaleRow(const OpShape& shape, double log_ratio, int64_t num_calls,
                double* seconds);
  // Adds a row that the profile lacks. `guessed_s` is the time that the profile
  // would give for it.
  void AddRow(const OpShape& shape, double log_ratio, int64_t num_calls,
              double guessed_s);

  // The functions below change other values. `key` is the value's key in the
  // profile's file, and `stored` points into the profile. This one refuses a
  // change beyond the limit.
  void MoveOverhead(const char* key, double measured_s, double* stored);
  // Changes up to the limit. A factor never falls below 1, since no op runs
  // faster beside others.
  void ScaleFactor(const std::string& key, double log_ratio, double* stored);
  void MoveArrivalSpread(double to);
  // `supposed` is the value if the profile has no noise of that name.
  void MoveNoise(const char* name, double supposed, const Scatter& measured);

 private:
  double GainOf(int num_runs) const { return damps_ ? GainAfter(num_runs) : 1; }
  int64_t num_steps() const { return static_cast<int64_t>(run_.steps.size()); }
  void Change(const std::string& value, double* stored, double after,
              double ratio, int64_t num_samples, bool is_new = false);

  const MeasuredRun& run_;
  const HardwareProfile& before_;
  const EvidenceCounts counts_;
  bool damps_ = true;
  LearntProfile result_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_PROFILE_UPDATE_H_
