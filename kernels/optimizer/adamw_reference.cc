#include <cmath>
#include <vector>

#include "kernels/optimizer/adamw.h"

namespace millrace {

void AdamWReference(const AdamWArgs& args) {
  const double correction1 = 1.0 - std::pow(args.beta1, args.step);
  const double correction2 = 1.0 - std::pow(args.beta2, args.step);
  const int64_t count = args.num_elements;
  std::vector<float> exp_avg(static_cast<size_t>(count));
  std::vector<float> exp_avg_sq(static_cast<size_t>(count));
  DecodeMoments(args.moments, Moment::kFirst, args.exp_avg, 0, count,
                exp_avg.data());
  DecodeMoments(args.moments, Moment::kSecond, args.exp_avg_sq, 0, count,
                exp_avg_sq.data());
  for (size_t i = 0; i < exp_avg.size(); ++i) {
    const double g = args.gradient_scale * args.gradients[i];
    double p = args.parameters[i];
    p -= args.learning_rate * args.weight_decay * p;
    const double m = args.beta1 * exp_avg[i] + (1.0 - args.beta1) * g;
    const double v = args.beta2 * exp_avg_sq[i] + (1.0 - args.beta2) * g * g;
    p -= args.learning_rate / correction1 * m /
         (std::sqrt(v / correction2) + args.epsilon);
    args.parameters[i] = static_cast<float>(p);
    exp_avg[i] = static_cast<float>(m);
    exp_avg_sq[i] = static_cast<float>(v);
  }
  EncodeMoments(args.moments, Moment::kFirst, exp_avg.data(), count,
                args.exp_avg);
  EncodeMoments(args.moments, Moment::kSecond, exp_avg_sq.data(), count,
                args.exp_avg_sq);
}

}  // namespace millrace
