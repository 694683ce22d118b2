#include "planner/diagnose/hints.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/substitute.h"
#include "base/units.h"

namespace millrace {
namespace {

std::string TimeText(int64_t ns) { return FormatSeconds(ns * 1e-9); }

// The meaning of the gaps of one cause. In `evidence`, $0 is the number of
// these gaps, $1 their length, $2 the part of it within launching calls, and $3
// the number of kernels.
struct GapHint {
  GapCause cause;
  const char* id;
  const char* evidence;
  const char* remedy;
};
constexpr GapHint kGapHints[] = {
    {GapCause::kLaunch, "launch_bound",
     "in $0 gaps, for $3 kernels, the GPU was idle until the host launched the "
     "next work: $1 in all, of which $2 within the launching calls",
     "Millrace's kernels allocate nothing and never wait, so a step of fused "
     "ones can be captured into one CUDA graph: one launch a step "
     "(docs/kernels.md)."},
    {GapCause::kSynchronize, "synchronize",
     "before $0 of the gaps the host waited for the GPU (.item(), .cpu(), "
     "print of a tensor, or a synchronize) and only then launched more; $1 "
     "idle in all",
     "Millrace's optimizer kernels read nothing back: gradient norm, clipping "
     "and skipped steps stay on the GPU (gradient_norm_bf16 in "
     "kernels/README.md). Read losses rarely, or a step late."},
    {GapCause::kAllocate, "allocate",
     "$0 gaps are mostly cudaMalloc or cudaFree, $1 in all",
     "Millrace gives every buffer its offset before the first step and "
     "allocates nothing within one; in PyTorch, expandable_segments or a lower "
     "peak avoids the retries."},
    {GapCause::kQueued, "queued",
     "$0 gaps ended with work that had been launched before they began, $1 in "
     "all: the GPU's own start of a kernel (about 1 us each), or a stream that "
     "waits for an event",
     "Fewer, fused kernels start less often; Millrace derives its waits from "
     "the buffers that ops share and keeps no other (docs/architecture.md)."},
    {GapCause::kUnknown, "unknown_gaps",
     "$0 gaps of $1 in all, and no launches to explain them",
     "Record with ProfilerActivity.CPU beside CUDA to see what the host did."},
    {GapCause::kEnd, "step_end",
     "the GPU idles $1 at the end, until the next step starts",
     "Data loading, logging and profiler.step() run between two steps. "
     "Millrace prepares its data before training (docs/data.md)."},
};

Hint HintOf(const GapHint& hint, const DeviceTime& total) {
  const GapTotal& gaps = total.gaps_by_cause[static_cast<size_t>(hint.cause)];
  return {.id = hint.id,
          .evidence = absl::Substitute(
              hint.evidence, gaps.num_gaps, TimeText(gaps.idle_ns),
              TimeText(total.launch_call_ns), total.num_kernels),
          .remedy = hint.remedy,
          .saves_at_most_ns = gaps.idle_ns};
}

Hint ShortKernelHint(const DeviceTime& total) {
  return {
      .id = "short_kernels",
      .evidence = absl::StrFormat(
          "%d of %d compute kernels run below %s (%.0f %%); no longer one runs "
          "beside them for %s",
          total.num_short_kernels, total.num_compute_kernels,
          TimeText(kShortKernelNs),
          total.num_compute_kernels == 0
              ? 0.0
              : 100.0 * total.num_short_kernels / total.num_compute_kernels,
          TimeText(total.short_kernel_ns)),
      .remedy =
          "Fused ops replace chains of them: norm with residual, RoPE, "
          "SwiGLU, projection with loss, the optimizer over one flat "
          "buffer (kernels/README.md); then one CUDA graph.",
      .saves_at_most_ns = total.short_kernel_ns};
}

// These kernels move memory and compute little. Fusing them keeps their
// intermediate results on the chip.
Hint MemoryBoundHint(const DeviceTime& total) {
  int64_t time_ns = 0;
  int64_t num_kernels = 0;
  for (const KernelCategory category :
       {KernelCategory::kNorm, KernelCategory::kSoftmax,
        KernelCategory::kReduction, KernelCategory::kElementwise}) {
    const CategoryTime& time = total.categories[static_cast<size_t>(category)];
    time_ns += time.share_ns;
    num_kernels += time.num_kernels;
  }
  return {.id = "memory_bound_kernels",
          .evidence = absl::StrCat(
              num_kernels,
              " norm, softmax, reduction and elementwise kernels take ",
              TimeText(time_ns)),
          .remedy =
              "They mostly move tensors to and from memory; fused ones "
              "(kernels/README.md), or epilogues of the GEMM before, "
              "move them once. Some traffic stays.",
          .saves_at_most_ns = time_ns};
}

absl::string_view CollectiveRemedy(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "Gather parameters one layer ahead of their use, or keep them "
             "whole: ZeRO 1 gathers once a step, ZeRO 3 (full sharding) twice "
             "a micro-batch. millrace plan prices layouts by the exposed part.";
    case Collective::kReduceScatter:
    case Collective::kAllReduce:
      return "Reduce gradients bucket by bucket while backward still runs. "
             "Millrace splits backward into input and weight gradients, so "
             "that tensor-parallel communication hides under the latter, and "
             "millrace plan weighs data against tensor and pipeline.";
    case Collective::kAllToAll:
      return "Overlap the exchange of one micro-batch with the experts of "
             "another, or keep expert groups within one host.";
    case Collective::kSendReceive:
      return "Waiting for a neighbour is the pipeline's bubble: more "
             "micro-batches, or stages of more equal time; millrace plan "
             "simulates both.";
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kOther:
      return "Start it earlier on a stream of its own, so that compute runs "
             "beside it.";
  }
  return "";
}

Hint CollectiveHint(Collective collective, const CollectiveTime& time) {
  const absl::string_view name = CollectiveName(collective);
  return {.id = absl::StrCat("exposed_", name),
          .evidence = absl::StrCat(
              time.num_kernels, " ", name, " kernels run ",
              TimeText(time.busy_ns), ", of which ", TimeText(time.exposed_ns),
              " with no compute beside them (waiting for slower ranks "
              "included)"),
          .remedy = std::string(CollectiveRemedy(collective)),
          .saves_at_most_ns = time.exposed_ns};
}

Hint CopyHint(const DeviceTime& total) {
  std::string evidence = absl::StrCat(
      "copies and fills run ", TimeText(total.copy_ns), ", of which ",
      TimeText(total.split.exposed_copy_ns), " with no kernel beside");
  if (!total.copies.empty()) {
    const CopyTime& longest =
        *std::ranges::max_element(total.copies, {}, &CopyTime::sum_ns);
    absl::StrAppend(&evidence, "; longest: ", longest.num_copies, " x ",
                    longest.name, ", ", TimeText(longest.sum_ns));
  }
  return {.id = "exposed_copies",
          .evidence = std::move(evidence),
          .remedy =
              "Copy the next batch from pinned memory on its own stream "
              "while this one is computed; Millrace keeps all training "
              "state on the device, at fixed offsets.",
          .saves_at_most_ns = total.split.exposed_copy_ns};
}

}  // namespace

std::vector<Hint> HintsFor(const Diagnosis& diagnosis) {
  const DeviceTime& total = diagnosis.total;
  std::vector<Hint> hints;
  for (const GapHint& hint : kGapHints) hints.push_back(HintOf(hint, total));
  hints.push_back(ShortKernelHint(total));
  hints.push_back(MemoryBoundHint(total));
  hints.push_back(CopyHint(total));
  for (int i = 0; i < kNumCollectives; ++i) {
    hints.push_back(
        CollectiveHint(static_cast<Collective>(i), total.collectives[i]));
  }
  const int64_t least_ns = std::max<int64_t>(1, total.split.window_ns / 100);
  std::erase_if(hints, [least_ns](const Hint& hint) {
    return hint.saves_at_most_ns < least_ns;
  });
  std::ranges::stable_sort(hints, std::greater<>(), &Hint::saves_at_most_ns);
  return hints;
}

}  // namespace millrace
