// Steps whose loss or gradient is not a number: what ranks found when they ran
// such a step again, whether the samples or a device make it, and how many
// there were in a row.

#ifndef MILLRACE_FAULT_BAD_STEPS_H_
#define MILLRACE_FAULT_BAD_STEPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "planner/layout/layout.h"

namespace millrace {

// Whether data replicas can compute each other's samples: equal micro-batches,
// with equal parameters.
bool CanExchangeSamples(const Layout& layout);

// One rank's report of such a step.
struct BadStepReport {
  int64_t step = 0;
  bool passed = false;  // Run again, all were numbers, and the step counts.
  std::string origin;   // The op of this rank where it began; empty: none.
  // With 8-bit products: the largest magnitude that was copied, and where.
  float largest_amax = 0;
  std::string largest_in;
  // The same with the samples of the next data replica, if it did not pass and
  // CanExchangeSamples().
  struct Elsewhere {
    bool passed = false;
    std::string origin;
  };
  std::optional<Elsewhere> elsewhere;
};

// Where the bad values come from, by which replicas made them with their own
// samples and which with others'.
enum class BadStepCause {
  kUnknown,
  kSamples,  // They follow the samples: these, or what the model makes of them.
  kDevices,  // The suspects make them of samples that others compute well.
};

struct BadStepVerdict {
  int64_t step = 0;
  bool passed = false;            // Run again on the same devices.
  bool passed_elsewhere = false;  // With exchanged samples; the step counts.
  BadStepCause cause = BadStepCause::kUnknown;
  std::vector<Rank> suspects;  // Ascending.
  std::vector<std::pair<Rank, std::string>> origins;
  float largest_amax = 0;  // On any rank.
  std::string largest_in;
  Rank largest_on = Rank{-1};  // -1: nothing was copied in 8 bits.
  int32_t num_in_row = 0;      // Skipped ones up to this.
};

class BadSteps {
 public:
  // A generation begins.
  void Begin(const Layout& layout);
  // The verdict once all ranks have reported the step.
  std::optional<BadStepVerdict> Note(Rank rank, const BadStepReport& report);

 private:
  Layout layout_;
  std::map<int64_t, std::map<Rank, BadStepReport>> reports_;
  int64_t last_skipped_ = -1;
  int32_t num_in_row_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_BAD_STEPS_H_
