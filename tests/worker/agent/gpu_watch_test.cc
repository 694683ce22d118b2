#include "worker/agent/gpu_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/worker/backend/fake_gpus.h"

namespace millrace {
namespace {

constexpr char kWellGpus[] =
    "0000:1b:00.0 clock_mhz 1980\n0000:1b:00.0 uncorrected_errors 1\n"
    "0000:1c:00.0 clock_mhz 1980\n0000:1c:00.0 uncorrected_errors 1\n"
    "0000:1c:00.0 remap_pending 0\n0000:1c:00.0 remap_failed 0\n";
constexpr absl::Duration kTimeToRead = absl::Seconds(20);

// Two GPUs and a log that the test writes.
class GpuWatchTest : public ::testing::Test {
 protected:
  GpuWatchTest() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
    log_fd_ = fds[1];
    log_end_ = fds[0];
    gpus_.Set(kWellGpus);
    Watch();
  }
  void Watch(absl::Duration driver_limit = GpuWatch::kDriverLimit) {
    watch_ = std::make_unique<GpuWatch>(
        std::vector<std::string>{"0000:1b:00.0", "0000:1c:00.0"},
        FakeGpus::Library(),
        std::make_unique<KernelLog>(fcntl(log_end_, F_DUPFD_CLOEXEC, 0)),
        driver_limit);
  }
  ~GpuWatchTest() override {
    close(log_fd_);
    close(log_end_);
  }

  void Report(const std::string& gpu, int xid) {
    const std::string record = "4,1,1,-;NVRM: Xid (PCI:" + gpu +
                               "): " + std::to_string(xid) + ", pid=1\n";
    EXPECT_EQ(write(log_fd_, record.data(), record.size()),
              static_cast<ssize_t>(record.size()));
  }

  // Ends a process on a GPU, and returns what is said at once.
  std::string End(int32_t gpu) { return watch_->NoteDeath(gpu, {10 + gpu, 1}); }

  // Waits for `count` findings about deaths, `limit` at most. Returns their
  // texts by worker.
  std::map<int32_t, std::string> Findings(size_t count,
                                          absl::Duration limit = kTimeToRead) {
    std::map<int32_t, std::string> texts;
    const absl::Time deadline = MonotonicNow() + limit;
    while (texts.size() < count && MonotonicNow() < deadline) {
      for (const GpuWatch::Finding& finding : watch_->TakeFindings()) {
        EXPECT_TRUE(
            texts.emplace(finding.process.worker_idx, finding.text).second);
        EXPECT_EQ(finding.process.incarnation, 1);
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return texts;
  }

  FakeGpus gpus_;
  int log_fd_ = -1;
  int log_end_ = -1;
  std::unique_ptr<GpuWatch> watch_;
};

TEST_F(GpuWatchTest, SaysNothingOfGpusThatAreWell) {
  Report("0000:1b:00", 79);  // Before the start.
  watch_->NoteStart(0);
  Report("0000:1c:00", 79);  // Another GPU.
  EXPECT_EQ(End(0), "");
  EXPECT_EQ(watch_->NoteDeath(7, {7, 1}), "");
  EXPECT_TRUE(Findings(1, absl::Milliseconds(200)).empty());
}

// Goal: XIDs that the log has are told at once, later ones and what the driver
// counts when it has answered, each once.
TEST_F(GpuWatchTest, TellsXidsAndCountersSinceTheStart) {
  watch_->NoteStart(0);
  watch_->NoteStart(1);
  Report("0000:1b:00", 79);
  Report("0000:1c:00", 48);
  Report("0000:1c:00", 48);
  // Readings are made in order, so those of the starts are there.
  EXPECT_EQ(watch_->NoteDeath(0, {5, 1}),
            "its GPU reported XID 79 (it fell off the bus)");
  EXPECT_TRUE(Findings(1, absl::Milliseconds(200)).empty());
  gpus_.Set(
      "0000:1c:00.0 clock_mhz 1980\n0000:1c:00.0 uncorrected_errors 3\n"
      "0000:1c:00.0 remap_pending 1\n0000:1c:00.0 remap_failed 0\n");
  EXPECT_EQ(End(1), "its GPU reported XID 48 (an uncorrectable memory error)");
  Report("0000:1c:00", 63);
  const std::map<int32_t, std::string> findings = Findings(1);
  EXPECT_EQ(findings.at(11),
            "its GPU reported XID 63 (a row of memory is to be remapped, or a "
            "page retired); its GPU counts 2 new uncorrected memory errors; a "
            "row of its GPU's memory waits to be remapped at a reset");
  // The next process of the worker has its own start.
  watch_->NoteStart(1);
  EXPECT_EQ(End(1), "");
  // The other GPU is not there any more.
  watch_->NoteStart(1);
  EXPECT_EQ(End(0), "its GPU reported XID 79 (it fell off the bus)");
  EXPECT_TRUE(Findings(1, absl::Milliseconds(200)).empty());
}

TEST_F(GpuWatchTest, TellsOfAGpuThatHasGone) {
  watch_->NoteStart(0);
  EXPECT_EQ(End(0), "");
  EXPECT_TRUE(Findings(1, absl::Milliseconds(200)).empty());
  watch_->NoteStart(0);
  watch_->TakeFindings();
  absl::SleepFor(absl::Milliseconds(200));
  gpus_.Set("0000:1c:00.0 clock_mhz 1980\n");
  EXPECT_EQ(End(0), "");
  EXPECT_EQ(Findings(1).at(10), "the driver does not find its GPU any more");
}

// Goal: a driver that answers late holds nothing back, and its answer is told
// of the process that died though the next one has started.
TEST_F(GpuWatchTest, TellsWhatADriverSaysLate) {
  watch_->NoteStart(0);
  Report("0000:1b:00", 119);
  gpus_.Set("0000:1b:00.0 sleep_ms 900\n0000:1b:00.0 uncorrected_errors 9\n");
  const absl::Time began = MonotonicNow();
  EXPECT_EQ(End(0),
            "its GPU reported XID 119 (its system processor (GSP) does not "
            "answer)");
  EXPECT_TRUE(watch_->TakeFindings().empty());
  EXPECT_LT(MonotonicNow() - began, absl::Milliseconds(800));
  Report("0000:1b:00", 48);
  watch_->NoteStart(0);
  Report("0000:1b:00", 79);  // The next process's.
  EXPECT_THAT(Findings(1).at(10),
              testing::StartsWith("its GPU reported XID 48 (an uncorrectable "
                                  "memory error)"));
}

// Goal: a driver that does not answer at all is told of, once.
TEST_F(GpuWatchTest, TellsOfADriverThatDoesNotAnswer) {
  Watch(/*driver_limit=*/absl::Milliseconds(100));
  gpus_.Set("0000:1b:00.0 sleep_ms 900\n");
  EXPECT_EQ(End(0), "");
  EXPECT_TRUE(watch_->TakeFindings().empty());
  EXPECT_EQ(Findings(1).at(10),
            "the driver has not said for 100ms how its GPU is");
  EXPECT_TRUE(watch_->TakeFindings().empty());
}

TEST(GpuWatchWithoutGpusTest, SaysNothing) {
  GpuWatch watch{{}};
  watch.ReadLog();
  watch.NoteStart(0);
  EXPECT_EQ(watch.NoteDeath(0, {0, 1}), "");
  EXPECT_TRUE(watch.TakeFindings().empty());
}

}  // namespace
}  // namespace millrace
