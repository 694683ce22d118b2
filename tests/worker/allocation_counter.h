// Counts what a program takes from operator new. Linking allocation_counter.cc
// replaces the global operators.

#ifndef MILLRACE_TESTS_WORKER_ALLOCATION_COUNTER_H_
#define MILLRACE_TESTS_WORKER_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace millrace {

struct AllocationCounts {
  int64_t own;      // In this program's code.
  int64_t library;  // Somewhere below a call into Gloo or OpenMP.
};

// Counts on all threads between Start and Stop.
void StartCountingAllocations();
AllocationCounts StopCountingAllocations();

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_ALLOCATION_COUNTER_H_
