#include "worker/agent/gpu_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

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
    gpus_.Set(kWellGpus);
    watch_ = std::make_unique<GpuWatch>(
        std::vector<std::string>{"0000:1b:00.0", "0000:1c:00.0"},
        FakeGpus::Library(), std::make_unique<KernelLog>(fds[0]));
  }
  ~GpuWatchTest() override { close(log_fd_); }

  void Report(const std::string& gpu, int xid) {
    const std::string record = "4,1,1,-;NVRM: Xid (PCI:" + gpu +
                               "): " + std::to_string(xid) + ", pid=1\n";
    EXPECT_EQ(write(log_fd_, record.data(), record.size()),
              static_cast<ssize_t>(record.size()));
  }

  // Starts a process on a GPU and waits until its state has been read.
  void Start(int32_t gpu) {
    watch_->NoteStart(gpu);
    EXPECT_EQ(watch_->Explain({gpu}, kTimeToRead),
              std::vector<std::string>{""});
  }

  FakeGpus gpus_;
  int log_fd_ = -1;
  std::unique_ptr<GpuWatch> watch_;
};

TEST_F(GpuWatchTest, SaysNothingOfGpusThatAreWell) {
  Report("0000:1b:00", 79);  // Before the start.
  Start(0);
  Report("0000:1c:00", 79);  // Another GPU.
  EXPECT_EQ(watch_->Explain({0, GpuWatch::kNone, 7}, kTimeToRead),
            (std::vector<std::string>{"", "", ""}));
}

TEST_F(GpuWatchTest, TellsXidsAndCountersSinceTheStart) {
  Start(0);
  Start(1);
  Report("0000:1b:00", 79);
  Report("0000:1c:00", 48);
  Report("0000:1c:00", 63);
  Report("0000:1c:00", 48);
  gpus_.Set(
      "0000:1c:00.0 clock_mhz 1980\n0000:1c:00.0 uncorrected_errors 3\n"
      "0000:1c:00.0 remap_pending 1\n0000:1c:00.0 remap_failed 0\n");
  const std::vector<std::string> texts = watch_->Explain({1, 0}, kTimeToRead);
  EXPECT_EQ(texts[0],
            "its GPU reported XID 48 (an uncorrectable memory error), 63 (a "
            "row of memory is to be remapped, or a page retired); its GPU "
            "counts 2 new uncorrected memory errors; a row of its GPU's "
            "memory waits to be remapped at a reset");
  EXPECT_EQ(texts[1],
            "its GPU reported XID 79 (it fell off the bus); the driver does "
            "not find its GPU any more");
  // The next process of the worker has its own start.
  gpus_.Set(
      "0000:1c:00.0 clock_mhz 1980\n0000:1c:00.0 uncorrected_errors 3\n"
      "0000:1c:00.0 remap_pending 1\n0000:1c:00.0 remap_failed 0\n");
  Start(1);
}

// Goal: a driver that answers late holds nothing back but its own values.
TEST_F(GpuWatchTest, DoesNotWaitForADriverThatHangs) {
  Start(0);
  Report("0000:1b:00", 119);
  gpus_.Set("0000:1b:00.0 sleep_ms 900\n0000:1b:00.0 uncorrected_errors 9\n");
  const absl::Time began = MonotonicNow();
  EXPECT_EQ(watch_->Explain({0, 1}, absl::Milliseconds(20)),
            (std::vector<std::string>{"its GPU reported XID 119 (its system "
                                      "processor (GSP) does not answer)",
                                      ""}));
  EXPECT_LT(MonotonicNow() - began, absl::Milliseconds(800));
}

TEST(GpuWatchWithoutGpusTest, SaysNothing) {
  GpuWatch watch{{}};
  watch.ReadLog();
  watch.NoteStart(0);
  EXPECT_EQ(watch.Explain({0, GpuWatch::kNone}, kTimeToRead),
            (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace millrace
