// Notices when the loss jumps.

#ifndef MILLRACE_FAULT_LOSS_WATCH_H_
#define MILLRACE_FAULT_LOSS_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>

namespace millrace {

struct LossSpike {
  int64_t step = 0;
  double loss = 0;
  double usual = 0;  // The median of the steps before.
  double limit = 0;  // The bound that it exceeds.
};

struct StepLoss {
  int64_t step = 0;
  double loss = 0;
};

// A loss is a spike if it is above the median of the steps before by more than
// eight times their robust standard deviation and by more than 15 % of the
// median. The first steps, in which the loss falls fast, only count as
// neighbours.
//
// The verdict on a step depends on the losses of the steps before it alone, not
// on failures: a step that is trained again takes the place of its first time.
class LossWatch {
 public:
  // Losses beyond this many are forgotten.
  static constexpr size_t kKept = 4096;

  // A spike is not counted among the steps before the next. After several
  // spikes in a row the loss has moved rather than jumped: the step is no spike
  // and watching begins anew with it. A step that is not later than the last
  // one replaces its earlier loss and discards those of later steps.
  std::optional<LossSpike> Note(int64_t step, double loss);

 private:
  bool FollowsSpikes(int64_t step) const;

  std::deque<StepLoss> losses_;  // By step; only numbers, no spikes.
  std::set<int64_t> spikes_;     // The last steps that were spikes.
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_LOSS_WATCH_H_
