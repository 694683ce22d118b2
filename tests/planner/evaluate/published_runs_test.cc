#include "planner/evaluate/published_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kRunsFolder[] = "tests/data/published_runs/";

std::string Rows(const std::string& rows) {
  return absl::StrCat("{\"rows\": [", rows, "]}");
}

// Goal: a row keeps what it says, null and absent keys stay unknown, further
// keys are passed over. Method: one row with some of each.
TEST(PublishedRunsTest, ReadsARowAsItStands) {
  const auto runs = ReadPublishedRuns(
      Rows(R"({"id": "a/1", "layers": 61, "vocab": null, "tp": 2, "extra": [1],
               "arch_extra": {"mlp": "swiglu", "moe": {"experts": 256,
               "topk": 8, "shared": 1, "moe_ffn": 2048, "dense_layers": 3},
               "attn": {"type": "MLA", "q_lora": 1536, "kv_lora": 512,
               "qk_nope": 128, "qk_rope": 64, "v": 128}},
               "step_time_s": 19.5})"),
      "runs.json");
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_THAT(*runs, SizeIs(1));
  const PublishedRun& run = runs->front();
  EXPECT_EQ(run.id, "a/1");
  EXPECT_EQ(run.group, "a");
  EXPECT_EQ(run.layers, 61);
  EXPECT_EQ(run.tensor, 2);
  EXPECT_FALSE(run.vocab.has_value());
  EXPECT_FALSE(run.data.has_value());
  EXPECT_TRUE(run.has_moe);
  EXPECT_EQ(run.experts, 256);
  EXPECT_EQ(run.dense_layers, 3);
  EXPECT_EQ(run.query_rank, 1536);
  EXPECT_EQ(run.value_head_dim, 128);
  EXPECT_EQ(run.step_time_s, 19.5);
}

// The mistake in the text, or in its last row.
std::string MistakeOf(const absl::StatusOr<std::vector<PublishedRun>>& runs) {
  if (!runs.ok()) return std::string(runs.status().message());
  return runs->empty() ? "" : runs->back().fault;
}

// Goal: text that holds no rows is refused with file and line. Method: one
// mistake each.
TEST(PublishedRunsTest, RefusesWhatHoldsNoRows) {
  auto message = [](const std::string& json) {
    return std::string(ReadPublishedRuns(json, "runs.json").status().message());
  };
  EXPECT_THAT(message("{"),
              HasSubstr("runs.json:1: not valid YAML: end of map flow"));
  EXPECT_THAT(message("{\n\"rows\":\n[\n{,"), HasSubstr("runs.json:4: not"));
  EXPECT_THAT(message("{\"row\": []}"), HasSubstr("a list \"rows\""));
  EXPECT_THAT(message("{\"rows\": {\"id\": \"a\"}}"),
              HasSubstr("a list \"rows\""));
  EXPECT_THAT(message("{\"rows\": [], \"rows\": []}"),
              HasSubstr("given twice"));
  EXPECT_THAT(message("{\"rows\": []}\n\n}"), HasSubstr("runs.json:3: "));
}

// Goal: depth is bounded before rows are looked at, whose keys cost more the
// deeper they stand. Method: 60,000 objects in each other on the second line.
TEST(PublishedRunsTest, RefusesDeepRows) {
  std::string row;
  for (int i = 0; i < 60'000; ++i) row += "{\"a\":";
  const absl::Status status =
      ReadPublishedRuns(absl::StrCat("{\"rows\": [\n", row), "runs.json")
          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("runs.json:2: nested deeper than 32 levels"));
}

// Goal: a row that is wrong is named with file, line and key, and has a fault
// instead of being guessed. Method: one mistake each.
TEST(PublishedRunsTest, TellsWhatIsWrongWithARow) {
  auto fault = [](const std::string& row) {
    return MistakeOf(ReadPublishedRuns(Rows("\n" + row), "runs.json"));
  };
  EXPECT_EQ(fault(R"({"id": "a", "tp": 2, "moe": [{"x": 1}, {"x": 2}]})"), "");
  EXPECT_THAT(fault("[]"),
              HasSubstr("runs.json:2: rows[0]: expected an object, found a"));
  EXPECT_THAT(fault("{\"tp\": 2}"),
              HasSubstr("runs.json:2: rows[0]: id: missing"));
  EXPECT_THAT(fault("{\"id\": 5}"),
              HasSubstr("id: expected text in quotes or null"));
  EXPECT_THAT(fault("{\"id\": \"a\",\n\"tp\":\n\"two\"}"),
              HasSubstr("runs.json:3: rows[0] (a): tp: expected a whole number "
                        "from 0 to 2147483647 or null, found \"two\""));
  EXPECT_THAT(fault(R"({"id": "a", "tp": 1.5})"), HasSubstr("1.5"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": -1})"), HasSubstr("-1"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": true})"), HasSubstr("true"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": NaN})"),
              HasSubstr("from 0 to 2147483647 or null, found NaN"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": 1e999})"),
              HasSubstr("runs.json:2: rows[0] (a): tp: expected a whole number "
                        "from 0 to 2147483647 or null, found 1e999"));
  EXPECT_THAT(fault(R"({"id": "a", "step_time_s": 1e999})"),
              HasSubstr("a number above 0 or null, found 1e999"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": 3000000000})"),
              HasSubstr("from 0 to 2147483647 or null, found 3000000000"));
  EXPECT_THAT(fault(R"({"id": "a", "tp": 2, "tp": 4})"),
              HasSubstr("tp: given twice"));
  EXPECT_THAT(
      fault("{\"id\": \"a\", \"arch_extra\": {\"mlp\": \"b\",\n"
            "\"mlp\": \"c\"}}"),
      HasSubstr("runs.json:3: rows[0] (a): arch_extra.mlp: given twice"));
  const size_t deep = 30;
  EXPECT_THAT(fault(std::string(deep, '[') + std::string(deep, ']')),
              HasSubstr("rows[0]: expected an object, found a list of 1"));
  EXPECT_THAT(fault(R"({"id": "a", "step_time_s": 0})"),
              HasSubstr("step_time_s: expected a number above 0"));
  EXPECT_THAT(fault(R"({"id": "a", "gpu": 100})"),
              HasSubstr("gpu: expected text"));
  EXPECT_THAT(fault(R"({"id": "a", "arch_extra": {"moe": 3}})"),
              HasSubstr("arch_extra.moe: expected an object"));
  EXPECT_THAT(fault("{\"id\": \"a\", \"arch_extra\": {\n\"moe\": {\n\"topk\":"
                    " \"8\"}}}"),
              HasSubstr("runs.json:4: rows[0] (a): arch_extra.moe.topk: "));
  EXPECT_THAT(fault(R"({"id": "a"}, {"id": "a"})"),
              HasSubstr("rows[1] (a): id: a is an earlier row's too"));
}

// Goal: one bad row costs no other. Method: one among good ones, of which one
// has no id, in a list without an object about it.
TEST(PublishedRunsTest, KeepsGoodRowsBesideBadOnes) {
  const auto runs = ReadPublishedRuns(
      R"([{"id": "g/1", "tp": 2}, {"id": "g/2", "tp": "x", "step_time_s": 2},
          {"tp": 4}, null, {"id": "g/5", "tp": 8}])",
      "runs.json");
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_THAT(*runs, SizeIs(5));
  EXPECT_EQ((*runs)[0].fault, "");
  EXPECT_EQ((*runs)[1].id, "g/2");
  EXPECT_EQ((*runs)[1].group, "g");
  EXPECT_EQ((*runs)[1].step_time_s, 2);
  EXPECT_THAT((*runs)[1].fault, HasSubstr("runs.json:1: rows[1] (g/2): tp"));
  EXPECT_EQ((*runs)[2].id, "rows[2]");
  EXPECT_EQ((*runs)[3].id, "rows[3]");
  EXPECT_NE((*runs)[3].fault, "");
  EXPECT_EQ((*runs)[4].tensor, 8);
  EXPECT_EQ((*runs)[4].fault, "");
}

// The row 8, 16, 2, 1024, ... that tests of vTrain's table have.
void ExpectRowOf8(const PublishedRun& run) {
  EXPECT_EQ(run.num_gpus, 8);
  EXPECT_EQ(run.global_batch, 16);
  EXPECT_EQ(run.micro_batch, 2);
  EXPECT_EQ(run.hidden, 1024);
  EXPECT_EQ(run.heads, 16);
  EXPECT_EQ(run.ffn, 4096);
  EXPECT_EQ(run.layers, 12);
  EXPECT_EQ(run.sequence, 1024);
  EXPECT_EQ(run.tensor, 4);
  EXPECT_EQ(run.data, 2);
  EXPECT_EQ(run.pipeline, 1);
  EXPECT_DOUBLE_EQ(*run.step_time_s, 0.349304);
}

// Goal: vTrain's table gives whole rows, and a broken line is named. Method: a
// line of the table, then one mistake each.
TEST(PublishedRunsTest, ReadsVtrainTable) {
  const std::string header =
      "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,"
      "sequence length,tensor parallelism,data parallelism,pipeline "
      "parallelism,iteration time (ms)\n";
  const auto runs = ParsePublishedRuns(
      header + "8,16,2,1024,16,12,1024,4,2,1,349.304\n", "data/single.csv");
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_THAT(*runs, SizeIs(1));
  const PublishedRun& run = runs->front();
  EXPECT_EQ(run.id, "single/2");
  ExpectRowOf8(run);
  EXPECT_EQ(run.group, "vtrain_single_node");
  EXPECT_EQ(run.model, "gpt-12x1024");

  // A table of several nodes, with the number of parameters first.
  const std::string wide = "Parameters (billion)," + header;
  const auto several = ParsePublishedRuns(
      "\xEF\xBB\xBF" + wide + "3.6,64,512,8,3072,32,30,2048,2,32,1,3975.2\n",
      "mine.csv");
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(several->front().group, "vtrain_multi");
  EXPECT_EQ(several->front().model, "gpt-3.6b");
  EXPECT_EQ(several->front().num_gpus, 64);
  EXPECT_DOUBLE_EQ(*several->front().step_time_s, 3.9752);

  auto message = [&](const std::string& csv) {
    return MistakeOf(ParsePublishedRuns(csv, "t.csv"));
  };
  EXPECT_THAT(
      message("a,b\n"),
      AllOf(HasSubstr("t.csv:1: expected JSON, which starts with {, or"),
            HasSubstr("the columns 'GPUs', 'global batch'"),
            HasSubstr("found 'a,b'")));
  EXPECT_THAT(message(" \n"), HasSubstr("t.csv: the file is empty"));
  EXPECT_THAT(*ParsePublishedRuns("\xEF\xBB\xBF{\"rows\": []}", "t.json"),
              SizeIs(0));
  EXPECT_THAT(message("GPUs,layers,layers\n"),
              HasSubstr("t.csv:1: columns 2 and 3 are both 'layers'"));
  EXPECT_THAT(message("GPUs,# layers\n"),
              HasSubstr("t.csv:1: the header lacks 'global batch', 'micro"));
  EXPECT_THAT(message(header + "8,16,2,9000000000,16,12,1024,4,2,1,349\n"),
              HasSubstr("t.csv:2: column 4 (hidden size): expected a whole"));
  EXPECT_THAT(message(header + "1,2,3\n"),
              HasSubstr("t.csv:2: expected 11 cells as the header has, found"));
  EXPECT_THAT(message(header + "8,16,2,1024,x,12,1024,4,2,1,349\n"),
              HasSubstr("t.csv:2: column 5"));
  EXPECT_THAT(message(header + "8,16,2,1024,16,12,1024,4,2,1,-3\n"),
              HasSubstr("t.csv:2: column 11"));
  EXPECT_THAT(message(wide + "8,16,2,1024,16,12,1024,4,2,1,349\n"),
              HasSubstr("t.csv:2: expected 12 cells"));
  EXPECT_THAT(message(wide + "-1,8,16,2,1024,16,12,1024,4,2,1,349\n"),
              HasSubstr("t.csv:2: column 1 (Parameters (billion)): expected"));
  EXPECT_THAT(message(wide + "1,8,16,2,1024,16,12,1024,4,2,1,x\n"),
              HasSubstr("t.csv:2: column 12"));
}

// Goal: a table means the same whatever the order of its columns, columns of
// others are passed over, and a broken line costs no other. Method: the same
// run in two orders, a broken line before it.
TEST(PublishedRunsTest, FindsColumnsByName) {
  const auto runs = ParsePublishedRuns(
      "\r\niteration time (ms), # layers,GPUs,remark,pipeline parallelism,"
      "data parallelism,tensor parallelism,sequence length,attention heads,"
      "hidden size,micro batch,global batch\r\n"
      "fast,12,8,x,1,2,4,1024,16,1024,2,16\r\n"
      "349.304,12,8,x,1,2,4,1024,16,1024,2,16\r\n",
      "single.csv");
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_THAT(*runs, SizeIs(2));
  EXPECT_EQ(runs->front().id, "single/3");
  EXPECT_THAT(runs->front().fault,
              HasSubstr("single.csv:3: column 1 (iteration time (ms))"));
  EXPECT_EQ(runs->back().id, "single/4");
  EXPECT_EQ(runs->back().fault, "");
  ExpectRowOf8(runs->back());
}

// Goal: what was measured is a step time and bytes, whatever the row states.
// Method: by hand.
TEST(PublishedRunsTest, DerivesStepTimeAndBytes) {
  PublishedRun run;
  EXPECT_FALSE(MeasuredStepTime(run).has_value());
  EXPECT_FALSE(MeasuredMemoryBytes(run).has_value());
  run.tokens_per_s_per_gpu = 1000;
  EXPECT_FALSE(MeasuredStepTime(run).has_value());
  run.global_batch = 16;
  run.sequence = 4000;
  run.num_gpus = 8;
  EXPECT_DOUBLE_EQ(*MeasuredStepTime(run), 8.0);
  run.step_time_s = 7;
  EXPECT_DOUBLE_EQ(*MeasuredStepTime(run), 7);
  run.memory = 2;
  run.memory_unit = "GiB max over GPUs";
  EXPECT_DOUBLE_EQ(*MeasuredMemoryBytes(run), 2147483648.0);
  run.memory_unit = "GB peak allocated";
  EXPECT_DOUBLE_EQ(*MeasuredMemoryBytes(run), 2e9);
}

// Goal: rows of one version of a program share a name. Method: by hand.
TEST(PublishedRunsTest, NamesTheSoftware) {
  PublishedRun run;
  EXPECT_EQ(SoftwareOf(run), "");
  run.source = "owner/program@v1:results/a.md";
  EXPECT_EQ(SoftwareOf(run), "owner/program@v1");
  run.source = "owner/program@v1:results/a.md [26.04 Container]";
  EXPECT_EQ(SoftwareOf(run), "owner/program@v1 [26.04 Container]");
}

// Goal: the collected files read whole. Method: count.
TEST(PublishedRunsTest, ReadsTheCollectedRuns) {
  const auto runs =
      LoadPublishedRuns(absl::StrCat(kRunsFolder, "published_runs.json"));
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_THAT(*runs, SizeIs(372));
  const auto vtrain =
      LoadPublishedRuns(absl::StrCat(kRunsFolder, "vtrain_single_node.csv"));
  ASSERT_TRUE(vtrain.ok()) << vtrain.status();
  EXPECT_THAT(*vtrain, SizeIs(860));
}

}  // namespace
}  // namespace millrace
