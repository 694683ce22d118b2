#include "worker/cuda/nccl/nccl_watch.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/stopped_job.h"
#include "worker/communicate/memory_rendezvous_store.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Goal: ranks that find out through a store name the one that does not answer;
// texts that are no progress are refused.
TEST(ExplainOverrunTest, CollectsTheProgressOfAll) {
  const Layout layout{.data = 2, .tensor = 2, .num_microbatches = 2};
  const StoppedJob job(layout, Rank{2}, 5);
  const auto programs = job.programs();
  const auto progress = job.progress();
  MemoryRendezvousStore store;
  std::vector<absl::Status> statuses(4);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 3}) {
    threads.emplace_back([&, rank] {
      statuses[rank] = ExplainOverrun(programs, Rank{rank}, *progress[rank],
                                      store, absl::Milliseconds(300));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[rank]));
    EXPECT_THAT(std::string(statuses[rank].message()),
                AllOf(HasSubstr("step 7: "), HasSubstr("rank 2 is missing"),
                      HasSubstr("it gave no sign of life"),
                      Not(HasSubstr("rank 3 is missing"))));
    EXPECT_EQ(statuses[rank].message(), statuses[0].message());
  }
}

TEST(RankProgressTest, SurvivesTheStore) {
  RankProgress progress{.step = 12};
  for (int lane = 0; lane < kNumLanes; ++lane) {
    progress.completed[lane] = 100 * lane + 3;
  }
  const auto read = ProgressFromString(ProgressToString(progress));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, progress);
  for (const char* const wrong : {"", "12", "12 1 2 x 4 5 6 7 8", "1 2 3"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ProgressFromString(wrong).status()))
        << wrong;
  }
}

}  // namespace
}  // namespace millrace
