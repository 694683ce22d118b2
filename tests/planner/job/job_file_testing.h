// A small job file, and what is wrong with one.

#ifndef MILLRACE_TESTS_PLANNER_JOB_JOB_FILE_TESTING_H_
#define MILLRACE_TESTS_PLANNER_JOB_JOB_FILE_TESTING_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "planner/job/job_file.h"

namespace millrace {

inline constexpr char kSmallJob[] = R"(name: small
model:
  vocab_size: 100
  hidden: 64
  layers: 2
  heads: 4
  ffn_hidden: 96
  sequence_length: 32
data:
  text: ["/usr/include/**/*.h"]
training:
  steps: 10
  global_batch: 8
  optimizer:
    learning_rate: 1e-3
)";

inline std::string ErrorOf(const std::string& yaml) {
  const absl::StatusOr<JobSpec> job = ParseJob(yaml, "job.yaml");
  if (job.ok()) return "no error";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

// The small job with one text replaced by another.
inline std::string Changed(const std::string& from, const std::string& to) {
  const std::string changed = absl::StrReplaceAll(kSmallJob, {{from, to}});
  EXPECT_NE(changed, kSmallJob) << from;
  return changed;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_JOB_JOB_FILE_TESTING_H_
