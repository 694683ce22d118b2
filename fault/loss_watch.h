// Notices when the loss jumps.

#ifndef MILLRACE_FAULT_LOSS_WATCH_H_
#define MILLRACE_FAULT_LOSS_WATCH_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace millrace {

struct LossSpike {
  int64_t step = 0;
  double loss = 0;
  double usual = 0;  // The median of the steps before.
  double limit = 0;  // The bound that it exceeds.
};

// A loss is a spike if it is above the median of the steps before by more than
// eight times their robust standard deviation and by more than 15 % of the
// median. The first steps, in which the loss falls fast, only count as
// neighbours.
class LossWatch {
 public:
  // Training begins anew at some step: what came before counts no more.
  void Begin() { losses_.clear(); }
  // A spike is not counted among the steps before the next.
  std::optional<LossSpike> Note(int64_t step, double loss);

 private:
  std::deque<double> losses_;  // The last few that are numbers.
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_LOSS_WATCH_H_
