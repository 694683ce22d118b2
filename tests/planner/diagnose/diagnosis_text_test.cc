#include "planner/diagnose/diagnosis_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "planner/diagnose/trace_reader.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kSample[] = "tests/data/diagnose/three_steps.json";

class DiagnosisTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Trace> trace = LoadTrace(kSample);
    ASSERT_TRUE(trace.ok()) << trace.status();
    trace_ = *std::move(trace);
    absl::StatusOr<Diagnosis> diagnosis = Diagnose(trace_, {});
    ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
    diagnosis_ = *std::move(diagnosis);
  }
  Trace trace_;
  Diagnosis diagnosis_;
};

// Goal: the sample, from file to JSON, gives the figures that it was written
// with. Method: the events of step 13 and the durations of some kernels, as
// they stand in the file; the parts add up; every hint is within its bounds.
TEST_F(DiagnosisTextTest, DiagnosesTheSample) {
  const Json json = Json::parse(DiagnosisToJson("t", trace_, diagnosis_));
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["world_size"], 8);
  EXPECT_EQ(json["gpu_events"], 72);
  EXPECT_EQ(json["step"], 13);
  ASSERT_EQ(json["steps"].size(), 3);
  const Json& gpu = json["devices"][0];
  EXPECT_EQ(gpu["kernels"], 22);
  EXPECT_EQ(gpu["compute_kernels"], 18);
  EXPECT_EQ(gpu["streams"].size(), 2);
  EXPECT_EQ(gpu["copies"].size(), 2);
  EXPECT_EQ(gpu["collectives"]["all-gather"]["kernels"], 2);
  EXPECT_NEAR(gpu["collectives"]["all-gather"]["busy_s"], 2 * 96.512e-6, 1e-12);
  EXPECT_NEAR(gpu["compute_by_category"]["attention"]["share_s"], 2 * 64.064e-6,
              1e-12);
  EXPECT_EQ(gpu["largest_gaps"][0]["cause"], "synchronize");
  EXPECT_EQ(gpu["largest_gaps"][0]["op"], "aten::_fused_adamw_");
  double parts = 0;
  for (const char* part :
       {"compute_s", "exposed_communication_s", "exposed_copy_s", "idle_s"}) {
    parts += gpu["time"][part].get<double>();
  }
  EXPECT_NEAR(parts, gpu["time"]["window_s"].get<double>(), 1e-12);
  for (const Json& hint : json["hints"]) {
    EXPECT_GT(hint["saves_at_most_s"], 0.01 * parts) << hint;
    EXPECT_LE(hint["saves_at_most_s"], parts) << hint;
  }
}

// Goal: the text shows every section, and its lines stay readable. Method: the
// sections' own words; no tabs, no space at the end of a line.
TEST_F(DiagnosisTextTest, PrintsEverySection) {
  const std::string text = DiagnosisToText("t.json", trace_, diagnosis_);
  for (const char* expected :
       {"trace    t.json: 72 GPU events", "job      rank 0 of 8",
        "window   step 13, the median of 3", "GPU 0, NVIDIA H100", "GEMM",
        "communication, exposed", "all-gather", "Memcpy HtoD", "synchronize",
        "stream", "largest gaps", "category",
        "hints:", "exposed_reduce-scatter: at most"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_FALSE(absl::EndsWith(line, " ")) << line;
    EXPECT_LE(line.size(), 150) << line;
  }
}

// Goal: names of any bytes do not break the JSON. Method: an event whose name
// holds a quote, and in the Trace itself bytes that are no UTF-8.
TEST_F(DiagnosisTextTest, WritesAnyName) {
  for (std::string& name : trace_.names) name += "\"\xff";
  const absl::StatusOr<Diagnosis> diagnosis = Diagnose(trace_, {});
  ASSERT_TRUE(diagnosis.ok());
  EXPECT_TRUE(Json::accept(DiagnosisToJson("t", trace_, *diagnosis)));
}

// Goal: several devices print a sum; skipped events and missing steps are
// said. Method: a trace of two kernels on two devices and a useless one.
TEST(DiagnosisTextOfDevicesTest, SaysWhatIsMissing) {
  std::istringstream input(R"({"traceEvents": [
      {"ph": "X", "cat": "kernel", "name": "a", "ts": 0, "dur": 5, "pid": 0},
      {"ph": "X", "cat": "kernel", "name": "b", "ts": 1, "dur": 5, "pid": 1},
      {"ph": "X", "cat": "kernel", "name": "c", "ts": 1, "pid": 1}]})");
  const absl::StatusOr<Trace> trace = ReadTrace(input, "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const absl::StatusOr<Diagnosis> diagnosis = Diagnose(*trace, {});
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  const std::string text = DiagnosisToText("t", *trace, *diagnosis);
  EXPECT_THAT(text, HasSubstr("all GPUs, in device-seconds"));
  EXPECT_THAT(text, HasSubstr("skipped  1 GPU events"));
  EXPECT_THAT(text, HasSubstr("no ProfilerStep# annotations"));
}

}  // namespace
}  // namespace millrace
