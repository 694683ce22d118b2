#include "coordinator/run_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/files.h"
#include "worker/agent/run_copies.h"

namespace millrace {
namespace {

class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    std::filesystem::remove_all(root_);
    for (const char* folder : {"/here/logs", "/here/timelines", "/there"}) {
      std::filesystem::create_directories(root_ + folder);
    }
  }
  void Write(const std::string& name, const std::string& text,
             std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(root_ + "/here/" + name, mode) << text;
  }
  std::string Copy(const std::string& name) {
    const auto text = ReadFile(root_ + "/there/" + name);
    return text.ok() ? *text : "";
  }
  // Returns how many pieces it took.
  int Carry(RunFiles* from, RunCopies* to) {
    int num_pieces = 0;
    for (const protocol::RunFile& piece : from->Next()) {
      EXPECT_TRUE(to->Take(/*term=*/1, piece).ok());
      ++num_pieces;
    }
    return num_pieces;
  }

  const std::string root_ = testing::TempDir() + "/run_files_test";
};

// Goal: the copy becomes equal and stays so at the cost of what is new; logs
// stay where they are. Method: write, carry, append and replace, carry again;
// then as after a lost connection.
TEST_F(RunFilesTest, CarriesWhatIsNew) {
  Write("metrics.jsonl", "1\n");
  Write("timelines/predicted.json", "{}");
  Write("logs/coordinator.log", "no");
  Write("state.log", "no");
  RunFiles files(root_ + "/here", {});
  RunCopies copies(root_ + "/there");
  EXPECT_EQ(Carry(&files, &copies), 2);
  EXPECT_EQ(Carry(&files, &copies), 0);
  Write("metrics.jsonl", "2\n", std::ios::app);
  Write("timelines/predicted.json", "{\"a\": 1}");
  EXPECT_EQ(Carry(&files, &copies), 2);
  EXPECT_EQ(Copy("metrics.jsonl"), "1\n2\n");
  EXPECT_EQ(Copy("timelines/predicted.json"), "{\"a\": 1}");
  EXPECT_EQ(Copy("logs/coordinator.log") + Copy("state.log"), "");

  protocol::AgentHello hello;
  copies.AddTo(&hello);
  EXPECT_EQ(hello.copies_term(), 1);
  std::map<std::string, int64_t> there;
  for (const protocol::RunFileCopy& copy : hello.copies()) {
    there[copy.name()] = copy.bytes();
  }
  RunFiles again(root_ + "/here", there);
  Write("metrics.jsonl", "3\n", std::ios::app);
  EXPECT_EQ(Carry(&again, &copies), 2);  // The other one goes whole.
  EXPECT_EQ(Copy("metrics.jsonl"), "1\n2\n3\n");
}

// Goal: nothing is written outside of the run directory, and no gap arises.
TEST_F(RunFilesTest, RefusesWhatDoesNotFit) {
  RunCopies copies(root_ + "/there");
  protocol::RunFile piece;
  piece.set_data("x");
  for (const char* name : {"../x", "/tmp/x", "a/../../x"}) {
    piece.set_name(name);
    EXPECT_TRUE(absl::IsInvalidArgument(copies.Take(1, piece))) << name;
  }
  piece.set_name("metrics.jsonl");
  piece.set_offset(5);
  EXPECT_TRUE(absl::IsInvalidArgument(copies.Take(1, piece)));
}

}  // namespace
}  // namespace millrace
