// Compares what training in 8 bits computes under layouts with what it computes
// on one rank.

#ifndef MILLRACE_TESTS_E2E_NUMBERS_OF_ONE_RANK_H_
#define MILLRACE_TESTS_E2E_NUMBERS_OF_ONE_RANK_H_

#include <cstdint>

#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

// Relative differences of losses and of gradient norms.
struct NumberDifferences {
  double first_loss = 0;  // In the first step, whose weights are equal.
  double first_norm = 0;
  double loss = 0;  // The largest of the other steps.
  double norm = 0;
};

// Trains `job` for so many steps on one rank and under layouts that cut it in
// every way, all with products in `format`. Expects differences within
// `allowed`, and prints the largest. In the first step layouts without a tensor
// axis must differ by the order of fp32 sums alone: 1e-12 of the loss, 1e-7 of
// the norm.
void ExpectNumbersOfOneRank(const JobSpec& job, GemmFormat format,
                            int64_t num_steps,
                            const NumberDifferences& allowed);

}  // namespace millrace

#endif  // MILLRACE_TESTS_E2E_NUMBERS_OF_ONE_RANK_H_
