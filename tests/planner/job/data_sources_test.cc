#include "planner/job/data_sources.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// A small job with this data section, which begins on line 10.
std::string WithData(const std::string& data) {
  return absl::StrCat(R"(name: small
model:
  vocab_size: 100
  hidden: 64
  layers: 2
  heads: 4
  ffn_hidden: 96
  sequence_length: 32
data:
  )",
                      data, R"(
training: {steps: 10, global_batch: 8, optimizer: {learning_rate: 1e-3}}
)");
}

std::string WithSources(const std::string& sections) {
  return WithData(absl::StrCat("sources: [", sections, "]"));
}

// Goal: sources are read with their defaults, in order.
TEST(DataSourcesTest, ReadsSources) {
  const absl::StatusOr<JobSpec> job =
      ParseJob(WithSources("{path: a.jsonl}, {files: [b/*.parquet, \"c d\"], "
                           "format: parquet, column: body, weight: 0.25}"),
               "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<DataSourceSpec> expected = {
      {.files = {"a.jsonl"}},
      {.files = {"b/*.parquet", "c d"},
       .format = "parquet",
       .column = "body",
       .weight = 0.25}};
  EXPECT_EQ(job->data.sources, expected);
  EXPECT_EQ(job->data.broken_records, 10);
}

// Goal: chat sources and their keys are read, survive being written, and may be
// sets of an evaluation.
TEST(DataSourcesTest, ReadsChat) {
  const absl::StatusOr<JobSpec> job = ParseJob(
      WithData("{sources: [{path: a.jsonl, kind: chat}, {files: [b.parquet], "
               "kind: chat, train_on: completion, column: talk}], "
               "tokenizer: model, chat_template: t.jinja, packing: false, "
               "chat_date: \"2026-11-23\", long_samples: drop}\n"
               "evaluation: {sets: {held: {path: c.jsonl, kind: chat}, "
               "pages: {files: [d.jsonl], column: body}, text: [e]}}"),
      "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<DataSourceSpec> expected = {
      {.files = {"a.jsonl"}, .kind = "chat", .column = ""},
      {.files = {"b.parquet"},
       .kind = "chat",
       .train_on = "completion",
       .column = "talk"}};
  EXPECT_EQ(job->data.sources, expected);
  EXPECT_EQ(job->data.chat_template, "t.jinja");
  EXPECT_FALSE(job->data.packing);
  EXPECT_EQ(job->data.long_samples, "drop");
  EXPECT_TRUE(job->evaluation.sets.at("held").is_chat());
  EXPECT_EQ(job->evaluation.sets.at("pages").column, "body");
  EXPECT_EQ(job->evaluation.sets.at("text").format, "text");
  const absl::StatusOr<JobSpec> again = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data, job->data);
  EXPECT_EQ(again->evaluation, job->evaluation);
}

// Goal: each wrong value is named by line and place in the list, with what was
// expected.
TEST(DataSourcesTest, RefusesWrongValues) {
  const std::pair<std::string, std::string> kWrong[] = {
      {WithData("sources: [{path: a}]\n  text: [b]"),
       "data.sources: given together with data.text"},
      {WithSources("{path: a, weight: 0}"),
       "job.yaml:10: data.sources[0].weight: expected a number above 0 (a "
       "source that is not to be read is removed), found '0'"},
      {WithSources("{path: a}, {path: b, weight: -1}"),
       "data.sources[1].weight: expected a number above 0"},
      {WithSources("{path: a, weight: nan}"), "found 'nan'"},
      {WithSources("{path: a, format: csv}"),
       "data.sources[0].format: expected auto, text, jsonl, parquet or "
       "indexed, found 'csv'"},
      {WithSources("{weight: 1}"),
       "data.sources[0]: expected `path` or `files`, found neither"},
      {WithSources("{path: a, files: [b]}"), "keep one of the two"},
      {WithSources("{files: b}"),
       "data.sources[0].files: expected a list of paths or globs, found 'b'"},
      {WithSources("{path: a, colum: b}"), "did you mean 'column'?"},
      {WithSources("{path: a, path: b}"), "given twice"},
      {WithSources("a.jsonl"), "expected a section such as"},
      {WithSources("{path: a, kind: chats}"),
       "data.sources[0].kind: expected text, chat or preference, found "
       "'chats'"},
      {WithSources("{path: a, kind: chat, train_on: answers}"),
       "expected assistant, completion or all, found 'answers'"},
      {WithSources("{path: a, train_on: all}"),
       "data.sources[0].train_on: given for text"},
      {WithSources("{path: a, kind: chat, format: text}"),
       "expected auto, jsonl or parquet where kind is chat"},
      {WithSources("{path: a, kind: chat}"),
       "data.tokenizer: missing where records are chat"},
      {WithData("{sources: [{path: a, kind: chat}], tokenizer: m, "
                "chat_date: 23.11.2026}"),
       "data.chat_date: expected a date such as 2026-11-23"},
      {absl::StrReplaceAll(
           WithData("{sources: [{path: a, kind: chat}], tokenizer: m}"),
           {{"sequence_length: 32",
             "sequence_length: 32\n  learned_positions: 64"}}),
       "data.packing: expected false where the model has learned positions"},
      {WithSources("{path: a}") +
           "evaluation: {sets: {b: {path: c, weight: 2}}}\n",
       "evaluation.sets.b.weight: unknown key"},
      {WithData("max_bytes: 5\n  sources: [{path: a}]"),
       "data.max_bytes: given together with data.sources"},
  };
  for (const auto& [yaml, message] : kWrong) {
    const absl::StatusOr<JobSpec> job = ParseJob(yaml, "job.yaml");
    ASSERT_FALSE(job.ok()) << yaml;
    EXPECT_THAT(std::string(job.status().message()), HasSubstr(message))
        << yaml;
  }
}

}  // namespace
}  // namespace millrace
