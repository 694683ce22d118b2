// Hostile files are refused in one line, and nothing else happens. Each test
// hands the real binary something that once ended it by a signal, or held it
// for good.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int exit_code;
  std::string output;
};
Ended RunToEnd(const JobFolder& folder, std::vector<std::string> command) {
  JobProcess process(folder, command);
  const int exit_code = process.Wait();
  return {exit_code, process.Output()};
}
Ended Millrace(const JobFolder& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), MILLRACE_BINARY);
  return RunToEnd(folder, std::move(arguments));
}

std::string Repeated(const char* text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

void Write(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

// Goal: a job that is no regular file is refused at once by every command that
// takes one. Method: an endless device and a pipe that nobody writes to.
TEST(HostileInputTest, JobsAreRegularFiles) {
  const JobFolder folder("hostile");
  const std::string pipe = folder.path + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* command : {"plan", "run", "profile", "compare"}) {
    for (const std::string& job : {std::string("/dev/zero"), pipe}) {
      const Ended ended = Millrace(folder, {command, job});
      EXPECT_EQ(ended.exit_code, 2) << command << " " << ended.output;
      EXPECT_THAT(ended.output, HasSubstr("a regular file was expected"))
          << command;
    }
  }
}

// Goal: depth is refused by file and line, within the test's time. Method: runs
// that nest 60,000 deep, a run directory's files that nest 100,000 deep.
TEST(HostileInputTest, DeepDocumentsAreRefused) {
  const JobFolder folder("hostile");
  const std::string runs = folder.path + "/runs.json";
  Write(runs, absl::StrCat("{\"rows\": [\n", Repeated("{\"a\":", 60'000)));
  Ended ended = Millrace(folder, {"evaluate", runs});
  EXPECT_EQ(ended.exit_code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(runs + ":2: nested deeper than"));

  const std::string run = folder.path + "/run";
  Write(run + "/plan.json", Repeated("[", 100'000));
  Write(run + "/result.json",
        absl::StrCat("{\"status\": ", Repeated("[", 100'000)));
  Write(run + "/programs/stage-0.txt", "not a program");
  ended = Millrace(folder, {"report", run, "--json"});
  EXPECT_EQ(ended.exit_code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("is not a run directory"));
}

// Goal: names that are not UTF-8 are printed where only shown, and refused
// where they would have to be kept. Method: a folder of a damaged checkpoint; a
// current folder for a run.
TEST(HostileInputTest, NamesThatAreNotUtf8) {
  const JobFolder folder("hostile");
  const std::string odd = folder.path + "/odd-\xff";
  Write(odd + "/step-00000001/manifest.json", "{}");
  const Ended listed = Millrace(folder, {"checkpoint", "list", odd, "--json"});
  EXPECT_EQ(listed.exit_code, 0) << listed.output;
  EXPECT_THAT(listed.output, HasSubstr("odd-\uFFFD/step-00000001"));

  const std::string job = WriteTinyJob(folder, {});
  std::string text = ReadFile(job).value();
  const std::string output = absl::StrCat(folder.path, "/runs}");
  text.replace(text.find(output), output.size(), "runs}");
  Write(job, text);
  const Ended ran =
      RunToEnd(folder, {"env", "-C", odd, MILLRACE_BINARY, "run", job});
  EXPECT_EQ(ran.exit_code, 2) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("the path is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(odd + "/runs"));
}

// Goal: the commands that agents give are checked like everybody's. Method:
// counts that make no sense.
TEST(HostileInputTest, HiddenCommandsCheckTheirCounts) {
  const JobFolder folder("hostile");
  const std::vector<std::string> coordinator = {
      "coordinator", "--run-directory", folder.path, "--job-file",
      "job.yaml",    "--listen-fd",     "0",         "--agents"};
  for (const char* agents : {"0", "-1", "99999999999"}) {
    std::vector<std::string> command = coordinator;
    command.push_back(agents);
    const Ended ended = Millrace(folder, command);
    EXPECT_EQ(ended.exit_code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("--agents"));
  }
}

// Goal: whatever lies in a job's checkpoint folder, the job goes on from the
// newest whole checkpoint and says what it passed over. Method: train, put four
// kinds of bait beside the checkpoints, train further.
TEST(HostileInputTest, JobsPassBaitOver) {
  const JobFolder folder("hostile");
  const std::string checkpoints = folder.path + "/checkpoints";
  const std::string in_folder =
      absl::StrCat("  directory: ", checkpoints, "\n  resume: auto\n");
  const auto train = [&](int64_t num_steps) {
    const std::string job = WriteTinyJob(folder, {.num_steps = num_steps});
    std::string text = ReadFile(job).value();
    const std::string section = "checkpoint:\n";
    text.insert(text.find(section) + section.size(), in_folder);
    Write(job, text);
    return RunToEnd(folder, RunCommand(job));
  };
  const Ended first = train(10);
  ASSERT_EQ(first.exit_code, 0) << first.output;

  std::filesystem::create_directory(checkpoints + "/step-00000091");
  ASSERT_EQ(
      mkfifo((checkpoints + "/step-00000091/manifest.json").c_str(), 0600), 0);
  Write(checkpoints + "/step-00000092/manifest.json", "");
  std::filesystem::resize_file(checkpoints + "/step-00000092/manifest.json",
                               int64_t{8} << 40);
  Write(checkpoints + "/step-00000093/manifest.json", Repeated("[", 100'000));
  std::filesystem::create_directories(checkpoints +
                                      "/step-00000094/manifest.json");
  const Ended second = train(20);
  EXPECT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(CountEvents(folder, "checkpoint_skipped"), 4) << second.output;
  EXPECT_EQ(ReadLines(folder, "metrics.jsonl").size(), 10u) << second.output;
  EXPECT_EQ(ReadResult(folder)["steps"], 20);
}

}  // namespace
}  // namespace millrace
