#include "coordinator/files/remote_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/coordinator/files/file_serving.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kJobSecret[] = "0123456789abcdef";

class RemoteFilesTest : public ::testing::Test {
 protected:
  RemoteFilesTest() : folder_(::testing::TempDir() + "/remote_files_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    server_ = ServeFilesAt(FreePort(), kJobSecret);
    server_->Serve("checkpoints", folder_, /*writable=*/true);
  }

  std::unique_ptr<RemoteFiles> Connect(
      const std::string& secret = kJobSecret,
      absl::Duration retry = absl::ZeroDuration()) {
    auto files = RemoteFiles::Create({.host = "node2",
                                      .address = "127.0.0.1",
                                      .port = server_->port(),
                                      .secret = secret,
                                      .directory = "/here/ckpt",
                                      .name = "checkpoints",
                                      .retry = retry});
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }

  const std::string folder_;
  std::unique_ptr<FileServer> server_;
};

// Goal: another host's folder works as a file system does. Method: every call,
// with a file larger than one piece.
TEST_F(RemoteFilesTest, DoesWhatAFileSystemDoes) {
  const auto files = Connect();
  ASSERT_TRUE(files->MakeDirectories("/here/ckpt/step").ok());
  const std::string content = std::string(kMaxFilePieceBytes, 'a') + "end";
  auto file = files->Create("/here/ckpt/step/new");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("begin", 5).ok());
  ASSERT_TRUE((*file)
                  ->Append(content.data(), static_cast<int64_t>(content.size()))
                  .ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  ASSERT_TRUE(
      files->Rename("/here/ckpt/step/new", "/here/ckpt/step/named").ok());
  EXPECT_TRUE(files->SyncDirectory("/here/ckpt/step").ok());
  EXPECT_TRUE(
      files->SyncDirectory("/here").ok());  // Not served; nothing to do.
  EXPECT_TRUE(files->Exists("/here/ckpt/step/named"));
  EXPECT_FALSE(files->Exists("/here/ckpt/step/new"));
  EXPECT_THAT(*files->List("/here/ckpt/step"), ElementsAre("named"));
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/step/named"),
            content.size() + 5);
  const auto read = files->Open("/here/ckpt/step/named");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ((*read)->size(), static_cast<int64_t>(content.size()) + 5);
  std::string all(content.size() + 5, '\0');
  ASSERT_TRUE(
      (*read)->Read(0, static_cast<int64_t>(all.size()), all.data()).ok());
  EXPECT_EQ(all, "begin" + content);
  EXPECT_TRUE(
      absl::IsDataLoss((*read)->Read((*read)->size() - 1, 2, all.data())));
  ASSERT_TRUE(files->Remove("/here/ckpt/step").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step"));
}

// Goal: nothing but what is served is reached, nothing read-only is changed,
// and errors name the host. Method: paths and names that lead elsewhere.
TEST_F(RemoteFilesTest, StaysWithinWhatIsServed) {
  const auto files = Connect();
  EXPECT_TRUE(absl::IsInvalidArgument(files->Open("/etc/passwd").status()));
  const absl::Status outside =
      files->Open("/here/ckpt/../../etc/passwd").status();
  EXPECT_TRUE(absl::IsInvalidArgument(outside)) << outside;
  EXPECT_THAT(std::string(outside.message()), HasSubstr("node2: "));
  const absl::Status missing = files->Open("/here/ckpt/none").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  server_->Serve("checkpoints", folder_, /*writable=*/false);
  EXPECT_TRUE(
      absl::IsPermissionDenied(files->Create("/here/ckpt/new").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(files->Remove("/here/ckpt")));
  EXPECT_TRUE(files->List("/here/ckpt").ok());
}

// Goal: who does not know the secret gets nothing, and is told why. Method:
// another secret.
TEST_F(RemoteFilesTest, NeedsTheSecret) {
  const auto files = Connect("fedcba9876543210");
  const absl::Status refused = files->List("/here/ckpt").status();
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(files->Exists("/here/ckpt"));
  EXPECT_TRUE(Connect()->List("/here/ckpt").ok());
}

// Goal: a reader survives a server that goes away for a while; a writer fails,
// since nobody knows what was written; a server that stays away is named.
// Method: end the server while files are open, and start it again.
TEST_F(RemoteFilesTest, ReadsOnAfterABrokenConnection) {
  std::ofstream(folder_ + "/part") << "content";
  const auto files = Connect(kJobSecret, absl::Seconds(20));
  const auto read = files->Open("/here/ckpt/part");
  ASSERT_TRUE(read.ok()) << read.status();
  auto written = files->Create("/here/ckpt/new");
  ASSERT_TRUE(written.ok()) << written.status();
  const int32_t port = server_->port();
  server_.reset();
  std::thread again([&] {
    absl::SleepFor(absl::Milliseconds(300));
    server_ = ServeFilesAt(port, kJobSecret);
    server_->Serve("checkpoints", folder_, /*writable=*/true);
  });
  std::string content(7, '\0');
  const absl::Status status = (*read)->Read(0, 7, content.data());
  again.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(content, "content");
  EXPECT_TRUE(absl::IsUnavailable((*written)->Append("a", 1)));
  server_.reset();
  const auto hasty = RemoteFiles::Create({.host = "node2",
                                          .address = "127.0.0.1",
                                          .port = port,
                                          .secret = kJobSecret,
                                          .directory = "/here",
                                          .name = "checkpoints"});
  const absl::Status gone = (*hasty)->List("/here").status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("node2: no connection"));
}

// Goal: files whose writing failed do not stay open over there, where a
// connection may have a few at a time. Method: many that nobody closes.
TEST_F(RemoteFilesTest, ClosesWhatNobodyClosed) {
  const auto files = Connect();
  for (int i = 0; i < 40; ++i) {
    const auto file = files->Create("/here/ckpt/new");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("abc", 3).ok());
    const auto other = files->Create("/here/ckpt/new" + std::to_string(i));
    ASSERT_TRUE(other.ok()) << other.status();
  }
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/new"), 3);
}

// Goal: whoever waits for a host that does not answer can be told to stop.
// Method: a socket that accepts and says nothing.
TEST_F(RemoteFilesTest, EndsWhenAborted) {
  const absl::StatusOr<Listener> silent = Listener::Create();
  ASSERT_TRUE(silent.ok());
  int32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(
      silent->address().substr(silent->address().rfind(':') + 1), &port));
  const auto files = RemoteFiles::Create({.host = "node2",
                                          .address = "127.0.0.1",
                                          .port = port,
                                          .secret = kJobSecret,
                                          .directory = "/here",
                                          .name = "checkpoints"});
  std::thread aborts([&] {
    absl::SleepFor(absl::Milliseconds(200));
    (*files)->Abort();
  });
  EXPECT_TRUE(absl::IsAborted((*files)->List("/here").status()));
  aborts.join();
  EXPECT_TRUE(absl::IsAborted((*files)->List("/here").status()));
}

// Goal: once a host knows of a later coordinator, an earlier one neither
// renames nor removes there; who is no coordinator is not concerned. Method:
// the same changes with terms 1 and 2, and without one.
TEST_F(RemoteFilesTest, RefusesEarlierCoordinators) {
  server_->RefuseTermsBelow(2);
  for (const int64_t term : {0, 1, 2}) {
    auto files = RemoteFiles::Create({.host = "node2",
                                      .address = "127.0.0.1",
                                      .port = server_->port(),
                                      .secret = kJobSecret,
                                      .directory = "/here/ckpt",
                                      .name = "checkpoints",
                                      .term = term});
    ASSERT_TRUE(files.ok()) << files.status();
    auto file = (*files)->Create("/here/ckpt/new");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Close().ok());
    const absl::Status renamed =
        (*files)->Rename("/here/ckpt/new", "/here/ckpt/named");
    const absl::Status removed = (*files)->Remove("/here/ckpt/named");
    EXPECT_EQ(absl::IsAborted(renamed), term == 1) << renamed;
    EXPECT_EQ(absl::IsAborted(removed), term == 1) << removed;
  }
}

}  // namespace
}  // namespace millrace
