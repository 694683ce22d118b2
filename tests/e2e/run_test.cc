#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "base/files.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

// Goal: one command takes a job from its file to a finished run directory.
// Method: run it, look at every file that docs/run_directory.md promises.
TEST(RunTest, LeavesAWholeRunDirectory) {
  const JobFolder folder("run");
  const std::string job = WriteTinyJob(folder, {.num_steps = 30});
  JobProcess process(folder, RunCommand(job));
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  const std::string run = folder.path + "/runs/tiny-latest/";
  for (const char* file :
       {"job.yaml", "plan.json", "profile.yaml", "programs/stage-0.txt",
        "timelines/predicted.json", "timelines/measured.json",
        "timelines/observed.jsonl", "metrics.jsonl", "time.json",
        "events.jsonl", "result.json", "state.log", "logs/coordinator.log",
        "logs/agent-0.log", "logs/worker-0001.log",
        "checkpoints/step-00000030/manifest.json", "report.html"}) {
    EXPECT_TRUE(std::filesystem::exists(run + file)) << file;
  }
  EXPECT_EQ(ReadResult(folder)["status"], "finished");
  EXPECT_EQ(ReadResult(folder)["steps"], 30);
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 30u);
  EXPECT_LT(metrics.back()["loss"], metrics.front()["loss"]);
  EXPECT_NE(process.Output().find("step time: predicted"), std::string::npos);
  EXPECT_NE(process.Output().find("report: "), std::string::npos);
  // The machine's profile learnt from the run, or it is said why not.
  EXPECT_NE(process.Output().find("\nprofile: "), std::string::npos)
      << process.Output();
}

// Goal: what a run leaves is the user's alone, whatever process wrote it, while
// the folders that were there before stay as they are. Method: the modes of all
// that a run under a generous umask left: run directory, checkpoints, cached
// corpus, cached profile.
TEST(RunTest, LeavesPrivateFiles) {
  const JobFolder folder("private");
  const std::string job = WriteTinyJob(folder, {.num_steps = 10});
  std::filesystem::create_directory(folder.path + "/runs");
  std::filesystem::permissions(folder.path + "/runs",
                               std::filesystem::perms{0755});
  const mode_t before = umask(0);
  JobProcess process(folder, RunCommand(job));
  umask(before);
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_EQ(std::filesystem::status(folder.path + "/runs").permissions(),
            std::filesystem::perms{0755});
  size_t num_files = 0;
  for (const char* part : {"/runs", "/cache", "/xdg"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder.path + part)) {
      if (entry.is_symlink()) continue;
      EXPECT_EQ(entry.status().permissions(),
                std::filesystem::perms{entry.is_directory() ? 0700u : 0600u})
          << entry.path();
      if (!entry.is_directory()) ++num_files;
    }
  }
  EXPECT_GT(num_files, 20u);
}

// Goal: mpirun with two agents of two workers trains the same job, and twice
// the same layout gives the same bits. Method: run it twice.
TEST(RunTest, TrainsUnderMpirunAndRepeatsBitForBit) {
  const JobFolder folder("mpirun");
  const std::string job = WriteTinyJob(
      folder,
      {.layout = "{pipeline: 2, data: 2, tensor: 1, micro_batch: 2, zero: 1}"});
  std::string first_hash;
  for (int run = 0; run < 2; ++run) {
    JobProcess process(folder, MpirunCommand(job, 2));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    const nlohmann::json result = ReadResult(folder);
    EXPECT_EQ(result["status"], "finished");
    const std::string hash = result["parameter_hash"];
    if (run == 0) first_hash = hash;
    EXPECT_EQ(hash, first_hash);
  }
}

// Goal: processes that shard inside groups and sum across them learn what plain
// data parallelism learns, and twice the same to the bit. Method: two agents of
// two and of four workers, every ZeRO stage, against ZeRO 0 without groups.
TEST(RunTest, DataGroupsLearnTheSame) {
  const JobFolder folder("groups");
  const auto run = [&](int32_t workers, const std::string& groups) {
    const std::string job = WriteTinyJob(
        folder,
        {.num_steps = 20,
         .checkpoint_interval = 0,
         .devices_per_agent = workers,
         .layout = "{pipeline: 1, tensor: 1, micro_batch: 1, " + groups + "}"});
    JobProcess process(folder, MpirunCommand(job, 2));
    EXPECT_EQ(process.Wait(), 0) << process.Output();
    return std::pair(ReadLines(folder, "metrics.jsonl"),
                     ReadResult(folder)["parameter_hash"]);
  };
  for (const int32_t workers : {2, 4}) {
    const auto [expected, plain_hash] = run(workers, "zero: 0");
    ASSERT_EQ(expected.size(), 20u);
    for (const int32_t zero : {0, 1, 2, 3}) {
      const std::string groups =
          "zero: " + std::to_string(zero) + ", data_groups: 2";
      SCOPED_TRACE(std::to_string(workers) + " workers, " + groups);
      const auto [metrics, hash] = run(workers, groups);
      ASSERT_EQ(metrics.size(), expected.size());
      for (size_t i = 0; i < metrics.size(); ++i) {
        const double loss = expected[i]["loss"];
        EXPECT_NEAR(metrics[i]["loss"], loss, 2e-5 * loss) << "step " << i + 1;
      }
      if (zero != 2) continue;
      EXPECT_EQ(run(workers, groups).second, hash);
    }
  }
}

// Goal: what cannot work is refused before workers start, with exit code 2 and
// a reason on standard error. Method: one job of each kind of mistake.
TEST(RunTest, RefusesBadInput) {
  const JobFolder folder("refuse");
  struct Case {
    TinyJob job;
    std::string expected;
  };
  const Case cases[] = {
      {{.extra = "trainin: {}\n"}, "did you mean"},
      {{.devices_per_agent = 3, .layout = "{zero: 2}"}, "3 devices"},
      {{.layout = "{tensor: 8}"}, "tensor"},
      {{.layout = "{data: 2, data_groups: 2}"}, "set layout.data_groups to 1"},
      {{.extra = "profile: /nowhere/profile.yaml\n"}, "/nowhere/profile.yaml"},
  };
  for (const Case& bad : cases) {
    const std::string job = WriteTinyJob(folder, bad.job);
    JobProcess process(folder, RunCommand(job));
    EXPECT_EQ(process.Wait(), 2) << bad.expected << "\n" << process.Output();
    EXPECT_NE(process.Output().find(bad.expected), std::string::npos)
        << process.Output();
    EXPECT_EQ(CountEvents(folder, "generation_started"), 0);
  }
  JobProcess absent(folder, RunCommand(folder.path + "/absent.yaml"));
  EXPECT_EQ(absent.Wait(), 2) << absent.Output();
  JobProcess unknown(folder, {MILLRACE_BINARY, "rnu"});
  EXPECT_EQ(unknown.Wait(), 2);
}

// Goal: a job that can only be planned is refused with every key that stands
// against it, and what an earlier run left stays the newest. Method: train a
// job to its end; then pin an axis, and give the model experts, in the same
// file.
TEST(RunTest, RefusesWhatIsOnlyPlannedAndLosesNothing) {
  const JobFolder folder("planned");
  const auto runs = [&] {
    std::set<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder.path + "/runs")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  const TinyJob tiny = {.num_steps = 10, .checkpoint_interval = 10};
  JobProcess first(folder, RunCommand(WriteTinyJob(folder, tiny)));
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  const std::string last = std::filesystem::canonical(
      folder.path + "/runs/tiny-latest/checkpoints/step-00000010");
  std::set<std::string> before = runs();
  before.erase("tiny-latest");  // Removed by JobProcess, made by a run.

  const std::string job = WriteTinyJob(
      folder, {.num_steps = 20, .layout = "{context: 2, interleave: 2}"});
  std::string text = *ReadFile(job);
  text.replace(text.find("  ffn_hidden"), 0,
               "  moe: {num_experts: 4, experts_per_token: 1, "
               "expert_hidden: 8}\n");
  std::ofstream(job) << text;
  JobProcess refused(folder, RunCommand(job));
  EXPECT_EQ(refused.Wait(), 2) << refused.Output();
  for (const char* said :
       {"job.yaml", "model.moe.num_experts is 4", "layout.context is 2",
        "layout.interleave is 2", "millrace plan"}) {
    EXPECT_NE(refused.Output().find(said), std::string::npos)
        << said << "\n"
        << refused.Output();
  }
  EXPECT_EQ(runs(), before);
  EXPECT_TRUE(std::filesystem::exists(last));
}

// Goal: a run continues from another run's checkpoint under another layout, to
// the last step. Method: a job of 20 steps on two ranks, then one of 40 steps
// on one rank that names the first one's checkpoint.
TEST(RunTest, ResumesUnderAnotherLayout) {
  const JobFolder folder("resume");
  TinyJob job = {.num_steps = 20, .checkpoint_interval = 20};
  JobProcess first(folder, RunCommand(WriteTinyJob(folder, job)));
  ASSERT_EQ(first.Wait(), 0) << first.Output();
  const std::string saved =
      std::filesystem::canonical(folder.path +
                                 "/runs/tiny-latest/checkpoints/step-00000020")
          .string();
  job.num_steps = 40;
  job.devices_per_agent = 1;
  const std::string path = WriteTinyJob(folder, job);
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "  interval_steps: 20\n";
  text.replace(text.find(key), key.size(), key + "  resume: " + saved + "\n");
  std::ofstream(path) << text;
  JobProcess second(folder, RunCommand(path));
  ASSERT_EQ(second.Wait(), 0) << second.Output();
  const auto metrics = ReadLines(folder, "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 20u);
  EXPECT_EQ(metrics.front()["step"], 21);
  EXPECT_EQ(metrics.back()["step"], 40);
}

}  // namespace
}  // namespace millrace
