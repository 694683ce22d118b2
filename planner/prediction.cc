#include "planner/prediction.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "planner/interval.h"

namespace millrace {
namespace {

// "1.7 %" for a ratio of 1.017, "1.50x" for one of 1.5.
std::string MoreText(double ratio) {
  return ratio < 1.1 ? absl::StrFormat("%.1f %%", 100 * (ratio - 1))
                     : absl::StrFormat("%.2fx", ratio);
}

// What mostly makes `loser` slower than `chosen`: the part of its step that
// grew by the most seconds.
std::string MainCause(const Prediction& loser, const Prediction& chosen) {
  const auto seconds = [](const Prediction& p, double share) {
    return p.step_time_s * share;
  };
  const auto compute_share = [](const Prediction& p) {
    return 1 - p.bubble_fraction - p.exposed_communication_fraction;
  };
  const double bubble = seconds(loser, loser.bubble_fraction) -
                        seconds(chosen, chosen.bubble_fraction);
  const double communication =
      seconds(loser, loser.exposed_communication_fraction) -
      seconds(chosen, chosen.exposed_communication_fraction);
  const double compute = seconds(loser, compute_share(loser)) -
                         seconds(chosen, compute_share(chosen));
  if (bubble >= communication && bubble >= compute) {
    return absl::StrFormat("bubble %.0f %% of the step",
                           100 * loser.bubble_fraction);
  }
  if (communication >= compute) {
    return absl::StrFormat("exposed communication %.0f %% of the step",
                           100 * loser.exposed_communication_fraction);
  }
  return absl::StrCat("computing takes ",
                      MoreText(seconds(loser, compute_share(loser)) /
                               seconds(chosen, compute_share(chosen))),
                      " longer");
}

}  // namespace

void FillTime(const ModelSpec& model, const Layout& layout,
              const CostModel& cost, double step_time_s,
              Prediction* prediction) {
  prediction->step_time_s = step_time_s;
  prediction->tokens_per_s = static_cast<double>(layout.global_batch()) *
                             static_cast<double>(model.sequence_length) /
                             step_time_s;
  const StepTimeInterval interval =
      IntervalOf(step_time_s, ErrorFor(model, cost.profile()));
  prediction->step_time_low_s = interval.low_s;
  prediction->step_time_high_s = interval.high_s;
  const TokenFlops flops = CountTokenFlops(model);
  const double tokens_per_flop =
      prediction->tokens_per_s / layout.num_ranks() / cost.PeakFlopsPerSecond();
  prediction->mfu_full =
      tokens_per_flop * (flops.linear + flops.attention_full);
  prediction->mfu_causal =
      tokens_per_flop * (flops.linear + flops.attention_causal);
}

Prediction PredictionOf(const ModelSpec& model, const Layout& layout,
                        const CostModel& cost, const StepPrediction& step) {
  Prediction prediction;
  const StepTime& time = step.time;
  const double step_time_s = time.step_time_s();
  FillTime(model, layout, cost, step_time_s, &prediction);
  prediction.bubble_fraction = time.bubble_s / step_time_s;
  prediction.exposed_communication_fraction =
      (time.exposed_tensor_s + time.exposed_context_s + time.exposed_expert_s +
       time.exposed_data_s + time.transfer_s) /
      step_time_s;
  prediction.recompute_fraction = time.recompute_s / step_time_s;
  const StepMemory& memory = step.memory;
  prediction.parameter_bytes = memory.parameters;
  prediction.gradient_bytes = memory.gradients;
  prediction.optimizer_bytes = memory.optimizer;
  prediction.persistent_bytes =
      memory.parameters + memory.gradients + memory.optimizer;
  prediction.step_bytes = memory.activations + memory.working;
  prediction.overhead_bytes = memory.overhead;
  prediction.closed_form = step;
  return prediction;
}

std::string WhyItLost(const Alternative& loser, const Prediction& chosen,
                      int64_t memory_limit) {
  if (!loser.fits) {
    const int64_t need = loser.prediction.memory_bytes();
    return absl::StrCat("needs ", FormatBytes(need), ", ",
                        FormatBytes(need - memory_limit),
                        " more than the device has");
  }
  const double ratio = loser.prediction.step_time_s / chosen.step_time_s;
  if (ratio <= 1.0005) {
    return loser.simulated || loser.prediction.closed_form.has_value()
               ? "as fast, but not as simple"
               : "not simulated; the closed form ranks it lower";
  }
  return absl::StrCat(MoreText(ratio), " slower",
                      loser.simulated ? ": " : " by the closed form: ",
                      MainCause(loser.prediction, chosen));
}

}  // namespace millrace
