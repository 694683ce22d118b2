#include "planner/evaluate/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/statistics.h"
#include "planner/evaluate/calibrate_predictions.h"
#include "planner/evaluate/calibrate_profile.h"
#include "planner/evaluate/evaluation_summary.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/own_profile.h"
#include "planner/evaluate/published_runs.h"
#include "planner/profile/prediction_interval.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/shipped_profiles.h"
#include "tests/planner/shipped_rules.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kFolder[] = "tests/data/published_runs/";

const ProfileSource& Shipped() {
  static const auto* const profiles =
      new ProfileSource(CachedProfiles(LoadNamedProfile));
  return *profiles;
}

std::vector<PublishedRun> Runs(const std::string& name) {
  absl::StatusOr<std::vector<PublishedRun>> runs =
      LoadPublishedRuns(kFolder + name);
  return *std::move(runs);
}

std::vector<RunPrediction> PredictFile(const std::string& name,
                                       const PredictionOptions& options) {
  std::vector<RunPrediction> predictions;
  for (const PublishedRun& run : Runs(name)) {
    predictions.push_back(PredictRun(run, ShippedRules(), Shipped(), options));
  }
  return predictions;
}

OwnProfile Itself(const HardwareProfile& profile) {
  return *MakeOwnProfile(profile, ShippedRules(), Shipped());
}

const ErrorSummary& Find(const std::vector<ErrorSummary>& summaries,
                         const std::string& name) {
  for (const ErrorSummary& errors : summaries) {
    if (errors.name == name) return errors;
  }
  ADD_FAILURE() << "no " << name;
  return summaries.front();
}

// Goal: every collected run is predicted or refused with a reason, and the
// closed form stays as good as it was. Method: all runs with the shipped
// profiles; limits are what was measured when the constants were fitted, and a
// fifth.
TEST(EvaluateTest, HoldsToTheCollectedRuns) {
  const std::vector<RunPrediction> predictions =
      PredictFile("published_runs.json", {});
  for (const RunPrediction& prediction : predictions) {
    if (prediction.is_supported()) {
      EXPECT_GT(prediction.step_time_s, 0) << prediction.run.id;
      EXPECT_GT(prediction.memory_bytes, 0) << prediction.run.id;
    } else {
      EXPECT_THAT(prediction.status.message(), Not(IsEmpty()));
    }
  }
  const EvaluationSummary summary = Summarize(predictions);
  EXPECT_EQ(summary.all.count, 372);
  EXPECT_EQ(summary.all.supported, 305);
  const ErrorSummary& dense = Find(summary.by_class, "dense A/A+");
  EXPECT_EQ(dense.compared, 170);
  EXPECT_LE(dense.median, 0.028);
  EXPECT_LE(dense.p95, 0.22);
  EXPECT_LE(Find(summary.by_class, "experts").median, 0.105);
  EXPECT_LE(Find(summary.by_class, "fp8/fp4").median, 0.054);
  EXPECT_LE(Find(summary.by_group, "mbridge_perf").median, 0.066);
  EXPECT_LE(Find(summary.by_group, "mbridge_perf").p95, 0.343);
  EXPECT_EQ(summary.num_memory, 34);
  EXPECT_LE(summary.mean_memory_error, 0.028);
  for (const ChoiceSummary& choice : summary.choices) {
    if (choice.name.find("vtrain") != std::string::npos) {
      EXPECT_LE(choice.regret, 0.02) << choice.name;
    }
  }
}

// Goal: shipped profiles state the errors that the runs show, and plans of
// mixtures of experts no less. Method: both, for each profile and for experts.
TEST(EvaluateTest, StatedErrorsAreThoseOfTheRuns) {
  const std::vector<RunPrediction> predictions =
      PredictFile("published_runs.json", {});
  constexpr double kRounding = 0.0006;
  int num_stated = 0;
  for (const auto& [name, shown] : ErrorsByProfile(predictions)) {
    const absl::StatusOr<HardwareProfile> profile = LoadNamedProfile(name);
    ASSERT_TRUE(profile.ok()) << profile.status();
    if (!profile->step_error.is_given()) continue;  // Too few runs.
    ++num_stated;
    EXPECT_NEAR(profile->step_error.low, shown.low, kRounding) << name;
    EXPECT_NEAR(profile->step_error.high, shown.high, kRounding) << name;
    EXPECT_EQ(profile->step_error.num_runs, shown.num_runs) << name;
  }
  EXPECT_GE(num_stated, 6);
  std::vector<double> ratios;
  for (const RunPrediction& prediction : predictions) {
    if (!prediction.is_supported() || !prediction.step_time_error() ||
        prediction.setup.model.moe.num_experts == 0 ||
        !absl::StartsWith(prediction.run.quality, "A")) {
      continue;
    }
    ratios.push_back(1 / (1 + *prediction.step_time_error()));
  }
  const StepError shown = ErrorOfRuns(ratios, "");
  HardwareProfile sure;
  sure.step_error = {.low = 1, .high = 1, .num_runs = 19, .source = "a test"};
  const StepError stated = ErrorFor({.moe = {.num_experts = 8}}, sure);
  EXPECT_LE(stated.low, shown.low);
  EXPECT_GE(stated.high, shown.high);
}

// Goal: the same for the table of single nodes, whose machine is like that of
// runs that constants were fitted to. Method: as above.
TEST(EvaluateTest, HoldsToVtrainsSingleNodes) {
  const EvaluationSummary summary =
      Summarize(PredictFile("vtrain_single_node.csv", {}));
  EXPECT_EQ(summary.all.supported, 860);
  EXPECT_LE(summary.all.median, 0.039);
  EXPECT_LE(summary.all.p95, 0.213);
}

// Goal: two runs of a group predict the rest of it. Method: those that
// ChooseCalibrationRuns takes of each group; limits as above.
TEST(EvaluateTest, TwoRunsCalibrateAGroup) {
  std::vector<RunPrediction> predictions =
      PredictFile("published_runs.json", {.sensitivities = true});
  Calibrate(ChooseCalibrationRuns(predictions, 2), &predictions);
  const EvaluationSummary summary = Summarize(predictions);
  EXPECT_LE(Find(summary.by_class, "calibrated").median, 0.018);
  EXPECT_LE(Find(summary.by_group, "dgxc").median, 0.012);
}

// Goal: without a profile a run is refused with the reason. Method: a source
// that has none.
TEST(EvaluateTest, RefusesWithoutAProfile) {
  const std::vector<PublishedRun> runs = Runs("published_runs.json");
  const ProfileSource none = [](const std::string& name) {
    return absl::StatusOr<HardwareProfile>(
        absl::NotFoundError("no profile " + name));
  };
  for (const PublishedRun& run : runs) {
    if (run.id != "dgxc/0252") continue;
    const RunPrediction prediction = PredictRun(run, ShippedRules(), none, {});
    EXPECT_FALSE(prediction.is_supported());
    EXPECT_THAT(prediction.status.message(), HasSubstr("no profile h100-sxm"));
    EXPECT_FALSE(prediction.step_time_error().has_value());
  }
}

// Goal: no step is predicted in a format that the device does not have. Method:
// a run in 8 bits, pretended on A100, and in 4 bits on H100.
TEST(EvaluateTest, RefusesFormatsThatTheDeviceLacks) {
  for (PublishedRun run : Runs("published_runs.json")) {
    if (run.id != "dgxc/0249") continue;
    run.gpu = "A100";
    EXPECT_THAT(PredictRun(run, ShippedRules(), Shipped(), {}).status.message(),
                HasSubstr("has no 8-bit products"));
    run.gpu = "H100";
    EXPECT_TRUE(PredictRun(run, ShippedRules(), Shipped(), {}).is_supported());
    run.precision = "NVFP4";
    EXPECT_THAT(PredictRun(run, ShippedRules(), Shipped(), {}).status.message(),
                HasSubstr("has no 4-bit products"));
  }
}

// Goal: runs of a slower machine give its constants back. Method: pretend that
// dgxc's dense runs were measured where products reach 0.8 of their share; the
// corrected profile must predict them, and say by what it was corrected.
TEST(CorrectProfileTest, FindsASlowerMachine) {
  const HardwareProfile profile = LoadNamedProfile("h100-sxm").value();
  HardwareProfile slow = profile;
  for (ModelConstant& constant : slow.constants) {
    if (constant.name == "gemm_share" || constant.name == "gemm_fp8_share") {
      constant.value *= 0.8;
    }
  }
  const ProfileSource slow_machine = [&](const std::string& name) {
    return name == "h100-sxm" ? absl::StatusOr<HardwareProfile>(slow)
                              : absl::NotFoundError(name);
  };
  std::vector<PublishedRun> runs;
  for (PublishedRun& run : Runs("published_runs.json")) {
    if (run.group != "dgxc" || run.has_moe) continue;
    const RunPrediction prediction =
        PredictRun(run, ShippedRules(), slow_machine, {});
    if (!prediction.is_supported()) continue;
    run.step_time_s = prediction.step_time_s;
    runs.push_back(run);
  }
  ASSERT_GT(runs.size(), 10u);
  const auto corrected = CorrectProfile(runs, ShippedRules(), Itself(profile));
  ASSERT_TRUE(corrected.ok()) << corrected.status();
  EXPECT_GT(corrected->median_error_before, 0.1);
  EXPECT_LT(corrected->median_error_after, 0.02);
  EXPECT_EQ(corrected->used.size(), runs.size());
  EXPECT_THAT(corrected->outliers, IsEmpty());
  for (size_t i = 0; i < slow.constants.size(); ++i) {
    const ModelConstant& constant = corrected->profile.constants[i];
    if (constant.name != "gemm_share") continue;
    EXPECT_NEAR(constant.value / slow.constants[i].value, 1, 0.1);
    EXPECT_THAT(constant.source, HasSubstr("measured runs"));
  }
  // It can be kept.
  const auto read = ParseProfile(ProfileToYaml(corrected->profile), "p.yaml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->constants, corrected->profile.constants);

  EXPECT_THAT(CorrectProfile(runs, ShippedRules(),
                             Itself(LoadNamedProfile("a100-80gb").value()))
                  .status()
                  .message(),
              HasSubstr("no run says anything of a100-80gb: dgxc/"));
}

// Goal: what is off in the model of some runs is not taken for the machine's: a
// profile corrected by a wide set of runs predicts models that were not in it
// no worse than before, and no constant wanders off. Method: each machine's
// runs, each model left out in turn.
TEST(CorrectProfileTest, KeepsWhatOtherModelsTell) {
  MILLRACE_SKIP_LONG_IF_SANITIZED();
  const auto only = [](const HardwareProfile& known) -> ProfileSource {
    return [known](const std::string& name) {
      return name == known.name ? absl::StatusOr<HardwareProfile>(known)
                                : absl::NotFoundError(name);
    };
  };
  for (const char* const machine :
       {"h100-sxm", "a100-80gb", "a100-80gb-100g", "b200-hgx", "b300-hgx",
        "gb200-nvl72", "gb300-nvl72", "h100-500w"}) {
    SCOPED_TRACE(machine);
    const HardwareProfile profile = LoadNamedProfile(machine).value();
    std::map<std::string, std::vector<PublishedRun>> by_model;
    for (const PublishedRun& run : Runs("published_runs.json")) {
      const RunPrediction prediction =
          PredictRun(run, ShippedRules(), only(profile), {});
      if (!prediction.step_time_error()) continue;
      by_model[PlainModelName(run.model)].push_back(run);
    }
    ASSERT_GT(by_model.size(), profile.name == "h100-sxm" ? 10u : 2u);
    std::vector<double> before, after;
    for (const auto& [held_out, runs] : by_model) {
      std::vector<PublishedRun> others;
      for (const auto& [model, of_model] : by_model) {
        if (model == held_out) continue;
        others.insert(others.end(), of_model.begin(), of_model.end());
      }
      const auto corrected =
          CorrectProfile(others, ShippedRules(), Itself(profile));
      ASSERT_TRUE(corrected.ok()) << corrected.status();
      EXPECT_LE(corrected->median_error_after, corrected->median_error_before);
      for (size_t i = 0; i < profile.constants.size(); ++i) {
        const double factor =
            corrected->profile.constants[i].value / profile.constants[i].value;
        EXPECT_LT(std::fabs(std::log(factor)), std::log(4.0))
            << profile.constants[i].name << " x " << factor << " without "
            << held_out;
      }
      for (const PublishedRun& run : runs) {
        const auto error = [&](const HardwareProfile& known) {
          return std::fabs(*PredictRun(run, ShippedRules(), only(known), {})
                                .step_time_error());
        };
        before.push_back(error(profile));
        after.push_back(error(corrected->profile));
      }
    }
    EXPECT_LE(Quantile(after, 0.5), Quantile(before, 0.5));
  }
}

// Goal: a profile that no correction makes better stays as it is, and its
// sources say nothing else. Method: runs that took just what it predicts.
TEST(CorrectProfileTest, LeavesAGoodProfileAlone) {
  const HardwareProfile profile = LoadNamedProfile("h100-sxm").value();
  std::vector<PublishedRun> runs;
  for (PublishedRun& run : Runs("published_runs.json")) {
    if (run.group != "mlperf") continue;
    const RunPrediction prediction =
        PredictRun(run, ShippedRules(), Shipped(), {});
    if (!prediction.is_supported()) continue;
    run.step_time_s = prediction.step_time_s;
    runs.push_back(run);
  }
  const auto corrected = CorrectProfile(runs, ShippedRules(), Itself(profile));
  ASSERT_TRUE(corrected.ok()) << corrected.status();
  EXPECT_EQ(corrected->profile.constants, profile.constants);
  EXPECT_THAT(corrected->outliers, IsEmpty());
  EXPECT_EQ(corrected->median_error_after, 0);
}

// Goal: a profile measured on one's own machine prices runs on such devices,
// and no others. Method: h200-sxm, measured, as it is and as `millrace profile`
// writes it, without data sheet; and one of a processor.
TEST(OwnProfileTest, StandsForItsDevice) {
  HardwareProfile measured = LoadNamedProfile("h200-sxm").value();
  measured.name = "mine";
  HardwareProfile bare = measured;
  bare.device = {};
  bare.network.clear();
  bare.constants.clear();
  HardwareProfile noisy = bare;  // As one is that runs taught.
  noisy.constants = {{.name = kRunNoise, .value = 0.02, .source = "runs"}};
  for (const HardwareProfile& mine : {measured, bare, noisy}) {
    const auto own = MakeOwnProfile(mine, ShippedRules(), Shipped());
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_TRUE(own->stands_for("h200-cluster"));
    EXPECT_FALSE(own->stands_for("h100-sxm"));
    EXPECT_EQ(own->profile.device.name, measured.device.name);
    EXPECT_GE(own->profile.constants.size(), measured.constants.size());
    EXPECT_EQ(NoiseFor(own->profile).run, NoiseFor(mine).run);
    const ProfileSource profiles = OwnProfileFirst(*own, Shipped());
    EXPECT_EQ(profiles("h200-cluster")->name, "mine");
    EXPECT_EQ(profiles("h100-sxm")->name, "h100-sxm");
    int num_supported = 0;
    for (const PublishedRun& run : Runs("published_runs.json")) {
      if (run.gpu.find("H200") == std::string::npos) continue;
      const RunPrediction prediction =
          PredictRun(run, ShippedRules(), profiles, {});
      const RunPrediction shipped =
          PredictRun(run, ShippedRules(), Shipped(), {});
      EXPECT_EQ(prediction.is_supported(), shipped.is_supported()) << run.id;
      if (!prediction.is_supported()) continue;
      ++num_supported;
      EXPECT_NE(prediction.step_time_s, shipped.step_time_s) << run.id;
    }
    EXPECT_GT(num_supported, 0);
  }
  EXPECT_FALSE(Itself(LoadNamedProfile("a100-80gb").value())
                   .stands_for("a100-80gb-100g"));
  bare.provenance.machine = "AMD-EPYC-2";
  const auto unknown = MakeOwnProfile(bare, ShippedRules(), Shipped());
  EXPECT_TRUE(absl::IsInvalidArgument(unknown.status()));
  EXPECT_THAT(unknown.status().message(), HasSubstr("AMD-EPYC-2"));
}

}  // namespace
}  // namespace millrace
