#include "planner/simulate/pass_timeline.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

PassTimeline TwoClasses() {
  const PassEvent gather = {.kind = PassEventKind::kParameterGather,
                            .lane = Lane::kDataComm,
                            .chunk_idx = 1,
                            .bucket_idx = 0,
                            .start_s = 0,
                            .end_s = 0.5};
  const PassEvent forward = {.kind = PassEventKind::kForward,
                             .lane = Lane::kCompute,
                             .chunk_idx = 1,
                             .microbatch_idx = 3,
                             .start_s = 0.5,
                             .end_s = 2};
  const PassEvent optimizer = {.kind = PassEventKind::kOptimizer,
                               .lane = Lane::kCompute,
                               .start_s = 2,
                               .end_s = 3};
  return {.step_time_s = 3,
          .classes = {{0, 0, 4, {gather, optimizer, forward}},
                      {1, 0, 4, {forward}}}};
}

// Goal: the Timeline has a rank a class and every event once, by start, and the
// text has what the report page reads of a Program, under the same numbers.
TEST(PassTimelineTest, BecomesATimelineOfPrograms) {
  const PassTimeline passes = TwoClasses();
  const Timeline timeline = ToTimeline(passes);
  EXPECT_EQ(timeline.step_time_s, 3);
  ASSERT_EQ(timeline.ranks.size(), 2u);
  EXPECT_EQ(timeline.ranks[1].rank, Rank{1});
  EXPECT_EQ(timeline.ranks[1].stage, 1);
  ASSERT_EQ(timeline.ranks[0].events.size(), 3u);
  EXPECT_EQ(timeline.ranks[0].events[1].instruction, 2);
  EXPECT_EQ(timeline.ranks[0].events[1].start_s, 0.5);
  EXPECT_EQ(timeline.ranks[0].events[2].instruction, 1);

  const std::string text = PassProgramText(passes, 0);
  EXPECT_THAT(text, StartsWith("0 data_comm parameter_gather - chunk.1 "
                               "parameter_gather of chunk 1, bucket 0\n"));
  EXPECT_THAT(text, HasSubstr("\n2 compute forward 3 chunk.1 forward of"));
  EXPECT_EQ(PassProgramText(passes, 2), "");
}

}  // namespace
}  // namespace millrace
