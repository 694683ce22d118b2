#include "kernels/pointwise/elementwise.h"

namespace millrace {

void AddReference(const AddArgs& args) {
  for (int64_t i = 0; i < args.num_elements; ++i) {
    args.out[i] = args.a[i] + args.b[i];
  }
}

void SquaredNormReference(const SquaredNormArgs& args) {
  double sum = 0.0;
  for (int64_t i = 0; i < args.num_elements; ++i) {
    sum += double{args.x[i]} * args.x[i];
  }
  *args.sum += args.share * sum;
}

}  // namespace millrace
