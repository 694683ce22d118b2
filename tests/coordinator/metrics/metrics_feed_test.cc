#include "coordinator/metrics/metrics_feed.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "coordinator/metrics/mlflow_run.h"
#include "coordinator/metrics/prometheus_text.h"

namespace millrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// One request to a port of this machine; the whole answer.
std::string Ask(int32_t port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  ssize_t count = 0;
  while ((count = read(fd, bytes, sizeof(bytes))) > 0) {
    answer.append(bytes, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

// A port that nothing listens on.
int32_t FreeMetricsPort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class MetricsFeedTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/millrace-feed-" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/run-1");
    options_.run_directory = folder_ + "/run-1";
    options_.started_unix_s = 1000;
    options_.job.name = "small";
    options_.job.training.num_steps = 10;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static StepRecord Record(int64_t step) {
    return {.generation = 1,
            .step = step,
            .loss = 2.0 / static_cast<double>(step),
            .gradient_norm = 0.25,
            .learning_rate = 1e-3,
            .tokens = 100,
            .step_time_s = 0.5,
            .predicted_step_time_s = 0.4};
  }
  std::string Text(const std::string& path) const {
    return ReadFile(folder_ + "/" + path).value_or("no file");
  }
  // Where the one run of the one experiment lies.
  std::string MlflowFolder() const {
    for (const auto& experiment :
         std::filesystem::directory_iterator(folder_ + "/mlruns")) {
      for (const auto& run : std::filesystem::directory_iterator(experiment)) {
        if (run.is_directory()) return run.path().string();
      }
    }
    return "";
  }

  std::string folder_;
  MetricsOptions options_;
};

// Goal: Prometheus sees the newest values under their names. Method: two steps,
// one with a validation, an event and a rank's time; the text word for word
// where it matters.
TEST_F(MetricsFeedTest, ServesTheNewestState) {
  options_.job.metrics.port = FreeMetricsPort();
  MetricsFeed feed(options_);
  ASSERT_GT(feed.port(), 0) << feed.TakeWarnings().size();
  StepRecord first = Record(1);
  first.validation_loss = 4.5;
  feed.Step(first);
  feed.Step(Record(2));
  feed.Event("worker_died");
  feed.Event("worker_died");
  feed.Ranks(Rank{1}, {.stage = 1, .steps = {.compute_s = 3.5}});

  const std::string answer =
      Ask(feed.port(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("version=0.0.4"));
  for (const char* line :
       {"# HELP millrace_loss Mean loss of the step's global batch in nats per "
        "token, or per pair.\n# TYPE millrace_loss "
        "gauge\nmillrace_loss{run=\"run-1\"} 1\n",
        "\nmillrace_step{run=\"run-1\"} 2\n",
        "\nmillrace_planned_steps{run=\"run-1\"} 10\n",
        "\nmillrace_running{run=\"run-1\"} 1\n",
        "\nmillrace_step_seconds{run=\"run-1\"} 0.5\n",
        "\nmillrace_validation_loss{run=\"run-1\"} 4.5\n",
        "\nmillrace_trained_tokens{run=\"run-1\"} 200\n",
        "\nmillrace_events_total{run=\"run-1\",event=\"worker_died\"} 2\n",
        "\nmillrace_rank_seconds_total{run=\"run-1\",rank=\"1\",stage=\"1\","
        "part=\"compute\"} 3.5\n"}) {
    EXPECT_THAT(answer, HasSubstr(line));
  }
}

// Goal: whatever else is asked gets a short no, and a client that says nothing
// is in nobody's way. Method: other paths and methods, a request that is none,
// and a silent connection open meanwhile.
TEST_F(MetricsFeedTest, AnswersOnlyWhatItServes) {
  options_.job.metrics.port = FreeMetricsPort();
  MetricsFeed feed(options_);
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(feed.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(silent, reinterpret_cast<const sockaddr*>(&address),
                    sizeof(address)),
            0);
  EXPECT_THAT(Ask(feed.port(), "GET /job HTTP/1.1\r\nHost: a\r\n\r\n"),
              HasSubstr("404 Not Found"));
  EXPECT_THAT(Ask(feed.port(), "DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
              HasSubstr("405 Method Not Allowed"));
  EXPECT_EQ(Ask(feed.port(), "nothing that is HTTP\r\n\r\n"), "");
  const std::string head =
      Ask(feed.port(), "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("200 OK"));
  EXPECT_THAT(head, Not(HasSubstr("millrace_")));
  close(silent);
}

// Goal: a port that is taken is one warning, not the end of a run. Method: two
// feeds at one port.
TEST_F(MetricsFeedTest, WarnsOfATakenPort) {
  options_.job.metrics.port = FreeMetricsPort();
  MetricsFeed first(options_);
  MetricsFeed second(options_);
  EXPECT_THAT(first.TakeWarnings(), IsEmpty());
  const std::vector<std::string> warnings = second.TakeWarnings();
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr(absl::StrCat(
                               "port ", options_.job.metrics.port,
                               ": Address already in use; training goes on "
                               "without /metrics")));
  second.Step(Record(1));
}

// Goal: the textfile is whole, readable by the exporter's user, and says at the
// end that nothing runs. Method: look at it after the feed, under the umask of
// a run.
TEST_F(MetricsFeedTest, ReplacesTheTextfile) {
  options_.job.metrics.textfile = folder_ + "/millrace.prom";
  {
    const PrivateFiles private_files;
    MetricsFeed feed(options_);
    feed.Step(Record(7));
    feed.End("finished");
  }
  EXPECT_THAT(Text("millrace.prom"),
              HasSubstr("millrace_step{run=\"run-1\"} 7"));
  EXPECT_THAT(Text("millrace.prom"),
              HasSubstr("millrace_running{run=\"run-1\"} 0"));
  struct stat found {};
  ASSERT_EQ(stat((folder_ + "/millrace.prom").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0644u);
}

// Goal: the folder is what MLflow's file store reads, and a restarted
// coordinator goes on in the same run. Method: two feeds of one run, then its
// files line by line; another run joins the experiment.
TEST_F(MetricsFeedTest, AddsARunToMlflowsFolder) {
  options_.job.metrics.mlflow = folder_ + "/mlruns";
  {
    MetricsFeed feed(options_);
    feed.Step(Record(1));
  }
  {
    MetricsFeed feed(options_);
    feed.Step(Record(2));
    feed.End("finished");
  }
  const std::string run = MlflowFolder();
  const std::string loss = ReadFile(run + "/metrics/train/loss").value_or("");
  const std::vector<std::string> lines = absl::StrSplit(loss, '\n');
  ASSERT_THAT(lines, SizeIs(3));  // The last is empty.
  EXPECT_THAT(lines[0], EndsWith(" 2 1"));
  EXPECT_THAT(lines[1], EndsWith(" 1 2"));
  EXPECT_EQ(ReadFile(run + "/params/training.steps").value_or(""), "10");
  EXPECT_EQ(ReadFile(run + "/tags/mlflow.runName").value_or(""), "run-1");
  const std::string meta = ReadFile(run + "/meta.yaml").value_or("");
  EXPECT_THAT(meta, HasSubstr("\nstatus: 3\n"));
  EXPECT_THAT(meta, HasSubstr("\nstart_time: 1000000\n"));
  EXPECT_THAT(meta, HasSubstr("\nrun_name: \"run-1\"\n"));
  const std::string experiment = ReadFile(run + "/../meta.yaml").value_or("");
  EXPECT_THAT(experiment, HasSubstr("\nname: \"small\"\n"));

  options_.run_directory = folder_ + "/run-2";
  auto other = MlflowRun::Open({.folder = options_.job.metrics.mlflow,
                                .job = options_.job,
                                .run_directory = options_.run_directory});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->folder(), run);
  EXPECT_TRUE(
      std::filesystem::equivalent(other->folder() + "/..", run + "/.."));
}

// Goal: a full disk is one warning for each target, leaves no torn record, and
// what fits again is written. Method: a limit on the size of files stands for
// the full disk; it is lifted after some steps.
TEST_F(MetricsFeedTest, OutlivesAFullDisk) {
  options_.job.metrics.mlflow = folder_ + "/mlruns";
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  auto run = MlflowRun::Open({.folder = options_.job.metrics.mlflow,
                              .job = options_.job,
                              .run_directory = options_.run_directory,
                              .started_unix_s = 1000});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE(run->Add(Record(1), 1000).ok());
  const std::string path = run->folder() + "/metrics/train/loss";
  const std::string whole = ReadFile(path).value_or("");
  rlimit full = before;
  full.rlim_cur = whole.size() + 3;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status status = run->Add(Record(2), 1001);
  const std::string after = ReadFile(path).value_or("");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("File too large"));
  EXPECT_EQ(after, whole);
  ASSERT_TRUE(run->Add(Record(3), 1002).ok());
  EXPECT_EQ(ReadFile(path).value_or(""),
            whole + "1002000 0.66666666666666663 3\n");
  std::signal(SIGXFSZ, previous);
}

// Goal: a place that cannot be written warns once, and the run does not notice.
// Method: a folder's name where the textfile should be, and many steps.
TEST_F(MetricsFeedTest, WarnsOnceOfAPlaceThatCannotBeWritten) {
  options_.job.metrics.textfile = folder_ + "/taken.prom";
  std::filesystem::create_directories(folder_ + "/taken.prom/inside");
  std::vector<std::string> warnings;
  {
    MetricsFeed feed(options_);
    for (int64_t step = 1; step <= 9; ++step) feed.Step(Record(step));
    // The first write is at the start; the thread needs a moment for it.
    for (int tries = 0; tries < 500 && warnings.empty(); ++tries) {
      usleep(10'000);
      warnings = feed.TakeWarnings();
    }
    EXPECT_THAT(feed.TakeWarnings(), IsEmpty());
  }
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr("metrics: textfile: "));
  EXPECT_THAT(warnings[0], HasSubstr("taken.prom"));
}

// Goal: numbers that JSON cannot say are said in Prometheus' way, and a name
// with quotes breaks no label. Method: a snapshot of both.
TEST(PrometheusTextTest, SaysNaNAndQuotesLabels) {
  RunSnapshot snapshot = {.run = "a\"b\\c"};
  snapshot.step =
      StepRecord{.step = 1,
                 .loss = std::numeric_limits<double>::quiet_NaN(),
                 .gradient_norm = std::numeric_limits<double>::infinity()};
  const std::string text = PrometheusText(snapshot);
  EXPECT_THAT(text, HasSubstr("millrace_loss{run=\"a\\\"b\\\\c\"} NaN\n"));
  EXPECT_THAT(text,
              HasSubstr("millrace_gradient_norm{run=\"a\\\"b\\\\c\"} +Inf"));
}

}  // namespace
}  // namespace millrace
