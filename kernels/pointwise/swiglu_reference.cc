#include <cmath>

#include "kernels/pointwise/swiglu.h"

namespace millrace {

void SwigluForwardReference(const SwigluForwardArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t f = 0; f < args.ffn_hidden; ++f) {
      const double gate = args.gate_up[t * 2 * args.ffn_hidden + f];
      const double up = args.gate_up[(t * 2 + 1) * args.ffn_hidden + f];
      args.activation[t * args.ffn_hidden + f] =
          static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
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
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      args.d_gate_up[gate_idx] =
          static_cast<float>(d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
      args.d_gate_up[up_idx] = static_cast<float>(d * gate * sigmoid);
    }
  }
}

}  // namespace millrace
