#include "planner/simulate/pass_timeline.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// The phase that a Program would call it; a whole backward pass counts as the
// input gradient, which others wait for.
Phase PhaseOf(PassEventKind kind) {
  switch (kind) {
    case PassEventKind::kForward:
    case PassEventKind::kActivationTransfer:
      return Phase::kForward;
    case PassEventKind::kBackward:
    case PassEventKind::kInputGradient:
    case PassEventKind::kGradientTransfer:
      return Phase::kInputGradient;
    case PassEventKind::kWeightGradient:
      return Phase::kWeightGradient;
    case PassEventKind::kParameterGather:
      return Phase::kParameterGather;
    case PassEventKind::kGradientReduction:
      return Phase::kGradientReduce;
    case PassEventKind::kOptimizer:
      return Phase::kOptimizer;
  }
  return Phase::kForward;
}

}  // namespace

const char* PassEventKindName(PassEventKind kind) {
  switch (kind) {
    case PassEventKind::kForward:
      return "forward";
    case PassEventKind::kBackward:
      return "backward";
    case PassEventKind::kInputGradient:
      return "input_gradient";
    case PassEventKind::kWeightGradient:
      return "weight_gradient";
    case PassEventKind::kActivationTransfer:
      return "activation_transfer";
    case PassEventKind::kGradientTransfer:
      return "gradient_transfer";
    case PassEventKind::kParameterGather:
      return "parameter_gather";
    case PassEventKind::kGradientReduction:
      return "gradient_reduction";
    case PassEventKind::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

std::string PassEventToString(const PassEvent& event) {
  std::string text = PassEventKindName(event.kind);
  if (event.chunk_idx >= 0) {
    absl::StrAppend(&text, " of chunk ", event.chunk_idx);
  }
  if (event.bucket_idx >= 0) {
    absl::StrAppend(&text, ", bucket ", event.bucket_idx);
  }
  return text;
}

Timeline ToTimeline(const PassTimeline& timeline) {
  Timeline result{.step_time_s = timeline.step_time_s};
  for (const RankClass& ranks : timeline.classes) {
    RankTimeline rank{.rank = Rank{static_cast<int32_t>(result.ranks.size())},
                      .stage = ranks.stage,
                      .events = {}};
    for (const PassEvent& event : ranks.events) {
      rank.events.push_back(
          {.instruction = static_cast<InstructionId>(rank.events.size()),
           .start_s = event.start_s,
           .end_s = event.end_s});
    }
    std::stable_sort(rank.events.begin(), rank.events.end(),
                     [](const TimelineEvent& a, const TimelineEvent& b) {
                       return a.start_s < b.start_s;
                     });
    result.ranks.push_back(std::move(rank));
  }
  return result;
}

std::string PassProgramText(const PassTimeline& timeline, int32_t stage) {
  std::string text;
  for (const RankClass& ranks : timeline.classes) {
    if (ranks.stage != stage) continue;
    for (size_t i = 0; i < ranks.events.size(); ++i) {
      const PassEvent& event = ranks.events[i];
      const std::string microbatch =
          event.microbatch_idx < 0 ? "-" : absl::StrCat(event.microbatch_idx);
      const std::string name = event.chunk_idx < 0
                                   ? "step"
                                   : absl::StrCat("chunk.", event.chunk_idx);
      absl::StrAppend(&text, i, " ", LaneName(event.lane), " ",
                      PhaseName(PhaseOf(event.kind)), " ", microbatch, " ",
                      name, " ", PassEventToString(event), "\n");
    }
    break;  // Others of the stage have the same.
  }
  return text;
}

}  // namespace millrace
