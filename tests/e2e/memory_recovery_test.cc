// Jobs that write no checkpoints while they train and lose processes: their
// state comes back from memory.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

struct MemoryCase {
  const char* name;
  const char* layout;
  int32_t num_ranks;
  int64_t interval;      // fault.replica_interval_steps; -1: auto.
  int32_t partners = 1;  // fault.replica_partners.
};

const MemoryCase kMemoryCases[] = {
    // Data-parallel ranks have each other's state.
    {"zero0", "{pipeline: 1, tensor: 1, data: 2, zero: 0}", 2, -1},
    {"zero1", "{pipeline: 1, tensor: 1, data: 2, zero: 1}", 2, 1},
    {"zero3", "{pipeline: 1, tensor: 1, data: 2, zero: 3}", 2, 4},
    {"pipeline", "{pipeline: 2, tensor: 1, data: 1, zero: 0}", 2, 3},
    {"tensor", "{pipeline: 1, tensor: 2, data: 1, zero: 0}", 2, 2},
    {"all", "{pipeline: 2, tensor: 1, data: 2, zero: 1}", 4, 5},
    {"two_partners", "{pipeline: 1, tensor: 1, data: 4, zero: 1}", 4, 2, 2},
    {"alone", "{pipeline: 1, tensor: 1, data: 1, zero: 0}", 1, 2}};

class MemoryRecoveryTest : public testing::TestWithParam<MemoryCase> {};

std::string WriteMemoryJob(const JobFolder& folder, const MemoryCase& which,
                           int64_t num_steps) {
  return WriteTinyJob(
      folder,
      {.num_steps = num_steps,
       .checkpoint_interval = 0,
       .devices_per_agent = which.num_ranks,
       .layout = which.layout,
       .extra = which.interval < 0
                    ? "profile_output: none\n"
                    : absl::StrCat("profile_output: none\n"
                                   "fault: {replica_interval_steps: ",
                                   which.interval, ", replica_partners: ",
                                   which.partners, "}\n")});
}

int64_t NewestStep(const JobFolder& folder) {
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  return metrics.empty() ? 0 : metrics.back().value("step", int64_t{0});
}

bool AwaitTrainingFromMemory(const JobProcess& process, const JobFolder& folder,
                             int64_t count) {
  return process.WaitUntil(
      [&] { return CountEvents(folder, "training") >= count; });
}

// "from memory (...), 1 step trained again, in 3 ms" has 1.
int64_t TrainedAgain(const std::string& detail) {
  const size_t end = detail.find(" step", detail.find("), "));
  int64_t count = -1;
  const size_t begin = detail.rfind(' ', end - 1) + 1;
  EXPECT_TRUE(absl::SimpleAtoi(detail.substr(begin, end - begin), &count))
      << detail;
  return count;
}

// The interval that the plan names: "copies in memory: every 7 steps, ...".
int64_t IntervalIn(const std::string& output) {
  const std::string words = "copies in memory: every ";
  const size_t begin = output.find(words);
  EXPECT_NE(begin, std::string::npos) << output;
  const size_t end = output.find(" step", begin);
  int64_t interval = 0;
  EXPECT_TRUE(absl::SimpleAtoi(
      output.substr(begin + words.size(), end - begin - words.size()),
      &interval));
  return interval;
}

// Goal: with checkpoints off, kill -9 of a worker costs at most one step, or
// as many as lie between copies, and the final parameters are those of the
// undisturbed run, bit for bit; also where a second worker is killed while the
// first is being replaced. Method: three kills at random steps, the second one
// with another right behind it; the seed is printed.
TEST_P(MemoryRecoveryTest, KilledWorkersCostAStep) {
  const MemoryCase& which = GetParam();
  const JobFolder folder(absl::StrCat("memory-", which.name));
  const std::string job = WriteMemoryJob(folder, which, 400);
  std::string expected;
  {
    JobProcess undisturbed(folder, RunCommand(job));
    ASSERT_EQ(undisturbed.Wait(), 0) << undisturbed.Output();
    expected = ReadResult(folder).value("parameter_hash", "");
    ASSERT_FALSE(expected.empty());
  }
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  JobProcess process(folder, RunCommand(job));
  std::vector<double> seconds;
  for (int kill_idx = 0; kill_idx < 3; ++kill_idx) {
    const int64_t num_training = CountEvents(folder, "training");
    ASSERT_TRUE(AwaitTrainingFromMemory(process, folder,
                                        std::max<int64_t>(1, num_training)))
        << process.Output();
    const int64_t target = NewestStep(folder) + 20 + random() % 40;
    ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(folder) >= target; }))
        << process.Output();
    std::vector<pid_t> workers = process.Find("worker");
    ASSERT_EQ(workers.size(), static_cast<size_t>(which.num_ranks));
    const int64_t before = CountEvents(folder, "training");
    const int64_t deaths = CountEvents(folder, "worker_died");
    const double began_s = MonotonicSeconds();
    const size_t first = random() % workers.size();
    ASSERT_EQ(kill(workers[first], SIGKILL), 0);
    if (kill_idx == 1 && workers.size() > 1) {
      ASSERT_TRUE(process.WaitUntil(
          [&] { return CountEvents(folder, "worker_died") > deaths; }));
      kill(workers[(first + 1) % workers.size()], SIGKILL);
    }
    ASSERT_TRUE(AwaitTrainingFromMemory(process, folder, before + 1))
        << process.Output();
    seconds.push_back(MonotonicSeconds() - began_s);
  }
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(ReadResult(folder)["parameter_hash"], expected);
  // A copy that is under way when its rank is killed does not count, and it may
  // be until the next one is due.
  const int64_t interval = IntervalIn(process.Output());
  if (which.interval > 0) {
    EXPECT_EQ(interval, which.interval);
  }
  int64_t num_live = 0;
  std::vector<int64_t> lost;
  for (const nlohmann::json& event : ReadLines(folder, "events.jsonl")) {
    if (event["event"] != "restored") continue;
    const std::string detail = event["detail"];
    EXPECT_EQ(detail.rfind("from memory (", 0), 0u) << detail;
    lost.push_back(TrainedAgain(detail));
    const bool is_live = detail.find("own") == std::string::npos &&
                         detail.find("partner") == std::string::npos;
    num_live += is_live;
    EXPECT_LE(lost.back(), is_live ? 1 : 2 * interval - 1) << detail;
  }
  EXPECT_GE(lost.size(), 3u);
  if (which.interval < 0) {
    EXPECT_GE(num_live, 2);  // All but where both ranks were killed.
  }
  EXPECT_EQ(CountEvents(folder, "checkpoint_committed"), 1);  // At the end.
  std::sort(seconds.begin(), seconds.end());
  std::cout << which.name << ": kill to training again: median " << seconds[1]
            << " s, longest " << seconds.back() << " s; steps trained again at "
            << "most " << *std::max_element(lost.begin(), lost.end())
            << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryRecoveryTest,
                         testing::ValuesIn(kMemoryCases), [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace millrace
