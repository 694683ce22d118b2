// Flat helpers: zero, add and squared norm.

#ifndef MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_H_
#define MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace millrace {

// out = a + b; out may alias either.
struct AddArgs {
  float* out;
  const float* a;
  const float* b;
  int64_t num_elements;
};

// *sum += share * sum of x[i]^2, in double, in an order that depends on
// num_elements alone.
struct SquaredNormArgs {
  double* sum;
  const float* x;
  int64_t num_elements;
  double share = 1;
};

// All return InvalidArgument if num_elements is negative or num_threads below
// one. Results do not depend on num_threads.
absl::Status Zero(void* x, int64_t num_bytes, int num_threads);
absl::Status Add(const AddArgs& args, int num_threads);
absl::Status SquaredNorm(const SquaredNormArgs& args, int num_threads);

// The meaning of the kernels in plain loops.
void AddReference(const AddArgs& args);
void SquaredNormReference(const SquaredNormArgs& args);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_POINTWISE_ELEMENTWISE_H_
