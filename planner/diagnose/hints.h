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
  std::string id;        // "exposed_all-gather"; programs may rely on it.
  std::string evidence;  // The figures behind the hint.
  std::string remedy;
  // An upper bound: the time saved if the cause vanished and nothing else got
  // slower. It is no forecast. Bounds of two hints may cover the same time, so
  // they do not add up.
  int64_t saves_at_most_ns = 0;
};

// Returns hints with the largest bound first. Leaves out those below a
// hundredth of the window.
std::vector<Hint> HintsFor(const Diagnosis& diagnosis);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_HINTS_H_
