#include "worker/agent/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "fault/faulty_file_system.h"

namespace millrace {
namespace {

// Files of memory whose first append waits until the test lets it go on.
class SlowFiles : public FaultyFileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    auto file = FaultyFileSystem::Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<SlowFile>(this, *std::move(file));
  }
  absl::Notification appending, may_go_on;

 private:
  class SlowFile : public WritableFile {
   public:
    SlowFile(SlowFiles* files, std::unique_ptr<WritableFile> file)
        : files_(*files), file_(std::move(file)) {}
    absl::Status Append(const void* data, int64_t num_bytes) override {
      if (!files_.appending.HasBeenNotified()) files_.appending.Notify();
      files_.may_go_on.WaitForNotification();
      return file_->Append(data, num_bytes);
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    SlowFiles& files_;
    const std::unique_ptr<WritableFile> file_;
  };
};

// One tensor of four elements, of which this rank owns all.
std::vector<StatePiece> WeightOf(std::vector<float>* data) {
  return {{.tensor = "w",
           .rows = 1,
           .cols = 4,
           .is_vector = true,
           .box = {.row_begin = 0, .row_end = 1, .col_begin = 0, .col_end = 4},
           .begin = 0,
           .end = 4,
           .data = data->data(),
           .is_owner = true}};
}

struct Written {
  absl::StatusOr<std::string> entry = absl::UnknownError("not written");
  absl::Notification done;
};

CheckpointWrite WriteOf(int64_t step, const std::vector<StatePiece>& state,
                        Written* written) {
  auto snapshot = *StateSnapshot::Create(state);
  EXPECT_TRUE(snapshot->CopyFrom(state).ok());
  return {.directory = "c",
          .info = {.step = step, .generation = Generation{1}},
          .rank = Rank{0},
          .snapshot = std::move(snapshot),
          .on_written = [written](const absl::StatusOr<std::string>& entry,
                                  double seconds) {
            EXPECT_GE(seconds, 0);
            written->entry = entry;
            written->done.Notify();
          }};
}

// Goal: what is written is the state of the snapshot, whatever training makes
// of it meanwhile. Method: a disk that waits, and a state that changes.
TEST(CheckpointWriterTest, WritesTheSnapshot) {
  SlowFiles files;
  CheckpointWriter writer(&files);
  const std::atomic<bool> never = false;
  std::vector<float> weight = {1, 2, 3, 4};
  Written written;
  ASSERT_TRUE(
      writer.Start(WriteOf(7, WeightOf(&weight), &written), never).ok());
  files.appending.WaitForNotification();
  EXPECT_FALSE(written.done.HasBeenNotified());
  weight = {0, 0, 0, 0};
  files.may_go_on.Notify();
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  ASSERT_TRUE(written.done.HasBeenNotified());
  ASSERT_TRUE(written.entry.ok()) << written.entry.status();
  CheckpointInfo info = {.step = 7, .generation = Generation{1}};
  ASSERT_TRUE(CommitCheckpoint(files, "c", info, {*written.entry}, 1).ok());
  ASSERT_TRUE(LoadCheckpoint(files, "c/step-00000007", WeightOf(&weight)).ok());
  EXPECT_THAT(weight, testing::ElementsAre(1, 2, 3, 4));
}

// Goal: a generation that ends neither waits for the disk nor reports its part,
// and leaves no file. Method: abandon a write that hangs; who waits for it is
// told, and the next generation's write succeeds.
TEST(CheckpointWriterTest, AbandonsAtOnce) {
  SlowFiles files;
  CheckpointWriter writer(&files);
  std::atomic<bool> aborted = false;
  const std::atomic<bool> never = false;
  std::vector<float> weight = {1, 2, 3, 4};
  Written abandoned, waiting, next;
  ASSERT_TRUE(
      writer.Start(WriteOf(1, WeightOf(&weight), &abandoned), aborted).ok());
  files.appending.WaitForNotification();
  std::thread training([&] {
    EXPECT_TRUE(absl::IsAborted(
        writer.Start(WriteOf(2, WeightOf(&weight), &waiting), aborted)));
  });
  aborted = true;
  writer.Abandon();
  training.join();
  EXPECT_TRUE(absl::IsAborted(writer.WaitUntilIdle(aborted)));
  files.may_go_on.Notify();
  ASSERT_TRUE(writer.Start(WriteOf(3, WeightOf(&weight), &next), never).ok());
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  EXPECT_TRUE(next.entry.ok()) << next.entry.status();
  EXPECT_FALSE(abandoned.done.HasBeenNotified());
  EXPECT_FALSE(waiting.done.HasBeenNotified());
  EXPECT_THAT(*files.List("c/step-00000001"), testing::IsEmpty());
  EXPECT_FALSE(files.Exists("c/step-00000002"));
}

// Goal: a write keeps to its rate until somebody waits for it or gives it up.
// Method: at a byte a second, a part of hundreds of bytes would take minutes.
TEST(CheckpointWriterTest, KeepsToItsRateUntilItIsWaitedFor) {
  FaultyFileSystem files;
  CheckpointWriter writer(&files);
  const std::atomic<bool> never = false;
  std::vector<float> weight = {1, 2, 3, 4};
  Written slow, abandoned, after, paced;
  CheckpointWrite write = WriteOf(1, WeightOf(&weight), &slow);
  write.bytes_per_second = 1;
  ASSERT_TRUE(writer.Start(std::move(write), never).ok());
  EXPECT_FALSE(
      slow.done.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  EXPECT_TRUE(slow.entry.ok()) << slow.entry.status();

  write = WriteOf(2, WeightOf(&weight), &abandoned);
  write.bytes_per_second = 1;
  ASSERT_TRUE(writer.Start(std::move(write), never).ok());
  writer.Abandon();
  // The one before was waited for, which does not hasten the next one.
  write = WriteOf(3, WeightOf(&weight), &paced);
  write.bytes_per_second = 20'000;
  const double began_s = MonotonicSeconds();
  ASSERT_TRUE(writer.Start(std::move(write), never).ok());
  paced.done.WaitForNotification();
  const double took_s = MonotonicSeconds() - began_s;
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  ASSERT_TRUE(paced.entry.ok()) << paced.entry.status();
  EXPECT_FALSE(abandoned.done.HasBeenNotified());
  const int64_t num_bytes = nlohmann::json::parse(*paced.entry)["bytes"];
  EXPECT_GE(took_s, static_cast<double>(num_bytes) / 20'000);
  ASSERT_TRUE(writer.Start(WriteOf(4, WeightOf(&weight), &after), never).ok());
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  EXPECT_TRUE(after.entry.ok()) << after.entry.status();
}

// Goal: a disk that fails is reported, and the next part is written.
TEST(CheckpointWriterTest, ReportsErrors) {
  FaultyFileSystem files;
  CheckpointWriter writer(&files);
  const std::atomic<bool> never = false;
  std::vector<float> weight = {1, 2, 3, 4};
  Written failed, next;
  files.SetCapacity(10);
  ASSERT_TRUE(writer.Start(WriteOf(1, WeightOf(&weight), &failed), never).ok());
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(failed.entry.status()));
  files.SetCapacity(-1);
  ASSERT_TRUE(writer.Start(WriteOf(2, WeightOf(&weight), &next), never).ok());
  ASSERT_TRUE(writer.WaitUntilIdle(never).ok());
  EXPECT_TRUE(next.entry.ok()) << next.entry.status();
}

// Goal: a host that is short of memory is not run out of it.
TEST(StateSnapshotTest, LeavesMemoryFree) {
  std::vector<float> weight = {1, 2, 3, 4};
  const auto snapshot =
      StateSnapshot::Create(WeightOf(&weight), /*share_left_free=*/1);
  EXPECT_TRUE(absl::IsResourceExhausted(snapshot.status()));
  EXPECT_THAT(std::string(snapshot.status().message()),
              testing::HasSubstr(" of memory left, and a snapshot of"));
  const auto in_place = StateSnapshot::InPlace(WeightOf(&weight));
  EXPECT_TRUE(in_place->is_in_place());
  EXPECT_EQ(in_place->pieces()[0].data, weight.data());
}

}  // namespace
}  // namespace millrace
