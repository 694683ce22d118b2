#include "planner/search/large_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner/job/job_file.h"
#include "planner/lower/program_size.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kDeviceMemory = int64_t{141} << 30;

LayoutSpace SpaceOf(const char* job_file, int64_t global_batch,
                    int32_t num_devices) {
  absl::StatusOr<JobSpec> job = LoadJob(job_file);
  EXPECT_TRUE(job.ok()) << job.status();
  job->training.global_batch = global_batch;
  return LayoutSpaceOf(*job, num_devices);
}

// Goal: usual batches keep all their layouts. Method: the batch of a job that
// is shipped, on one to eight devices; one eight times as large loses some.
TEST(LargeBatchTest, LeavesUsualBatchesAlone) {
  for (const int32_t num_devices : {1, 4, 8}) {
    for (const int64_t batch : {128, 1024}) {
      const LayoutSpace space =
          SpaceOf("configs/llama3-8b.yaml", batch, num_devices);
      const std::vector<Layout> all = EnumerateLayouts(space);
      std::vector<Layout> left = all;
      ASSERT_TRUE(DropHopelessLayouts(space, kDeviceMemory, &left).ok());
      EXPECT_EQ(left == all, batch == 128) << num_devices;
      EXPECT_FALSE(left.empty());
    }
  }
}

// Goal: a batch of millions is refused before anything is lowered, with the
// key, the limit and the reason. Method: no layout is left of such batches; the
// batch that the message names is not refused.
TEST(LargeBatchTest, RefusesMillions) {
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"configs/llama3-1b.yaml", 100'000'000},
      {"configs/llama3-8b.yaml", 4'000'000},
      {"configs/llama3-8b.yaml", 100'000'000},
      {"configs/llama3-70b-10-layers.yaml", 100'000'000}};
  for (const auto& [job_file, batch] : cases) {
    LayoutSpace space = SpaceOf(job_file, batch, 4);
    std::vector<Layout> layouts = EnumerateLayouts(space);
    EXPECT_GT(layouts.size(), 100u);
    const absl::Status status =
        DropHopelessLayouts(space, kDeviceMemory, &layouts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << job_file;
    EXPECT_TRUE(layouts.empty());
    const std::string message(status.message());
    const std::string change = "set training.global_batch to ";
    ASSERT_THAT(
        message,
        AllOf(HasSubstr("training.global_batch is " + std::to_string(batch)),
              HasSubstr("141 GiB"), HasSubstr("2000000 instructions"),
              HasSubstr(change)));
    space.global_batch =
        std::stoll(message.substr(message.find(change) + change.size()));
    layouts = EnumerateLayouts(space);
    EXPECT_TRUE(DropHopelessLayouts(space, kDeviceMemory, &layouts).ok())
        << message;
  }
}

// Goal: a batch below the limit keeps the few layouts that may be executed.
// Method: what is left of a batch of half a million passes both bounds.
TEST(LargeBatchTest, KeepsWhatMayBeExecuted) {
  const LayoutSpace space = SpaceOf("configs/llama3-8b.yaml", 500'000, 4);
  std::vector<Layout> layouts = EnumerateLayouts(space);
  const size_t num_all = layouts.size();
  ASSERT_TRUE(DropHopelessLayouts(space, kDeviceMemory, &layouts).ok());
  EXPECT_LT(layouts.size(), num_all / 4);
  EXPECT_FALSE(layouts.empty());
  for (const Layout& layout : layouts) {
    EXPECT_LE(layout.num_microbatches,
              MicrobatchBoundsOf(space.model, layout).too_many);
    EXPECT_LE(layout.micro_batch, 512);
  }
}

}  // namespace
}  // namespace millrace
