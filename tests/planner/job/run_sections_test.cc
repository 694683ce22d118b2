// Sections of a job that say what a run does beside training.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kJobOfText[] = R"(name: small
model: {vocab_size: 100, hidden: 64, layers: 2, heads: 4, ffn_hidden: 96, sequence_length: 32}
data: {text: ["/usr/include/**/*.h"]}
training: {steps: 10, global_batch: 8, optimizer: {learning_rate: 1e-3}}
)";

std::string SectionError(const std::string& yaml) {
  const absl::StatusOr<JobSpec> job = ParseJob(yaml, "job.yaml");
  return job.ok() ? "no error" : std::string(job.status().message());
}

// Goal: sets are read by name, and what cannot be evaluated is refused. Method:
// two sets; one slip each.
TEST(RunSectionsTest, ReadsEvaluationSets) {
  const auto with = [](const std::string& evaluation) {
    return absl::StrCat(kJobOfText, "evaluation: {", evaluation, "}\n");
  };
  const absl::StatusOr<JobSpec> job = ParseJob(
      with("interval_steps: 5, sets: {wiki: [a/*.txt, b], code: [c.bin]}"),
      "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::map<std::string, DataSourceSpec> expected = {
      {"wiki", {.files = {"a/*.txt", "b"}, .format = "text"}},
      {"code", {.files = {"c.bin"}, .format = "text"}}};
  EXPECT_EQ(job->evaluation.sets, expected);
  EXPECT_THAT(SectionError(with("interval_steps: 5")),
              HasSubstr("there is nothing to evaluate"));
  for (const char* sets : {"[a]", "{wiki: a}", "{wiki: []}", "{wi/ki: [a]}",
                           "{wiki: [a], wiki: [b]}"}) {
    EXPECT_THAT(SectionError(with(absl::StrCat("sets: ", sets))),
                HasSubstr("evaluation.sets"))
        << sets;
  }
  const std::string synthetic = absl::StrReplaceAll(
      with("sets: {a: [b]}"),
      {{"text: [\"/usr/include/**/*.h\"]", "synthetic: true"}});
  EXPECT_THAT(SectionError(synthetic),
              HasSubstr("given together with data.synthetic"));
}

// Goal: where metrics go is checked before a run, not hours into it. Method:
// one slip each.
TEST(RunSectionsTest, ChecksWhereMetricsGo) {
  const auto with = [](const std::string& metrics) {
    return SectionError(absl::StrCat(kJobOfText, "metrics: {", metrics, "}\n"));
  };
  EXPECT_EQ(with("port: 9400, address: 0.0.0.0, textfile: a/b.prom"),
            "no error");
  EXPECT_THAT(with("address: localhost"),
              HasSubstr("metrics.address: expected an IP address such as "
                        "127.0.0.1 or 0.0.0.0, found 'localhost'"));
  EXPECT_THAT(
      with("textfile: millrace.txt"),
      HasSubstr("metrics.textfile: expected a path that ends in .prom"));
  EXPECT_THAT(with("port: 65536"),
              HasSubstr("metrics.port: expected an integer from 0 to 65535"));
  EXPECT_THAT(with("tensorbord: true"),
              HasSubstr("did you mean 'tensorboard'?"));
}

}  // namespace
}  // namespace millrace
