#include "coordinator/write_ahead_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"

namespace millrace {
namespace {

class WriteAheadLogTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/millrace-state-" +
            testing::UnitTest::GetInstance()->current_test_info()->name() +
            std::to_string(getpid());
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void WriteAll() {
    auto log = WriteAheadLog::Open(path_);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE((*log)->Started(12.5).ok());
    ASSERT_TRUE((*log)->GenerationRaised(Generation{1}).ok());
    ASSERT_TRUE((*log)->PlanChosen("{\"a\": \"b\\n\"}").ok());
    ASSERT_TRUE((*log)->GenerationRaised(Generation{2}).ok());
    ASSERT_TRUE((*log)->CheckpointCommitted(5, "/x/step-5").ok());
    // In two halves.
    ASSERT_TRUE((*log)->WriteCheckpointCommitted(7, "/x/step-7").ok());
    EXPECT_EQ((*log)->job().committed_step, 5);
    ASSERT_TRUE((*log)->CountCheckpointCommitted(7, "/x/step-7").ok());
    EXPECT_EQ((*log)->job().committed_step, 7);
    ASSERT_TRUE((*log)->StepsLeftOut(8, 9).ok());
    ASSERT_TRUE((*log)->MemoryDistrusted(Generation{2}, 6).ok());
  }

  std::string path_;
};

// Goal: what was written is there after a restart. Method: write, reopen, write
// more, reopen.
TEST_F(WriteAheadLogTest, RemembersEverything) {
  WriteAll();
  {
    auto log = WriteAheadLog::Open(path_);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->job().started_unix_s, 12.5);
    EXPECT_EQ((*log)->job().generation, Generation{2});
    EXPECT_EQ((*log)->job().plan_json, "{\"a\": \"b\\n\"}");
    EXPECT_EQ((*log)->job().committed_step, 7);
    EXPECT_EQ((*log)->job().committed_path, "/x/step-7");
    EXPECT_EQ((*log)->job().left_out_steps, (std::set<int64_t>{8, 9}));
    EXPECT_EQ((*log)->job().distrusted_memory, Generation{2});
    EXPECT_EQ((*log)->job().trusted_step, 6);
    EXPECT_FALSE((*log)->job().ended);
    ASSERT_TRUE((*log)->Ended(1, "why").ok());
  }
  auto log = WriteAheadLog::Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_TRUE((*log)->job().ended);
  EXPECT_EQ((*log)->job().exit_code, 1);
  EXPECT_EQ((*log)->job().end_message, "why");
}

// Goal: a crash in the middle of a write loses that record at most, and the log
// can be written on. Method: cut the file at every byte.
TEST_F(WriteAheadLogTest, ForgivesATornTailAnywhere) {
  WriteAll();
  const auto whole = ReadFile(path_);
  ASSERT_TRUE(whole.ok());
  for (size_t size = 0; size <= whole->size(); ++size) {
    std::ofstream(path_, std::ios::binary) << whole->substr(0, size);
    {
      auto log = WriteAheadLog::Open(path_);
      ASSERT_TRUE(log.ok()) << "cut at " << size << ": " << log.status();
      EXPECT_LE(ToInt((*log)->job().generation), 2);
      ASSERT_TRUE((*log)->GenerationRaised(Generation{9}).ok());
    }
    auto log = WriteAheadLog::Open(path_);
    ASSERT_TRUE(log.ok()) << "cut at " << size << ": " << log.status();
    EXPECT_EQ((*log)->job().generation, Generation{9});
  }
}

// Goal: damage before the tail is not taken for a torn write. Method: flip a
// byte in the first record.
TEST_F(WriteAheadLogTest, RefusesDamageInTheMiddle) {
  WriteAll();
  auto content = ReadFile(path_);
  ASSERT_TRUE(content.ok());
  (*content)[20] ^= 1;
  std::ofstream(path_, std::ios::binary) << *content;
  EXPECT_EQ(WriteAheadLog::Open(path_).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace millrace
