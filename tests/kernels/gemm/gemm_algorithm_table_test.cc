#include "kernels/gemm/gemm_algorithm_table.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: a shape's word holds all that the choice depends on, and nothing else.
TEST(GemmBf16ShapeWordTest, TellsShapesApart) {
  GemmBf16Shape shape = {.m = 16, .n = 32, .k = 64};
  EXPECT_EQ(GemmBf16ShapeWord(shape), "m16n32k64");
  shape.a_stride = 64;  // The stride that zero means.
  EXPECT_EQ(GemmBf16ShapeWord(shape), "m16n32k64");
  shape.a_stride = 72;
  shape.trans_b = true;
  shape.b_stride = 64;
  shape.fp32_output = true;
  shape.accumulate = true;
  shape.epilogue = GemmEpilogue::kSumA;
  EXPECT_EQ(GemmBf16ShapeWord(shape), "m16n32k64-tb-fp32-add-sum-a-as72");
}

// Goal: a table comes back from its text, remarks included, and finds what was
// set for one chip and shape alone.
TEST(GemmAlgorithmTableTest, ComesBackFromItsText) {
  const GemmBf16Shape shape = {.m = 16, .n = 32, .k = 64, .trans_b = true};
  GemmAlgorithmTable table;
  table.AddRemark("measured here");
  table.Set("Chip_1", shape, {{"wgmma/1/128x256/r4"}, 12.5});
  const std::string text = table.Format();
  EXPECT_EQ(text,
            "# measured here\n"
            "Chip_1 m16n32k64-tb wgmma/1/128x256/r4 12.5\n");
  const auto parsed = GemmAlgorithmTable::Parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Format(), text);
  std::string ignored;
  const auto found = parsed->Find("Chip_1", shape, &ignored);
  ASSERT_TRUE(found.has_value()) << ignored;
  EXPECT_EQ(found->text, "wgmma/1/128x256/r4");
  EXPECT_FALSE(parsed->Find("Chip_2", shape, &ignored).has_value());
  EXPECT_FALSE(parsed->Find("Chip_1", {.m = 16, .n = 32, .k = 64}, &ignored)
                   .has_value());
  EXPECT_EQ(ignored, "");
}

// Goal: entries of one chip can be listed and set by their words, the later one
// counting.
TEST(GemmAlgorithmTableTest, ListsEntriesOfAChip) {
  auto table = GemmAlgorithmTable::Parse("A m1n1k1 x 1\nB m2n2k2 y 2\n");
  ASSERT_TRUE(table.ok()) << table.status();
  table->SetWord("A", "m1n1k1", {{"z"}, 3});
  table->SetWord("A", "m3n3k3", {{"w"}, 4});
  const auto entries = table->EntriesOf("A");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries.at("m1n1k1").algorithm.text, "z");
  EXPECT_EQ(entries.at("m1n1k1").microseconds, 3);
  EXPECT_EQ(entries.at("m3n3k3").algorithm.text, "w");
  EXPECT_TRUE(table->EntriesOf("C").empty());
}

// Goal: the table that ships is one, whatever version of cuBLAS is here.
TEST(GemmAlgorithmTableTest, ReadsTheTableThatShips) {
  std::ifstream file(MILLRACE_H200_GEMM_TABLE);
  std::stringstream text;
  text << file.rdbuf();
  const auto table = GemmAlgorithmTable::Parse(text.str());
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Format(), text.str());
  std::string ignored;
  EXPECT_TRUE(table
                  ->Find("NVIDIA_H200",
                         {.m = 16384, .n = 6144, .k = 4096, .trans_b = true},
                         &ignored)
                  .has_value())
      << ignored;
}

// Goal: entries of another version are passed over, and it is said why.
TEST(GemmAlgorithmTableTest, IgnoresOtherVersionsAloud) {
  const GemmBf16Shape shape = {.m = 16, .n = 32, .k = 64};
  for (const char* text :
       {"cublaslt/1/0.0.0.0.0.0.0.0", "wgmma/0/128x256/r4", "magic"}) {
    GemmAlgorithmTable table;
    table.Set("Chip_1", shape, {{text}, 1});
    std::string ignored;
    EXPECT_FALSE(table.Find("Chip_1", shape, &ignored).has_value());
    EXPECT_TRUE(absl::StrContains(ignored, text)) << ignored;
    EXPECT_FALSE(table.Find("Chip_1", shape, nullptr).has_value());
  }
}

// Goal: lines that are no entries are refused by number.
TEST(GemmAlgorithmTableTest, RefusesBrokenLines) {
  for (const char* line : {"Chip m1n1k1 wgmma", "Chip m1n1k1 wgmma fast",
                           "Chip m1n1k1 wgmma -1", "Chip m1n1k1 wgmma 1 2"}) {
    const absl::Status status =
        GemmAlgorithmTable::Parse(std::string("# fine\n\n") + line).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "line 3")) << status;
  }
  EXPECT_TRUE(absl::StrContains(
      GemmAlgorithmTable::Parse("C s a 1\nC s b 2\n").status().message(),
      "has an entry already"));
}

}  // namespace
}  // namespace millrace
