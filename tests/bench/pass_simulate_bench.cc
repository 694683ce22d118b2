// Times the simulation of a step by passes: a model of 126 layers over 1,024
// and about 100,000 GPUs, without and with noise and slow machines. The
// simulated step is first held to the closed law of interleaving, and the noisy
// one to it from below.
//
//   pass_simulate_bench
//
// Prints processor seconds of one thread, the least of three rounds.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/pipeline/pass_order.h"
#include "planner/simulate/simulate_passes.h"

namespace millrace {
namespace {

constexpr int32_t kStages = 16;
constexpr int32_t kTurns = 8;
constexpr int32_t kTensor = 8;

// Chunks of about a layer of 405 billion parameters on 8 GPUs of an H100's
// kind.
absl::StatusOr<PassStep> StepOf(int32_t num_replicas,
                                int32_t num_microbatches) {
  PassStep step{
      .costs = {.num_stages = kStages, .num_microbatches = num_microbatches},
      .ends = {{.gradient_reduction_s = 0.2,
                .parameter_gather_s = 0.1,
                .optimizer_s = 0.02}},
      .num_buckets = 1,
      .num_replicas = num_replicas,
      .ranks_per_pass = kTensor};
  for (int32_t chunk = 0; chunk < kStages * kTurns; ++chunk) {
    step.costs.stage_of_chunk.push_back(chunk % kStages);
    step.costs.chunks.push_back({.forward_s = 0.010,
                                 .input_gradient_s = 0.011,
                                 .weight_gradient_s = 0.009});
  }
  ASSIGN_OR_RETURN(step.order, OrderOf(Schedule::kInterleaved, step.costs));
  return step;
}

template <typename Call>
double LeastSeconds(Call call) {
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    call();
    least = std::min(
        least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

absl::Status TimePasses(int32_t num_replicas, int32_t num_microbatches) {
  ASSIGN_OR_RETURN(PassStep step, StepOf(num_replicas, num_microbatches));
  const std::vector<StepModel::StepEnds> ends = step.ends;
  step.ends = {{}};
  ASSIGN_OR_RETURN(const PassSimulation bare, SimulatePasses(step, {}));
  const double law = 0.030 * (num_microbatches * kTurns + kStages - 1);
  CHECK(std::abs(bare.step_time_s / law - 1) < 1e-9)
      << bare.step_time_s << " s, by the closed law " << law;
  step.ends = ends;
  step.costs.transfer_s = 0.002;

  PassOptions plain = {.keeps_timeline = false};
  PassOptions slowed = plain;
  slowed.overlap = {.compute = 1.05, .communication = 1.2};
  PassOptions noisy = plain;
  noisy.noise_sigma = 0.02;
  noisy.straggler_share = 0.005;
  noisy.straggler_factor = 1.2;
  const double undisturbed_s = SimulatePasses(step, plain)->step_time_s;
  const double noisy_s = SimulatePasses(step, noisy)->step_time_s;
  CHECK(noisy_s > undisturbed_s) << noisy_s << " s, " << undisturbed_s;
  const auto seconds_with = [&](const PassOptions& options) {
    return LeastSeconds([&] { CHECK(SimulatePasses(step, options).ok()); });
  };
  std::cout << absl::StreamFormat(
      "%d GPUs, %d replicas of %d stages x %d chunks, %d micro-batches: step "
      "%.3f s, with noise and slow machines %.3f s; seconds: alike %.3f, with "
      "slow-down under traffic %.3f, each replica %.3f\n",
      num_replicas * kStages * kTensor, num_replicas, kStages, kTurns,
      num_microbatches, undisturbed_s, noisy_s, seconds_with(plain),
      seconds_with(slowed), seconds_with(noisy));
  return absl::OkStatus();
}

absl::Status Run() {
  RETURN_IF_ERROR(TimePasses(8, 256));
  return TimePasses(782, 32);
}

}  // namespace
}  // namespace millrace

int main() {
  const absl::Status status = millrace::Run();
  if (!status.ok()) {
    std::cerr << "pass_simulate_bench: " << status.message() << "\n";
  }
  return status.ok() ? 0 : 1;
}
