// Lists what could make a recorded step shorter, with the evidence, an upper
// bound on the saving, and the remedy.

#ifndef MILLRACE_PLANNER_DIAGNOSE_HINTS_H_
#define MILLRACE_PLANNER_DIAGNOSE_HINTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/diagnose/trace_analysis.h"

namespace millrace {

struct Hint {
  std::string id;        // "exposed_all-gather": stable, for programs.
  std::string evidence;  // The figures it rests on.
  std::string remedy;
  // The time saved if the cause were gone entirely and nothing else slower.
  // This is a bound and no forecast. The bounds of two hints may cover the same
  // time, so they do not add up.
  int64_t saves_at_most_ns = 0;
};

// Largest bound first; those below a hundredth of the window are left out.
std::vector<Hint> HintsFor(const Diagnosis& diagnosis);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_HINTS_H_
