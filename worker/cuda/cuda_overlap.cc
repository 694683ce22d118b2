#include "worker/cuda/cuda_overlap.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/cuda/cuda_profiler.h"
#include "worker/cuda/timed_loop.h"

namespace millrace {
namespace {

// Of the mix that calls are made beside. Calls end before it does, if each is
// under way three times as long as alone, or ten times for the small ones.
constexpr double kMixSeconds = 0.4;
constexpr double kCallSeconds = 0.25;  // During which calls are made.
constexpr int kMaxCalls = 40;

// The largest collective of all ranks that a step has, and one so small that
// all its time is waiting.
struct Messages {
  ProfileCommunication large;
  ProfileCommunication small;
};

const ProfileCommunication* LargestOfAll(const ProfileRequest& request,
                                         int32_t num_ranks) {
  const ProfileCommunication* chosen = nullptr;
  for (const ProfileCommunication& what : request.communication) {
    if (!IsCollective(what.kind) || what.group_size != num_ranks) continue;
    if (chosen == nullptr || what.bytes > chosen->bytes) chosen = &what;
  }
  return chosen;
}

struct Beside {
  double mix_s;            // What the mix took.
  double mean_call_s = 0;  // From when it was ready.
  int num_calls = 0;
};

// The mix, with calls one after the other beside its beginning.
absl::StatusOr<Beside> RunBeside(TimedLoop& mix, TimedLoop* call,
                                 int32_t num_ranks, CudaLinkTimer& links) {
  Beside beside = {};
  RETURN_IF_ERROR(links.Sum(0).status());
  const double began_s = MonotonicSeconds();
  RETURN_IF_ERROR(mix.Start());
  double sum_s = 0;
  while (call != nullptr && beside.num_calls < kMaxCalls) {
    // All ranks stop after the same call, and begin each together.
    ASSIGN_OR_RETURN(const double elapsed_s,
                     links.Sum(MonotonicSeconds() - began_s));
    if (elapsed_s > num_ranks * kCallSeconds) break;
    RETURN_IF_ERROR(call->Start());
    ASSIGN_OR_RETURN(const double call_s, call->Finish());
    sum_s += call_s;
    ++beside.num_calls;
  }
  ASSIGN_OR_RETURN(beside.mix_s, mix.Finish());
  if (beside.num_calls > 0) beside.mean_call_s = sum_s / beside.num_calls;
  return beside;
}

absl::StatusOr<double> MeanOfRanks(double mine, int32_t num_ranks,
                                   CudaLinkTimer& links) {
  ASSIGN_OR_RETURN(const double sum, links.Sum(mine));
  return sum / num_ranks;
}

}  // namespace

absl::StatusOr<OverlapFactors> MeasureOverlap(const ProfileRequest& request,
                                              int32_t num_ranks,
                                              CudaLinkTimer& links,
                                              CudaOpTimer& timer) {
  constexpr double kAloneSeconds = 0.02;
  constexpr int64_t kSmallBytes = 4096;
  // NCCL's kernels need multiprocessors.
  OverlapFactors factors = {.waits = true};
  const ProfileCommunication* large = LargestOfAll(request, num_ranks);
  if (large == nullptr) return factors;
  ProfileCommunication small = *large;
  small.bytes = kSmallBytes;
  ASSIGN_OR_RETURN(const double large_s, links.Time(*large, kAloneSeconds));
  ASSIGN_OR_RETURN(const auto large_call, links.MakeLoop(*large, 1));
  ASSIGN_OR_RETURN(const auto small_call, links.MakeLoop(small, 1));
  RETURN_IF_ERROR(timer.SetSurroundings(StepMix(request)));
  ASSIGN_OR_RETURN(const auto mix, timer.MakeSurroundingsLoop(kMixSeconds));
  // Twice, since a chip that was idle is faster at first.
  RETURN_IF_ERROR(RunBeside(*mix, nullptr, num_ranks, links).status());
  ASSIGN_OR_RETURN(const Beside alone,
                   RunBeside(*mix, nullptr, num_ranks, links));
  ASSIGN_OR_RETURN(const Beside with_small,
                   RunBeside(*mix, small_call.get(), num_ranks, links));
  ASSIGN_OR_RETURN(const Beside with_large,
                   RunBeside(*mix, large_call.get(), num_ranks, links));
  // A small call is all waiting: for the op under way, then for its turn.
  const double moving_s =
      std::max(large_s, with_large.mean_call_s - with_small.mean_call_s);
  const double under_way_s = moving_s * with_large.num_calls;
  // The small calls, and the sums between calls, cost the mix something too.
  const double small_cost_s =
      (with_small.mix_s - alone.mix_s) / std::max(1, with_small.num_calls);
  const double cost_s =
      with_large.mix_s - alone.mix_s - small_cost_s * with_large.num_calls;
  const double own_compute = under_way_s > cost_s && cost_s > 0
                                 ? under_way_s / (under_way_s - cost_s)
                                 : 1.0;
  ASSIGN_OR_RETURN(factors.compute, MeanOfRanks(own_compute, num_ranks, links));
  ASSIGN_OR_RETURN(factors.communication,
                   MeanOfRanks(moving_s / large_s, num_ranks, links));
  return factors;
}

}  // namespace millrace
