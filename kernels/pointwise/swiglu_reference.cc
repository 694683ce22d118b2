#include <cmath>
#include <numbers>

#include "kernels/pointwise/swiglu.h"

namespace millrace {
namespace {

// The gate's value and slope.
struct Gated {
  double value, slope;
};

Gated GatedOf(GluGate gate, double x) {
  if (gate == GluGate::kSilu) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-x));
    return {x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))};
  }
  const double factor = std::sqrt(2.0 / std::numbers::pi);
  const double tanh = std::tanh(factor * (x + 0.044715 * x * x * x));
  const double p = 0.5 * (1.0 + tanh);
  return {x * p, p + x * 0.5 * (1.0 - tanh * tanh) * factor *
                         (1.0 + 3 * 0.044715 * x * x)};
}

}  // namespace

void SwigluForwardReference(const SwigluForwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t f = 0; f < args.ffn_hidden; ++f) {
      const double gate = args.gate_up[t * 2 * args.ffn_hidden + f];
      const double up = args.gate_up[(t * 2 + 1) * args.ffn_hidden + f];
      args.activation[t * args.ffn_hidden + f] =
          static_cast<float>(GatedOf(args.gate, gate).value * up);
    }
  }
}

void SwigluBackwardReference(const SwigluBackwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t f = 0; f < args.ffn_hidden; ++f) {
      const int64_t gate_idx = t * 2 * args.ffn_hidden + f;
      const int64_t up_idx = gate_idx + args.ffn_hidden;
      const double gate = args.gate_up[gate_idx];
      const double up = args.gate_up[up_idx];
      const double d = args.d_activation[t * args.ffn_hidden + f];
      const Gated gated = GatedOf(args.gate, gate);
      args.d_gate_up[gate_idx] = static_cast<float>(d * up * gated.slope);
      args.d_gate_up[up_idx] = static_cast<float>(d * gated.value);
    }
  }
}

}  // namespace millrace
