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
    double alone_s;  // What the op would have taken without any slow-down.
  };

  RankWork() = default;
  // Both are borrowed.
  RankWork(const std::vector<RankStep>& ranks, const HardwareProfile& profile);

  // When communication that was ready at `ready_s` found room on the device
  // (OverlapFactors::waits).
  double CouldBegin(size_t rank, double ready_s) const;
  // `rank` communicated meanwhile, not waiting for others. Before what follows.
  void AddFlow(size_t rank, const TimeSpan& span);

  // Questions about one rank after another are quick, and take the memory of
  // one rank.
  Circumstances During(size_t rank, const TimeSpan& span);
  // The share of the span that the rank computes.
  double ComputingShare(size_t rank, const TimeSpan& span);
  // The seconds that communication of the span would have taken on cores that
  // others leave alone.
  double CommunicationAlone(size_t rank, const TimeSpan& span);

 private:
  // Running totals at a moment: of work done by a rank that computes, of ranks
  // of the host that are busy, of communication done by one under way, and of
  // time spent communicating and computing.
  struct Totals {
    double work_s = 0;
    double rank_s = 0;
    double communication_s = 0;
    double flow_s = 0;
    double computing_s = 0;
  };
  struct Moment {
    double time_s;
    Totals totals;  // Until then.
    // From then on.
    int num_busy = 0;  // On the host: as the simulator counts them.
    int num_flows = 0;
    int computes = 0;
  };

  Totals Grown(const Moment& since, double seconds) const;
  Totals At(size_t rank, double time_s);
  std::vector<Moment> MomentsOf(size_t rank) const;

  const std::vector<RankStep>* ranks_ = nullptr;
  const HardwareProfile* profile_ = nullptr;
  // By rank, in order of time.
  std::vector<std::vector<TimeSpan>> computing_;
  std::vector<std::vector<TimeSpan>> fills_device_;
  std::vector<std::vector<TimeSpan>> flows_;
  size_t known_rank_ = 0;
  std::vector<Moment> moments_;  // Of that rank; empty: none yet.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_RANK_WORK_H_
