// Computes how much of an op a rank completed at each moment of a measured
// step. Two things slow it down: other ranks on the same cores, and its own
// communication.

#ifndef MILLRACE_PLANNER_LEARN_RANK_WORK_H_
#define MILLRACE_PLANNER_LEARN_RANK_WORK_H_

#include <cstddef>
#include <vector>

#include "planner/learn/rank_steps.h"
#include "planner/learn/step_observation.h"
#include "planner/profile/profile.h"

namespace millrace {

class RankWork {
 public:
  struct Circumstances {
    OpContext context;
    double alone_s;  // Time of the op without any slow-down.
  };

  RankWork() = default;
  // Borrows both.
  RankWork(const std::vector<RankStep>& ranks, const HardwareProfile& profile);

  // Returns when communication that was ready at `ready_s` could begin, since
  // it may have to wait for an op that fills the device
  // (OverlapFactors::waits).
  double CouldBegin(size_t rank, double ready_s) const;
  // Records that `rank` communicated in the span without waiting for others.
  // Call it for all spans before any of the functions below.
  void AddFlow(size_t rank, const TimeSpan& span);

  // Returns under which circumstances the op of the span ran. Calls for one
  // rank after the other are fast; the memory in use is that of one rank.
  Circumstances During(size_t rank, const TimeSpan& span);
  // Returns the share of the span in which the rank computes.
  double ComputingShare(size_t rank, const TimeSpan& span);
  // Returns the seconds that communication of the span would have taken on
  // cores that no other rank uses.
  double CommunicationAlone(size_t rank, const TimeSpan& span);

 private:
  // Running totals up to a moment: the work that a rank has done if it computed
  // all the time, the busy ranks of the host times seconds, the communication
  // done if some was under way all the time, and the times spent communicating
  // and computing.
  struct Totals {
    double work_s = 0;
    double rank_s = 0;
    double communication_s = 0;
    double flow_s = 0;
    double computing_s = 0;
  };
  struct Moment {
    double time_s;
    Totals totals;  // Up to the moment.
    // The counts below hold from the moment on.
    int num_busy = 0;  // On the host, counted as the simulator does.
    int num_flows = 0;
    int computes = 0;
  };

  Totals Grown(const Moment& since, double seconds) const;
  Totals At(size_t rank, double time_s);
  std::vector<Moment> MomentsOf(size_t rank) const;

  const std::vector<RankStep>* ranks_ = nullptr;
  const HardwareProfile* profile_ = nullptr;
  // Indexed by rank, in order of time.
  std::vector<std::vector<TimeSpan>> computing_;
  std::vector<std::vector<TimeSpan>> fills_device_;
  std::vector<std::vector<TimeSpan>> flows_;
  size_t known_rank_ = 0;
  std::vector<Moment> moments_;  // For known_rank_; empty if not computed.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_RANK_WORK_H_
