#include <cmath>
#include <numbers>

#include "kernels/pointwise/gelu.h"

namespace millrace {
namespace {

struct Share {
  double p;        // P(x).
  double p_slope;  // P'(x).
};

Share ShareOf(double x, GeluForm form) {
  if (form == GeluForm::kErf) {
    return {0.5 * std::erfc(-x / std::numbers::sqrt2),
            std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi)};
  }
  const double factor = std::sqrt(2.0 / std::numbers::pi);
  const double tanh = std::tanh(factor * (x + 0.044715 * x * x * x));
  return {0.5 * (1.0 + tanh),
          0.5 * (1.0 - tanh * tanh) * factor * (1.0 + 3 * 0.044715 * x * x)};
}

}  // namespace

void GeluForwardReference(const GeluForwardArgs& args) {
  for (int64_t i = 0; i < args.num_elements; ++i) {
    const double x = args.x[i];
    args.y[i] = static_cast<float>(x * ShareOf(x, args.form).p);
  }
}

void GeluBackwardReference(const GeluBackwardArgs& args) {
  for (int64_t i = 0; i < args.num_elements; ++i) {
    const double x = args.x[i];
    const Share share = ShareOf(x, args.form);
    args.d_x[i] =
        static_cast<float>(args.d_y[i] * (share.p + x * share.p_slope));
  }
}

}  // namespace millrace
