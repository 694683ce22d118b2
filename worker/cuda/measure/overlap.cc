#include "worker/cuda/measure/overlap.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/cuda/device/timed_loop.h"
#include "worker/cuda/measure/profiler.h"

namespace millrace {
namespace {

// The mix of products beside the calls is so long that it outlasts them.
constexpr double kOverlapSeconds = 0.4;
constexpr double kCallSeconds = 0.25;  // During which calls are made.
// So many that short calls, of some 60 us, fill kCallSeconds too. Forty of them
// cost the mix less than it differs from run to run.
constexpr int kMaxOverlapCalls = 1000;

constexpr int64_t kReceivedBytes = int64_t{1} << 20;
constexpr int64_t kMovingBytes = int64_t{16} << 20;  // Not latency alone.

// A collective over all ranks of middling size, of those that move much; null
// for none. Copies alone are what copy engines do in a gather.
const ProfileCommunication* TypicalCall(const ProfileRequest& request,
                                        int32_t num_ranks,
                                        bool by_copy_engines) {
  const OpKind kind =
      by_copy_engines ? OpKind::kAllGather : OpKind::kReduceScatter;
  std::vector<const ProfileCommunication*> calls;
  for (const ProfileCommunication& what : request.communication) {
    if (what.kind == kind && what.by_copy_engines == by_copy_engines &&
        what.group_size == num_ranks && what.bytes >= kMovingBytes) {
      calls.push_back(&what);
    }
  }
  std::sort(calls.begin(), calls.end(),
            [](const auto* a, const auto* b) { return a->bytes < b->bytes; });
  return calls.empty() ? nullptr : calls[calls.size() / 2];
}

struct Beside {
  double mix_s;            // Time of the mix.
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
  while (call != nullptr && beside.num_calls < kMaxOverlapCalls) {
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

// How much longer the smallest mix takes beside a receive that waits, in the
// mean over the ranks that receive: the odd ones of pairs of neighbours. NCCL's
// receive is a kernel that holds multiprocessors until its peer has sent.
absl::StatusOr<double> SlowdownBesideReceive(const ProfileRequest& request,
                                             int32_t num_ranks, Rank rank,
                                             CudaLinkTimer& links,
                                             CudaOpTimer& timer) {
  constexpr double kSeconds = 0.05;
  constexpr int kTimes = 3;
  const int32_t num_receivers = num_ranks / 2;
  if (num_receivers == 0 || request.mixes.empty()) return 1.0;
  const bool receives = ToInt(rank) % 2 == 1;
  RETURN_IF_ERROR(SurroundByLargest(std::span(request.mixes).first(1), timer));
  ASSIGN_OR_RETURN(const auto mix, timer.MakeSurroundingsLoop(kSeconds));
  ASSIGN_OR_RETURN(const auto message, links.MakeLoop({.kind = OpKind::kSend,
                                                       .group_size = 2,
                                                       .bytes = kReceivedBytes},
                                                      1));
  RETURN_IF_ERROR(RunBeside(*mix, nullptr, num_ranks, links).status());
  double ratio = 0;
  for (int i = 0; i < kTimes; ++i) {
    ASSIGN_OR_RETURN(const Beside alone,
                     RunBeside(*mix, nullptr, num_ranks, links));
    RETURN_IF_ERROR(links.Sum(0).status());
    // Senders run the mix twice, so that receives wait for as long.
    if (receives) RETURN_IF_ERROR(message->Start());
    double beside_s = 0;
    for (int runs = receives ? 1 : 2; runs > 0; --runs) {
      RETURN_IF_ERROR(mix->Start());
      ASSIGN_OR_RETURN(beside_s, mix->Finish());
    }
    if (!receives) RETURN_IF_ERROR(message->Start());
    RETURN_IF_ERROR(message->Finish().status());
    ASSIGN_OR_RETURN(const double sum,
                     links.Sum(receives ? beside_s / alone.mix_s : 0));
    ratio += sum / num_receivers / kTimes;
  }
  return std::max(1.0, ratio);
}

}  // namespace

absl::StatusOr<OverlapFactors> MeasureOverlap(const ProfileRequest& request,
                                              int32_t num_ranks, Rank rank,
                                              bool by_copy_engines,
                                              CudaLinkTimer& links,
                                              CudaOpTimer& timer) {
  constexpr double kAloneSeconds = 0.02;
  constexpr int64_t kSmallBytes = 4096;
  // NCCL's kernels need multiprocessors.
  OverlapFactors factors = {.waits = !by_copy_engines};
  const ProfileCommunication* large =
      TypicalCall(request, num_ranks, by_copy_engines);
  if (!by_copy_engines) {
    ASSIGN_OR_RETURN(
        factors.compute,
        SlowdownBesideReceive(request, num_ranks, rank, links, timer));
  }
  if (large == nullptr) return factors;
  ProfileCommunication small = *large;
  small.bytes = kSmallBytes;
  ASSIGN_OR_RETURN(const double large_s, links.Time(*large, kAloneSeconds));
  ASSIGN_OR_RETURN(const auto large_call, links.MakeLoop(*large, 1));
  ASSIGN_OR_RETURN(const auto small_call, links.MakeLoop(small, 1));
  // A product is delayed because its blocks cannot all begin: some find no
  // multiprocessor until the collective ends. So products must be as long as in
  // a step, and collectives as short, or the delay looks too small.
  RETURN_IF_ERROR(SurroundByLargest(request.mixes, timer));
  ASSIGN_OR_RETURN(const auto mix, timer.MakeSurroundingsLoop(kOverlapSeconds));
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
  ASSIGN_OR_RETURN(const double compute,
                   MeanOfRanks(own_compute, num_ranks, links));
  factors.compute = std::max(factors.compute, compute);
  ASSIGN_OR_RETURN(factors.communication,
                   MeanOfRanks(moving_s / large_s, num_ranks, links));
  return factors;
}

}  // namespace millrace
