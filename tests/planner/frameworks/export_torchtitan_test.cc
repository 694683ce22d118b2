// Layouts in torchtitan's words, and back.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/settings.h"
#include "planner/frameworks/torchtitan.h"
#include "tests/planner/frameworks/framework_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Goal: what torchtitan can express survives the way there and back. Method:
// every layout; its models have names, so the model comes from a config.json
// beside it. ZeRO 1 without replicas is the same as ZeRO 0 there, and ZeRO 0
// with replicas is none beside other axes.
TEST(ExportTorchtitanTest, RoundTrip) {
  const JobSpec job = UnusualJob();
  const absl::StatusOr<Settings> model = UnusualModel();
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Layout& layout : Sampled(LayoutsOf(job), 7)) {
    SCOPED_TRACE(LayoutToString(layout));
    const std::string text = MustExport(job, layout, TorchtitanAdapter());
    const JobSpec back =
        MustImport(TorchtitanAdapter(), ReadTomlSettings(text, "job.toml"),
                   {.model = *model});
    ModelSpec expected_model = job.model;
    expected_model.init_std = ModelSpec{}.init_std;  // Not expressible.
    EXPECT_EQ(back.model, expected_model);
    LayoutConstraints expected = Pinned(layout);
    // Replicas there stand alone; beside other axes they are sharded.
    const bool alone = layout.tensor == 1 && layout.pipeline == 1;
    if (layout.data == 1) expected.zero = 0;
    if (layout.data > 1 && !alone) expected.zero = 1;
    const bool is_set = layout.recompute != Recompute::kNone &&
                        layout.recompute != Recompute::kFull;
    expected.recompute = is_set ? "selective" : RecomputeName(layout.recompute);
    EXPECT_EQ(back.layout, expected);
    TrainingSpec training = job.training;
    training.validation_interval_steps = 0;  // Not exported.
    training.validation_steps = 1;
    training.optimizer.min_learning_rate =
        back.training.optimizer.min_learning_rate;
    EXPECT_EQ(back.training, training);
    EXPECT_NEAR(back.training.optimizer.min_learning_rate, 1.3e-4, 1e-18);
    if (HasFailure()) return;
  }
}

// Goal: torchtitan's own models need no config.json. Method: each flavor there
// and back.
TEST(ExportTorchtitanTest, FlavorsHaveNames) {
  for (const TorchtitanFlavor& flavor : TorchtitanFlavors()) {
    JobSpec job = UnusualJob();
    job.model = flavor.model;
    job.model.sequence_length = 64;
    const Layout layout{.data = 2, .micro_batch = 4, .num_microbatches = 12};
    const std::string text = MustExport(job, layout, TorchtitanAdapter());
    EXPECT_THAT(text,
                HasSubstr(absl::StrCat("flavor = \"", flavor.name, "\"")));
    EXPECT_THAT(text, Not(HasSubstr("TransformerModelArgs")));
    EXPECT_EQ(
        MustImport(TorchtitanAdapter(), ReadTomlSettings(text, "job.toml"))
            .model,
        job.model);
  }
}

// Goal: a flavor's arguments give the width asked for. Method: torchtitan's
// rule, applied to what the note says, for widths below and above its base.
TEST(ExportTorchtitanTest, FlavorHasTheWidth) {
  for (const int64_t width : {8, 136, 448, 512, 520, 2048}) {
    JobSpec job = UnusualJob();
    job.model.ffn_hidden = width;
    const std::string text =
        MustExport(job, {.num_microbatches = 96}, TorchtitanAdapter());
    const std::string key = "multiple_of=";
    ASSERT_THAT(text, HasSubstr(key));
    const int64_t multiple =
        std::stoll(text.substr(text.find(key) + key.size()));
    const std::string factor_key = "ffn_dim_multiplier=";
    const size_t at = text.find(factor_key);
    auto inner = static_cast<int64_t>(2.0 * (4.0 * 192) / 3.0);
    if (at != std::string::npos) {
      inner =
          static_cast<int64_t>(std::stod(text.substr(at + factor_key.size())) *
                               static_cast<double>(inner));
    }
    EXPECT_EQ(multiple * ((inner + multiple - 1) / multiple), width);
  }
}

// Goal: torchtitan's chunks and ZeRO 3 come back too. Method: named parts of
// two chunks a stage, and parameters gathered for each pass.
TEST(ExportTorchtitanTest, ChunksAndZero3RoundTrip) {
  JobSpec job = UnusualJob();
  job.model = TorchtitanFlavors()[0].model;
  job.model.sequence_length = 32;
  Layout layout{.pipeline = 2,
                .data = 2,
                .interleave = 3,
                .num_microbatches = 48,
                .zero = 1};
  layout.schedule = Schedule::kInterleaved;
  const auto back = [&] {
    return MustImport(
        TorchtitanAdapter(),
        ReadTomlSettings(MustExport(job, layout, TorchtitanAdapter()), "t"));
  };
  EXPECT_EQ(back().layout.interleave, 3);
  EXPECT_EQ(back().layout.schedule, "interleaved");
  EXPECT_EQ(back().layout.zero, 1);
  layout = {.data = 4, .num_microbatches = 24, .zero = 3};
  EXPECT_EQ(back().layout.zero, 3);
}

}  // namespace
}  // namespace millrace
