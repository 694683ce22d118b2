// The sum that every reducing communicator takes: over the members in the order
// of their index, so that equal runs give equal bits whichever way the data
// travelled.

#ifndef MILLRACE_WORKER_COMMUNICATE_REDUCTION_H_
#define MILLRACE_WORKER_COMMUNICATE_REDUCTION_H_

#include <cstdint>
#include <span>

#include "planner/program/ops.h"

namespace millrace {

// Elements [begin, end) of `num_elements` that member `index` of `size`
// reduces; as even as can be.
struct ElementRange {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};
ElementRange SliceOf(int64_t num_elements, int32_t size, int32_t index);

// out[e] = terms[0][e] + terms[1][e] + ...; `out` may be one of the terms.
// dtype kFloat32, kFloat64, or kBfloat16, which is summed in fp32 and rounded
// once.
void SumInOrder(std::span<const void* const> terms, void* out,
                int64_t num_elements, DType dtype);

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_REDUCTION_H_
