// Steps whose loss or gradient is not a number: what ranks found when they ran
// such a step again, and how many there were in a row.

#ifndef MILLRACE_FAULT_BAD_STEPS_H_
#define MILLRACE_FAULT_BAD_STEPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace millrace {

// One rank's report of such a step.
struct BadStepReport {
  int64_t step = 0;
  bool passed = false;  // Run again, all were numbers, and the step counts.
  std::string origin;   // The op of this rank where it began; empty: none.
  // With 8-bit products: the largest magnitude that was copied, and where.
  float largest_amax = 0;
  std::string largest_in;
};

struct BadStepVerdict {
  int64_t step = 0;
  bool passed = false;
  std::vector<std::pair<Rank, std::string>> origins;
  float largest_amax = 0;  // On any rank.
  std::string largest_in;
  Rank largest_on = Rank{-1};  // -1: nothing was copied in 8 bits.
  int32_t num_in_row = 0;      // Skipped ones up to this.
};

class BadSteps {
 public:
  // A generation of so many ranks begins.
  void Begin(int32_t num_ranks);
  // The verdict once all ranks have reported the step.
  std::optional<BadStepVerdict> Note(Rank rank, const BadStepReport& report);

 private:
  int32_t num_ranks_ = 0;
  std::map<int64_t, std::map<Rank, BadStepReport>> reports_;
  int64_t last_skipped_ = -1;
  int32_t num_in_row_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_BAD_STEPS_H_
