#include "kernels/tuning/tuning.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/tuning/tuning_families.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TuningFamily Example() {
  return {
      .name = "example",
      .class_dims = {"hidden"},
      .knobs = {
          {.name = "threads", .values = {32, 64, 128, 256, 512, 1024}},
          {.name = "rows", .values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}};
}

constexpr TuningValues kStart = {128, 1};

// Goal: the search finds the best choice and tells what it cost. Method: a
// bowl with its bottom at every choice in turn.
TEST(TuneTest, FindsTheBottomOfABowl) {
  const TuningFamily family = Example();
  for (const int threads : family.knobs[0].values) {
    for (const int rows : family.knobs[1].values) {
      auto bowl = [&](const TuningValues& choice) -> absl::StatusOr<double> {
        const double x = std::log2(choice[0]) - std::log2(threads);
        const double y = static_cast<double>(choice[1] - rows);
        return 1 + 0.1 * x * x + 0.1 * y * y;
      };
      const auto result = Tune(family, kStart, bowl, 0.01);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->choice[0], threads);
      EXPECT_EQ(result->choice[1], rows);
      EXPECT_DOUBLE_EQ(result->seconds, 1);
      EXPECT_DOUBLE_EQ(result->start_seconds, *bowl({128, 1}));
      EXPECT_LT(result->num_measured, 40) << "of 72 choices";
    }
  }
}

// Goal: choices that cannot run are passed over, noise moves nothing, and other
// errors surface.
TEST(TuneTest, PassesOverWhatCannotRun) {
  const TuningFamily family = Example();
  auto walled = [](const TuningValues& choice) -> absl::StatusOr<double> {
    if (choice[0] > 256) return absl::ResourceExhaustedError("too many");
    return 1000.0 / static_cast<double>(choice[0]);
  };
  const auto result = Tune(family, kStart, walled, 0.01);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->choice[0], 256);
  EXPECT_EQ(result->choice[1], 1);

  auto noise = [](const TuningValues& choice) -> absl::StatusOr<double> {
    return 1.0 - 0.001 * static_cast<double>(choice[1] % 3);
  };
  const auto still = Tune(family, kStart, noise, 0.01);
  ASSERT_TRUE(still.ok());
  EXPECT_EQ(still->choice[0], 128);
  EXPECT_EQ(still->choice[1], 1);

  auto broken = [](const TuningValues&) -> absl::StatusOr<double> {
    return absl::InternalError("device lost");
  };
  EXPECT_EQ(Tune(family, kStart, broken, 0.01).status().code(),
            absl::StatusCode::kInternal);
  auto impossible = [](const TuningValues&) -> absl::StatusOr<double> {
    return absl::InvalidArgumentError("never");
  };
  EXPECT_THAT(
      std::string(Tune(family, kStart, impossible, 0.01).status().message()),
      HasSubstr("its start does not run"));
}

// Goal: launchers see the installed choice of their class alone, a scoped one
// before it, and the start otherwise.
TEST(TunedChoiceTest, PrefersScopeThenTableThenStart) {
  const TuningFamily family = Example();
  EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{128, 1}));
  InstallTuning(
      {.chip = "NVIDIA H200",
       .entries = {
           {.family = "example", .shape_class = {4096}, .choice = {256, 4}}}});
  EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{256, 4}));
  EXPECT_EQ(TunedChoice(family, {8192}, kStart), (TuningValues{128, 1}));
  {
    const ScopedTuningChoice outer(family, {32, 2});
    EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{32, 2}));
    {
      const ScopedTuningChoice inner(family, {64, 3});
      EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{64, 3}));
    }
    EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{32, 2}));
  }
  InstallTuning({});
  EXPECT_EQ(TunedChoice(family, {4096}, kStart), (TuningValues{128, 1}));
}

TEST(TuningTableTest, SurvivesTextAndNamesBadLines) {
  const std::vector<TuningFamily> families = {Example()};
  const TuningTable table = {.chip = "NVIDIA H200",
                             .version = "0.1.0",
                             .date = "2026-11-21",
                             .entries = {{.family = "example",
                                          .shape_class = {4096},
                                          .choice = {256, 4},
                                          .seconds = 1.25e-5,
                                          .start_seconds = 1.5e-5}}};
  const std::string text = FormatTuningTable(table, families);
  const auto parsed = ParseTuningTable(text, families);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->chip, table.chip);
  EXPECT_EQ(FormatTuningTable(*parsed, families), text);

  const std::string head = "# chip=NVIDIA H200\n";
  for (const auto& [line, expected] :
       std::vector<std::pair<std::string, std::string>>{
           {"other | hidden=1 | threads=32 rows=1 | 1 1", "no kernel family"},
           {"example | hidden=1 | threads=33 rows=1 | 1 1",
            "threads=33 is no value"},
           {"example | hidden=x | threads=32 rows=1 | 1 1",
            "should be hidden=INTEGER"},
           {"example | hidden=1 | threads=32 | 1 1", "has 1 values"},
           {"example | hidden=1 | threads=32 rows=1 | 0 1",
            "two positive times"},
           {"example", "should be FAMILY"}}) {
    const auto bad = ParseTuningTable(head + line, families);
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr(expected));
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2"));
  }
  EXPECT_THAT(std::string(ParseTuningTable("", families).status().message()),
              HasSubstr("no line '# chip="));
}

// Goal: entries come back from the words that hardware profiles keep. Method:
// all of a shipped table; then words that no family has.
TEST(TuningTableTest, EntriesComeBackFromTheirWords) {
  const auto families = KernelTuningFamilies();
  const auto table =
      ParseTuningTable(ShippedTuningTable("NVIDIA H200"), families);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_GT(table->entries.size(), 50u);
  for (const TuningEntry& entry : table->entries) {
    const auto family = std::find_if(
        families.begin(), families.end(),
        [&](const TuningFamily& f) { return f.name == entry.family; });
    ASSERT_NE(family, families.end());
    const auto again = TuningEntryOf(WordsOf(entry, *family), families);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->family, entry.family);
    EXPECT_EQ(again->shape_class, entry.shape_class);
    EXPECT_EQ(again->choice, entry.choice);
  }
  const TuningWords good = {"swiglu_forward", "cached=1", "threads=512"};
  ASSERT_TRUE(TuningEntryOf(good, families).ok());
  for (const auto& [words, expected] :
       std::vector<std::pair<TuningWords, std::string>>{
           {{"swiglu", good.shape_class, good.choice}, "no kernel family"},
           {{good.family, "cached=x", good.choice}, "should be cached=INTEGER"},
           {{good.family, good.shape_class, "threads=7"}, "is no value"}}) {
    EXPECT_THAT(std::string(TuningEntryOf(words, families).status().message()),
                HasSubstr(expected));
  }
}

// Goal: launchers find their families by number, a scope hears what it was
// asked, and the shipped tables are whole.
TEST(KernelTuningFamiliesTest, AreInTheOrderOfTheirKernels) {
  EXPECT_EQ(FamilyOf(TunedKernel::kNormForward).name, "norm_forward");
  EXPECT_EQ(FamilyOf(TunedKernel::kNormBackward).name, "norm_backward");
  EXPECT_EQ(FamilyOf(TunedKernel::kSwigluForward).name, "swiglu_forward");
  EXPECT_EQ(FamilyOf(TunedKernel::kSwigluBackward).name, "swiglu_backward");
  EXPECT_EQ(FamilyOf(TunedKernel::kRopeNormForward).name, "rope_norm_forward");
  EXPECT_EQ(FamilyOf(TunedKernel::kAttentionForward).name, "attention_forward");
  EXPECT_EQ(FamilyOf(TunedKernel::kCrossEntropyRows).name,
            "cross_entropy_rows");
  EXPECT_EQ(KernelTuningFamilies().size(), 7u);
  for (const TuningFamily& family : KernelTuningFamilies()) {
    EXPECT_LE(family.class_dims.size(), kMaxTuningDims);
    EXPECT_LE(family.knobs.size(), kMaxTuningDims);
    for (const TuningKnob& knob : family.knobs) {
      EXPECT_TRUE(std::is_sorted(knob.values.begin(), knob.values.end()));
    }
  }

  ScopedTuningChoice listening(FamilyOf(TunedKernel::kSwigluForward));
  EXPECT_FALSE(listening.asked().has_value());
  EXPECT_EQ(TunedChoice(TunedKernel::kSwigluForward, {1}, {256}),
            (TuningValues{256}));
  ASSERT_TRUE(listening.asked().has_value());
  EXPECT_EQ(listening.asked()->shape_class, (TuningValues{1}));
  EXPECT_EQ(listening.asked()->start, (TuningValues{256}));
}

TEST(KernelTuningFamiliesTest, InstallsWhatWasMeasuredOnTheChip) {
  const std::string text =
      "# chip=Some GPU\nswiglu_forward | cached=1 | threads=512 | 1 2\n";
  const TuningValues start = {256};
  auto choice = [&](int64_t cached) {
    return TunedChoice(TunedKernel::kSwigluForward, {cached}, start)[0];
  };
  EXPECT_THAT(std::string(InstallKernelTuning(text, "NVIDIA H200").message()),
              HasSubstr("was measured on 'Some GPU'"));
  EXPECT_EQ(choice(1), 256);
  ASSERT_TRUE(InstallKernelTuning(text, "Some GPU").ok());
  EXPECT_EQ(choice(1), 512);
  EXPECT_EQ(choice(0), 256);
  ASSERT_TRUE(InstallKernelTuning("", "a GPU nothing is shipped for").ok());
  EXPECT_EQ(choice(1), 256);

  const auto shipped = ParseTuningTable(ShippedTuningTable("NVIDIA H200"),
                                        KernelTuningFamilies());
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->chip, "NVIDIA H200");
  EXPECT_FALSE(shipped->date.empty());
  EXPECT_TRUE(InstallKernelTuning("", "NVIDIA H200").ok());
  InstallTuning({});
}

TEST(SizeClassTest, RoundsUpToPowersOfTwo) {
  EXPECT_EQ(SizeClass(1), 1);
  EXPECT_EQ(SizeClass(4096), 4096);
  EXPECT_EQ(SizeClass(4097), 8192);
}

}  // namespace
}  // namespace millrace
