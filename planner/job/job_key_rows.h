// How the tables of keys are written. Internal to planner/job/job_keys*.cc.

#ifndef MILLRACE_PLANNER_JOB_JOB_KEY_ROWS_H_
#define MILLRACE_PLANNER_JOB_JOB_KEY_ROWS_H_

#include <limits>
#include <span>

#include "planner/job/job_keys.h"

namespace millrace {

// Sequences of a step. Published runs have at most some ten thousand.
inline constexpr double kMaximumBatch = 1 << 20;
inline constexpr double kMaximumInt32 = std::numeric_limits<int32_t>::max();
// Doubles, which hold the ranges, are exact up to here.
inline constexpr double kMaximumInteger = 9007199254740992;  // 2^53

// The job's name and the keys of its section `model`, which come first.
std::span<const JobKey> ModelKeys();

}  // namespace millrace

// A key, and the member of JobSpec that it sets. A KEY is called as its member.
#define NAMED_KEY(key, member) \
  .path = key, .field = [](JobSpec& job) -> JobField { return &job.member; }
#define KEY(member) NAMED_KEY(#member, member)

#endif  // MILLRACE_PLANNER_JOB_JOB_KEY_ROWS_H_
