#include <cmath>

#include "kernels/optimizer/adamw.h"

namespace millrace {

void AdamWReference(const AdamWArgs& args) {
  const double correction1 = 1.0 - std::pow(args.beta1, args.step);
  const double correction2 = 1.0 - std::pow(args.beta2, args.step);
  for (int64_t i = 0; i < args.num_elements; ++i) {
    const double g = args.gradient_scale * args.gradients[i];
    double p = args.parameters[i];
    p -= args.learning_rate * args.weight_decay * p;
    const double m = args.beta1 * args.exp_avg[i] + (1.0 - args.beta1) * g;
    const double v =
        args.beta2 * args.exp_avg_sq[i] + (1.0 - args.beta2) * g * g;
    p -= args.learning_rate / correction1 * m /
         (std::sqrt(v / correction2) + args.epsilon);
    args.parameters[i] = static_cast<float>(p);
    args.exp_avg[i] = static_cast<float>(m);
    args.exp_avg_sq[i] = static_cast<float>(v);
  }
}

}  // namespace millrace
