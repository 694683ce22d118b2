// Opens a report in a real browser. The screenshot stays in the build folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/files.h"
#include "coordinator/report/report.h"
#include "tests/coordinator/synthetic_run.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct CommandResult {
  int exit_code;
  std::string output;  // Standard output and error.
};

CommandResult RunCommand(const std::string& command) {
  CommandResult result{-1, ""};
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> chunk;
  while (const size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) {
    result.output.append(chunk.data(), n);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// Sections mark themselves when they were drawn to their end.
void ExpectEverySectionDrawn(const std::string& document) {
  for (const char* section :
       {"figures", "loss", "speed", "device-time", "timeline", "differences",
        "plan", "events", "job"}) {
    const std::string opening = "<section id=\"" + std::string(section) + "\"";
    const size_t begin = document.find(opening);
    ASSERT_NE(begin, std::string::npos) << section;
    const size_t end = document.find('>', begin);
    EXPECT_THAT(document.substr(begin, end - begin),
                HasSubstr("data-drawn=\"true\""))
        << section;
  }
}

class ReportBrowserTest : public ::testing::Test {
 protected:
  ReportBrowserTest()
      : folder_(std::filesystem::path(MILLRACE_SCREENSHOT_FOLDER)),
        profile_(std::filesystem::path(::testing::TempDir()) /
                 ("report_browser." + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    std::filesystem::remove_all(folder_ / "run");
  }
  ~ReportBrowserTest() override { std::filesystem::remove_all(profile_); }

  void SetUp() override {
    if (RunCommand("command -v chromium").exit_code != 0) {
      GTEST_SKIP() << "there is no chromium here; scripts/dependencies test "
                      "installs it";
    }
  }

  // Opens the page without a network and returns what the browser printed.
  CommandResult Open(const std::string& page, const std::string& action) {
    return RunCommand(
        "timeout 60 chromium --headless --no-sandbox --disable-gpu "
        "--disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr "
        "--hide-scrollbars --window-size=1240,3600 --user-data-dir='" +
        profile_.string() + "' " + action + " 'file://" + page + "'");
  }

  std::filesystem::path folder_;
  std::filesystem::path profile_;
};

// Goal: every section of a whole run is drawn, without an error on the console.
// Method: dump the document after its scripts ran; sections mark themselves as
// drawn, pictures carry how much they show.
TEST_F(ReportBrowserTest, DrawsEverySection) {
  const std::string run = (folder_ / "run").string();
  WriteSyntheticRun(run);
  ASSERT_TRUE(WriteReport(run).ok());
  const std::string page = std::filesystem::absolute(ReportPath(run)).string();

  const CommandResult dump = Open(page, "--dump-dom");
  ASSERT_EQ(dump.exit_code, 0) << dump.output;
  EXPECT_THAT(dump.output, Not(HasSubstr("CONSOLE"))) << "console messages";
  ExpectEverySectionDrawn(dump.output);
  EXPECT_THAT(dump.output, HasSubstr("data-points=\"60\""));
  EXPECT_THAT(dump.output, HasSubstr("<td>1.09x slower: exposed data"));
  EXPECT_THAT(dump.output, HasSubstr("data-ranks=\"4\""));
  EXPECT_THAT(dump.output, ::testing::ContainsRegex("data-events=\"[1-9]"));
  EXPECT_THAT(dump.output, Not(HasSubstr("class=\"missing\"")));

  const std::string picture = (folder_ / "report.png").string();
  const CommandResult shot = Open(page, "--screenshot='" + picture + "'");
  EXPECT_EQ(shot.exit_code, 0) << shot.output;
  EXPECT_GT(std::filesystem::file_size(picture), 50000u);
}

// Goal: a run that left almost nothing still gives a page that says so.
TEST_F(ReportBrowserTest, DrawsWhatLittleThereIs) {
  const std::string run = (folder_ / "run").string();
  WriteSyntheticRun(run);
  for (const char* gone :
       {"plan.json", "time.json", "metrics.jsonl", "programs", "timelines",
        "job.yaml", "profile.yaml"}) {
    std::filesystem::remove_all(run + "/" + gone);
  }
  ASSERT_TRUE(WriteReport(run).ok());
  const CommandResult dump =
      Open(std::filesystem::absolute(ReportPath(run)).string(), "--dump-dom");
  ASSERT_EQ(dump.exit_code, 0) << dump.output;
  EXPECT_THAT(dump.output, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(dump.output, HasSubstr("Nothing to show from metrics.jsonl"));
  ExpectEverySectionDrawn(dump.output);
}

// Goal: the page of a plan draws its step, plan and job, without an error on
// the console, and nothing of a run. Method: as above.
TEST_F(ReportBrowserTest, DrawsAPlan) {
  const SyntheticPlan made = MakeSyntheticPlan();
  const absl::StatusOr<std::string> text = PlanPage(
      made.job, made.profile, made.plan, made.timeline, made.program_texts);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::string page =
      std::filesystem::absolute(folder_ / "plan.html").string();
  ASSERT_TRUE(WriteFileAtomically(page, *text).ok());
  const CommandResult dump = Open(page, "--dump-dom");
  ASSERT_EQ(dump.exit_code, 0) << dump.output;
  EXPECT_THAT(dump.output, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(dump.output, ::testing::ContainsRegex("data-events=\"[1-9]"));
  EXPECT_THAT(dump.output, HasSubstr("Planned</span>."));
  EXPECT_THAT(dump.output, Not(HasSubstr("<section id=\"loss\"")));
  EXPECT_THAT(dump.output, Not(HasSubstr("href=\"#loss\"")));
  EXPECT_THAT(dump.output, Not(HasSubstr("class=\"missing\"")));
}

}  // namespace
}  // namespace millrace
