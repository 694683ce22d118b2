#include "kernels/vocabulary/preference.h"

#include <cmath>
#include <vector>

#include "tests/kernels/vocabulary/preference_problem.h"

namespace millrace {
namespace {

constexpr double kBeta = 0.3;

// The loss of a pair as a function of its answers' log-probabilities, written
// as in the paper.
double PaperLoss(double chosen, double rejected, double smoothing) {
  const auto log_sigmoid = [](double x) {
    return std::log(1 / (1 + std::exp(-x)));
  };
  const double margin = kBeta * (chosen - rejected);
  return -(1 - smoothing) * log_sigmoid(margin) -
         smoothing * log_sigmoid(-margin);
}

// Goal: loss, rewards, accuracy and log-probabilities are those of the paper.
// Method: sequences with two pairs, one, and tokens of none; the sums in double
// beside, from the statistics of one, two and three shards.
TEST(PreferenceLossTest, IsThePapers) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const int64_t num_shards : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(num_shards, " shards, smoothing ", smoothing));
      PreferenceProblem problem(num_shards, 5);
      const PreferenceOutputs actual =
          problem.Run(kBeta, smoothing, PreferenceLoss);
      double loss = 0, chosen_reward = 0, rejected_reward = 0, accuracy = 0;
      for (const PreferenceProblem::Pair& pair : problem.pairs) {
        const double chosen = problem.Sum(pair.chosen, pair.rejected);
        const double rejected = problem.Sum(pair.rejected, pair.end);
        const double gained = chosen - problem.references[pair.chosen];
        const double lost = rejected - problem.references[pair.rejected];
        loss += PaperLoss(gained, lost, smoothing);
        chosen_reward += kBeta * gained;
        rejected_reward += kBeta * lost;
        accuracy += gained > lost ? 1 : 0;
        EXPECT_NEAR(actual.log_probabilities[pair.chosen], chosen, 1e-5);
        EXPECT_NEAR(actual.log_probabilities[pair.rejected], rejected, 1e-5);
      }
      for (const int64_t t : problem.alone) {
        if (problem.targets[t] >= 0) loss += problem.CrossEntropy(t);
      }
      // The loss is added to the one that was there.
      EXPECT_NEAR(actual.loss, 1 + problem.scale * loss, 1e-6);
      EXPECT_NEAR(actual.chosen_reward, 1 + problem.scale * chosen_reward,
                  1e-6);
      EXPECT_NEAR(actual.rejected_reward, 1 + problem.scale * rejected_reward,
                  1e-6);
      EXPECT_NEAR(actual.accuracy, 1 + problem.scale * accuracy, 1e-12);
    }
  }
}

// Goal: a token's weight is the derivative of the loss by its cross entropy.
// Method: central differences: a target's logit that falls by a step raises the
// token's cross entropy by it.
TEST(PreferenceLossTest, WeightsAreDerivatives) {
  PreferenceProblem problem(/*num_shards=*/2, 6);
  const auto loss = [&] {
    return problem.Run(kBeta, 0.1, PreferenceLoss).loss;
  };
  const PreferenceOutputs at = problem.Run(kBeta, 0.1, PreferenceLoss);
  for (int64_t t = 0; t < problem.num_tokens(); ++t) {
    if (problem.targets[t] < 0) {
      EXPECT_EQ(at.weights[t], 0) << t;
      continue;
    }
    float& logit = problem.TargetLogit(t);
    const float kept = logit;
    logit = kept - 0.01f;
    const double above = loss();
    const double step = double{kept} - logit;
    logit = kept + 0.01f;
    const double below = loss();
    const double whole = step + (double{logit} - kept);
    logit = kept;
    EXPECT_NEAR(at.weights[t] * problem.scale, (above - below) / whole, 1e-5)
        << t;
  }
}

// Goal: margins of any size have a finite loss and gradient.
TEST(PreferenceLossTest, LargeMarginsStayFinite) {
  for (const float reference : {-1e6f, 1e6f}) {
    PreferenceProblem problem(1, 7);
    for (float& value : problem.references) value = 0;
    problem.references[0] = reference;
    const PreferenceOutputs outputs = problem.Run(kBeta, 0, PreferenceLoss);
    EXPECT_TRUE(std::isfinite(outputs.loss));
    EXPECT_NEAR(outputs.weights[problem.FirstTrained()],
                reference > 0 ? kBeta : 0, 1e-6);
  }
}

TEST(PreferenceLossTest, RefusesSizesThatCannotBe) {
  PreferenceLossArgs args = {
      .num_shards = 0, .num_tokens = 4, .sequence_length = 4};
  EXPECT_TRUE(absl::IsInvalidArgument(PreferenceLoss(args)));
  args.num_shards = 1;
  args.sequence_length = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(PreferenceLoss(args)));
}

}  // namespace
}  // namespace millrace
