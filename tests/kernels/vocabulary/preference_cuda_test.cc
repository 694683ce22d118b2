#include <cmath>
#include <vector>

#include "kernels/vocabulary/preference.h"
#include "tests/kernels/gpu_testing.h"
#include "tests/kernels/vocabulary/preference_problem.h"

namespace millrace {
namespace {

// As PreferenceLoss(), with everything copied to the device and back.
absl::Status OnTheDevice(const PreferenceLossArgs& host) {
  const auto ints = [&](const int32_t* from) {
    return ToDevice(std::vector<int32_t>(from, from + host.num_tokens));
  };
  const int64_t num_stats =
      host.num_shards * host.num_tokens * kNumCrossEntropyStats;
  DeviceBuffer<int32_t> targets = ints(host.targets);
  DeviceBuffer<int32_t> document_starts = ints(host.document_starts);
  DeviceBuffer<int32_t> pair_starts = ints(host.pair_starts);
  DeviceBuffer<float> references = ToDevice(
      std::vector<float>(host.references, host.references + host.num_tokens));
  DeviceBuffer<float> stats =
      ToDevice(std::vector<float>(host.all_stats, host.all_stats + num_stats));
  DeviceBuffer<float> weights = PoisonedFloats(host.num_tokens);
  DeviceBuffer<float> log_probabilities = PoisonedFloats(host.num_tokens);
  DeviceBuffer<double> scalars = ToDevice(std::vector<double>{
      *host.loss, *host.chosen_reward, *host.rejected_reward, *host.accuracy});
  PreferenceLossArgs args = host;
  args.weights = weights.data();
  args.log_probabilities = log_probabilities.data();
  args.loss = scalars.data();
  args.chosen_reward = scalars.data() + 1;
  args.rejected_reward = scalars.data() + 2;
  args.accuracy = scalars.data() + 3;
  args.targets = targets.data();
  args.document_starts = document_starts.data();
  args.pair_starts = pair_starts.data();
  args.references = references.data();
  args.all_stats = stats.data();
  const absl::Status status = LaunchPreferenceLoss(args, nullptr);
  const std::vector<float> all_weights = ToHost(weights);
  const std::vector<float> all_logs = ToHost(log_probabilities);
  std::copy(all_weights.begin(), all_weights.end(), host.weights);
  std::copy(all_logs.begin(), all_logs.end(), host.log_probabilities);
  const std::vector<double> sums = ToHost(scalars);
  *host.loss = sums[0];
  *host.chosen_reward = sums[1];
  *host.rejected_reward = sums[2];
  *host.accuracy = sums[3];
  return status;
}

// Goal: the kernel means what the plain loops say, and equal runs give equal
// bits. Method: sequences shorter than a warp and longer than a block, one and
// two shards, with and without label smoothing. Both sides compute in double;
// the sums differ in their order.
TEST(PreferenceLossCudaTest, MatchesThePlainLoops) {
  uint32_t seed = 1;
  for (const int64_t length : {16, 100, 2048, 5000}) {
    for (const int64_t num_shards : {1, 2}) {
      for (const double smoothing : {0.0, 0.2}) {
        SCOPED_TRACE(absl::StrCat(length, " tokens, ", num_shards, " shards"));
        const PreferenceProblem problem(num_shards, seed++, length);
        const PreferenceOutputs expected =
            problem.Run(0.01, smoothing, PreferenceLoss);
        const PreferenceOutputs actual =
            problem.Run(0.01, smoothing, OnTheDevice);
        const PreferenceOutputs again =
            problem.Run(0.01, smoothing, OnTheDevice);
        ExpectClose(actual.weights, expected.weights, 1e-6, "weights");
        ExpectClose(actual.log_probabilities, expected.log_probabilities, 1e-6,
                    "log-probabilities");
        const double tolerance = 1e-9 * static_cast<double>(length);
        EXPECT_NEAR(actual.loss, expected.loss, tolerance);
        EXPECT_NEAR(actual.chosen_reward, expected.chosen_reward, tolerance);
        EXPECT_NEAR(actual.rejected_reward, expected.rejected_reward,
                    tolerance);
        EXPECT_NEAR(actual.accuracy, expected.accuracy, 1e-9);
        ExpectSameBits(actual.weights, again.weights, "weights");
        EXPECT_EQ(actual.loss, again.loss);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
