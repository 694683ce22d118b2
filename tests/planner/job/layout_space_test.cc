#include "planner/job/layout_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/planner/planning_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const LayoutSpace& space) {
  EXPECT_TRUE(EnumerateLayouts(space).empty());
  const absl::Status status = ExplainNoLayout(space);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// Goal: every layout once, all valid, none missing. Method: count by brute
// force over all sizes.
TEST(LayoutSpaceTest, EnumeratesEveryValidLayoutOnce) {
  for (const int32_t devices : {1, 2, 3, 4, 6, 8}) {
    for (const int64_t batch : {1, 6, 8}) {
      const LayoutSpace space = SmallSpace(devices, batch);
      std::set<std::string> found;
      for (const Layout& layout : EnumerateLayouts(space)) {
        EXPECT_EQ(layout.num_ranks(), devices);
        EXPECT_TRUE(ValidateLayout(space.model, layout, batch).ok());
        EXPECT_TRUE(found.insert(LayoutToString(layout)).second);
      }
      size_t expected = 0;
      for (int32_t pipeline = 1; pipeline <= 8; ++pipeline) {
        for (int32_t data = 1; data <= 8; ++data) {
          for (int32_t tensor = 1; tensor <= 8; ++tensor) {
            for (int32_t micro = 1; micro <= 8; ++micro) {
              if (batch % micro != 0 || batch / micro < data) continue;
              Layout layout{.pipeline = pipeline,
                            .data = data,
                            .tensor = tensor,
                            .micro_batch = micro};
              layout.ShareBatch(batch);
              // Uneven only where replicas could not be even.
              if (layout.is_uneven() && batch % data == 0) continue;
              if (layout.num_ranks() == devices &&
                  ValidateLayout(space.model, layout, batch).ok()) {
                // ZeRO 0 and 1, either order of a pipeline.
                expected += (data > 1 ? 2 : 1) * (pipeline > 1 ? 2 : 1);
              }
            }
          }
        }
      }
      EXPECT_EQ(found.size(), expected) << devices << " " << batch;
    }
  }
}

// Goal: pinned keys pin, also ZeRO-1 on one replica. Method: pin each.
TEST(LayoutSpaceTest, RespectsConstraints) {
  LayoutSpace space = SmallSpace(4, 8);
  space.constraints = {
      .pipeline = 2, .micro_batch = 2, .zero = 1, .schedule = "zero_bubble"};
  const std::vector<Layout> layouts = EnumerateLayouts(space);
  ASSERT_EQ(layouts.size(), 2u);
  EXPECT_EQ(LayoutToString(layouts[0]),
            "pipeline 2 x data 2 x tensor 1, 2 micro-batches of 2, ZeRO 1, "
            "fp32, zero bubble");
  EXPECT_EQ(LayoutToString(layouts[1]),
            "pipeline 2 x data 1 x tensor 2, 4 micro-batches of 2, ZeRO 1, "
            "fp32, zero bubble");
}

// Goal: replicas that do not divide the batch share it unevenly, where they
// meet once a step; others keep to even shares. Method: five devices, then
// four.
TEST(LayoutSpaceTest, SharesUnevenlyWhatDoesNotDivide) {
  std::vector<std::string> uneven;
  for (const Layout& layout : EnumerateLayouts(SmallSpace(5, 16))) {
    if (layout.schedule == Schedule::kOneForwardOneBackward) {
      uneven.push_back(LayoutToString(layout));
    }
  }
  EXPECT_THAT(
      uneven,
      ElementsAre("pipeline 1 x data 5 x tensor 1, 2 or 1 micro-batches of 2, "
                  "ZeRO 0, fp32",
                  "pipeline 1 x data 5 x tensor 1, 4 or 3 micro-batches of 1, "
                  "ZeRO 0, fp32",
                  "pipeline 1 x data 5 x tensor 1, 2 or 1 micro-batches of 2, "
                  "ZeRO 1, fp32",
                  "pipeline 1 x data 5 x tensor 1, 4 or 3 micro-batches of 1, "
                  "ZeRO 1, fp32"));
  LayoutSpace space = SmallSpace(5, 16);
  space.constraints = {.zero = 2};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.zero is 2"));
  for (const Layout& layout : EnumerateLayouts(SmallSpace(4, 24))) {
    EXPECT_FALSE(layout.is_uneven()) << LayoutToString(layout);
  }
}

// Goal: a refusal names what contradicts, with values and keys, and the
// smallest change. Method: one contradiction at a time.
TEST(LayoutSpaceTest, ExplainsContradictions) {
  LayoutSpace space = SmallSpace(4, 8);
  space.constraints = {.pipeline = 2, .data = 2, .tensor = 2};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("no layout on 4 devices: pipeline 2 x data 2 x "
                              "tensor 2 = 8 devices (layout.pipeline, "
                              "layout.data, layout.tensor), but there are 4"),
                    HasSubstr("set layout.tensor to 1 instead of 2"),
                    HasSubstr("use 8 devices instead of 4")));
  space.constraints = {.pipeline = 3};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("pipeline 3 = 3 devices (layout.pipeline) cannot "
                              "be completed to the number of devices, 4"),
                    HasSubstr("set layout.pipeline to"),
                    HasSubstr("use 3 devices instead of 4")));
  // Sizes as large as keys may be.
  space.constraints = {
      .pipeline = 2147483647, .data = 2147483647, .tensor = 2147483647};
  EXPECT_THAT(ErrorOf(space), HasSubstr("= 9903520300447984"));
  // Hours, were every batch up to twice this one tried one by one.
  space = SmallSpace(3, 1'000'000);
  space.constraints = {.tensor = 3};
  EXPECT_THAT(ErrorOf(space), HasSubstr("set layout.tensor to 1 instead of 3"));
}

// Goal: what workers cannot execute is refused with its key, not ignored.
// Method: pin each axis that is only planned.
TEST(LayoutSpaceTest, RefusesWhatIsOnlyPlanned) {
  LayoutSpace space = SmallSpace(4, 8);
  space.constraints = {.context = 2};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.context is 2, which is only planned"),
                    HasSubstr("set layout.context to 1 instead of 2")));
  space.constraints = {.expert = 4};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.expert is 4"));
  space.constraints = {.interleave = 2};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.interleave is 2"));
  space.constraints = {.schedule = "interleaved"};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.schedule is interleaved"));
  space.constraints = {.devices = 3};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.devices is 3, but a run uses all"),
                    HasSubstr("use 3 devices instead of 4")));
  space.constraints = {
      .context = 1, .expert = 1, .interleave = 1, .devices = 4};
  EXPECT_FALSE(EnumerateLayouts(space).empty());

  // Models likewise.
  const ModelSpec llama = space.model;
  space.model.feed_forward = FeedForward::kSquaredRelu;
  EXPECT_THAT(ErrorOf(space), HasSubstr("model.feed_forward is relu2"));
  space.model = llama;
  space.model.moe.num_experts = 8;
  EXPECT_THAT(ErrorOf(space), HasSubstr("model.moe.num_experts is 8"));
  space.model = llama;
  space.model.mla.kv_rank = 8;
  EXPECT_THAT(ErrorOf(space), HasSubstr("model.mla.kv_rank is 8"));
}

TEST(LayoutSpaceTest, ExplainsBatches) {
  LayoutSpace space = SmallSpace(4, 6);
  space.constraints = {.data = 4, .zero = 2};  // Replicas share it alike.
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("nearest is"), HasSubstr("6"),
                    HasSubstr("set training.global_batch to 8 instead of 6")));
  space = SmallSpace(2, 8);
  space.constraints = {.data = 2, .micro_batch = 3};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("set layout.micro_batch to"),
                    HasSubstr("set training.global_batch to 9 instead of 8")));
}

TEST(LayoutSpaceTest, ExplainsModels) {
  LayoutSpace space = SmallSpace(4, 8);
  space.constraints = {.tensor = 4};  // Only two key-value heads.
  EXPECT_THAT(ErrorOf(space), AllOf(HasSubstr("nearest is"),
                                    HasSubstr("set layout.tensor to 2 instead "
                                              "of 4")));
  space = SmallSpace(7, 6);
  EXPECT_THAT(ErrorOf(space), HasSubstr("use 6 devices instead of 7"));
}

}  // namespace
}  // namespace millrace
