#include "coordinator/succession/log_copies.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "coordinator/files/file_server.h"
#include "coordinator/succession/keepers.h"
#include "worker/agent/listener.h"

namespace millrace {
namespace {

constexpr char kSecret[] = "0123456789abcdef";

// An agent that keeps the log: file server and keeper.
class KeptHost {
 public:
  explicit KeptHost(uint64_t id) : keeper_(id) {
    absl::StatusOr<Listener> listener = Listener::Create();
    EXPECT_TRUE(listener.ok()) << listener.status();
    auto server =
        FileServer::Create(fcntl(listener->fd(), F_DUPFD_CLOEXEC, 0), kSecret);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->KeepLog([this](const protocol::KeepRequest& request) {
      std::lock_guard<std::mutex> lock(mutex_);
      return keeper_.Answer(request, MonotonicNow());
    });
  }

  Keeper keeper(int32_t agent_idx) const {
    return {.id = keeper_.id(),
            .agent_idx = agent_idx,
            .host = "node" + std::to_string(agent_idx + 1),
            .address = "127.0.0.1",
            .port = server_->port(),
            .coordinator_address = "127.0.0.1:1"};
  }
  std::vector<std::string> records() {
    std::lock_guard<std::mutex> lock(mutex_);
    return keeper_.records();
  }
  void Promise(int64_t term) {
    protocol::KeepRequest request;
    request.set_keeper(keeper_.id());
    request.set_term(term);
    request.set_asks_for_promise(true);
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_TRUE(keeper_.Answer(request, absl::InfiniteFuture()).accepted());
  }
  void End() { server_ = nullptr; }

 private:
  std::mutex mutex_;
  LogKeeper keeper_;
  std::unique_ptr<FileServer> server_;
};

class LogCopiesTest : public testing::Test {
 protected:
  LogCopiesTest() {
    for (int32_t i = 0; i < 3; ++i) {
      hosts_.push_back(std::make_unique<KeptHost>(10 + i));
      keepers_.push_back(hosts_.back()->keeper(i));
    }
  }

  absl::StatusOr<std::unique_ptr<LogCopies>> Create(int64_t term = 1) {
    return LogCopies::Create(
        {.keepers = keepers_,
         .secret = kSecret,
         .term = term,
         .records = {"a"},
         .own_agent = 0,
         .on_deposed = [this](const std::string&) { ++num_deposed_; },
         .alone_limit = absl::Milliseconds(1500)});
  }

  std::vector<std::unique_ptr<KeptHost>> hosts_;
  std::vector<Keeper> keepers_;
  std::atomic<int> num_deposed_ = 0;
};

// Goal: a record is with a majority when Append() returns, also while one
// keeper is away. Method: append with three keepers, then with two.
TEST_F(LogCopiesTest, HoldsRecordsAtAMajority) {
  auto copies = Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  ASSERT_TRUE((*copies)->Append("b").ok());
  hosts_[2]->End();
  ASSERT_TRUE((*copies)->Append("c").ok());
  const std::vector<std::string> all = {"a", "b", "c"};
  EXPECT_EQ(hosts_[0]->records(), all);
  EXPECT_EQ(hosts_[1]->records(), all);
  EXPECT_TRUE((*copies)->Confirm().ok());
  EXPECT_EQ(num_deposed_, 0);
}

// Goal: without a majority nothing counts, and the coordinator is told to end.
// Method: end two keepers of three.
TEST_F(LogCopiesTest, EndsWithoutAMajority) {
  auto copies = Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  hosts_[1]->End();
  hosts_[2]->End();
  const absl::Status status = (*copies)->Append("b");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("node2"), std::string::npos) << status;
  for (int i = 0; i < 200 && num_deposed_ == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(num_deposed_, 1);
}

// Goal: a coordinator learns that there is a later one, and a late one of an
// earlier term gets nowhere. Method: two keepers promise term 2.
TEST_F(LogCopiesTest, YieldsToALaterTerm) {
  auto copies = Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  hosts_[1]->Promise(2);
  hosts_[2]->Promise(2);
  EXPECT_TRUE(absl::IsAborted((*copies)->Append("b")));
  EXPECT_EQ(num_deposed_, 1);
  for (const int host : {1, 2}) {
    const std::vector<std::string> records = hosts_[host]->records();
    EXPECT_EQ(std::count(records.begin(), records.end(), "b"), 0);
  }
  EXPECT_FALSE(Create(/*term=*/1).ok());
  EXPECT_TRUE(Create(/*term=*/2).ok());
}

// Goal: another process at the address of a keeper is not taken for it. Method:
// keepers of other numbers.
TEST_F(LogCopiesTest, KnowsKeepersByTheirNumbers) {
  for (Keeper& keeper : keepers_) keeper.id += 100;
  EXPECT_FALSE(Create().ok());
  EXPECT_TRUE(hosts_[0]->records().empty());
}

// Goal: the record of the keepers tells them again, and damage is found.
TEST_F(LogCopiesTest, RecordsItsKeepers) {
  const absl::StatusOr<std::vector<Keeper>> read =
      KeepersIn({"{\"record\": \"started\"}", KeepersRecord(keepers_)});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, keepers_);
  EXPECT_TRUE(KeepersIn({"{\"record\": \"started\"}"})->empty());
  EXPECT_FALSE(KeepersIn({"{\"record\": \"keepers\"}"}).ok());
  EXPECT_FALSE(KeepersIn({"{"}).ok());
  EXPECT_EQ(*RecordOfLine(LogLine("x").substr(0, 18)), "x");
  EXPECT_FALSE(RecordOfLine("0123456789abcdef x").ok());
}

}  // namespace
}  // namespace millrace
