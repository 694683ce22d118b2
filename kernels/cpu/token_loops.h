// Loops over single tokens: RoPE, SwiGLU, GELU, embedding gradients, and the
// softmax over the vocabulary. All are bound by memory traffic but for the
// exponentials.

#ifndef MILLRACE_KERNELS_CPU_TOKEN_LOOPS_H_
#define MILLRACE_KERNELS_CPU_TOKEN_LOOPS_H_

#include "kernels/cpu/vector.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/pointwise/gelu.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/swiglu.h"
#include "kernels/vocabulary/embedding.h"

namespace millrace {
namespace {

void RopeLoop(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t half = args.num_turned() / 2;
  const int64_t num_rotated = args.num_heads + args.num_kv_heads;
  const int64_t row = (num_rotated + args.num_kv_heads) * args.head_dim;
  const float sign = args.inverse ? -1.0f : 1.0f;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = t % args.sequence_length;
    const float* cosines = args.table + position * half;
    const float* sines = cosines + args.sequence_length * half;
    for (int64_t head = 0; head < num_rotated; ++head) {
      float* first = args.qkv + t * row + head * args.head_dim;
      float* second = first + half;
      ForEachVector(0, half, [=](const auto& load, const auto& store) {
        const Floats cosine = load(cosines);
        const Floats sine = load(sines) * sign;
        const Floats a = load(first);
        const Floats b = load(second);
        store(first, a * cosine - b * sine);
        store(second, b * cosine + a * sine);
      });
    }
  }
}

// A gate's or an activation's value and slope.
struct Gated {
  Floats value, slope;
};

inline Gated SiluGate(Floats x) {
  const Floats sigmoid = 1.0f / (1.0f + Exp(-x));
  const Floats silu = x * sigmoid;
  return {silu, sigmoid + silu * (1.0f - sigmoid)};
}

// In the tanh form P(x) = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which no
// cancellation spoils; kGeluFactor is 2 sqrt(2 / pi).
inline Gated TanhGelu(Floats x) {
  constexpr float kGeluFactor = 1.59576912160573071f;
  constexpr float kGeluCubic = 0.044715f;
  const Floats square = x * x;
  const Floats beyond =
      1.0f + Exp(-kGeluFactor * x * (1.0f + kGeluCubic * square));
  const Floats p = 1.0f / beyond;
  const Floats slope = kGeluFactor * (1.0f + 3 * kGeluCubic * square);
  return {x / beyond, p + x * slope * p * (1.0f - p)};
}

// Through erfc(z) = exp(-z^2) times a polynomial of 1 / (1 + 0.327 z)
// (Hastings, "Approximations for Digital Computers", 1955), good to 1.4e-7.
inline Gated ErfGelu(Floats x) {
  constexpr float kRootHalf = 0.70710678118654752f;
  constexpr float kDensityAtZero = 0.39894228040143268f;  // 1 / sqrt(2 pi).
  const Floats t = 1.0f / (1.0f + 0.3275911f * kRootHalf * Maximum(x, -x));
  const Floats polynomial =
      t * (0.254829592f +
           t * (-0.284496736f +
                t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const Floats bell = Exp(-0.5f * x * x);
  const Floats beyond = 0.5f * polynomial * bell;
  const Floats p = x < 0.0f ? beyond : 1.0f - beyond;
  return {x * p, p + x * (kDensityAtZero * bell)};
}

// Calls body with the function of the form.
template <typename Body>
inline void WithGeluForm(GeluForm form, const Body& body) {
  if (form == GeluForm::kErf) {
    body([](Floats x) { return ErfGelu(x); });
  } else {
    body([](Floats x) { return TanhGelu(x); });
  }
}

template <typename Gate>
inline void GluForwardLoop(const SwigluForwardArgs& args, int64_t begin,
                           int64_t end, const Gate& gate_of) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = args.gate_up + t * 2 * args.ffn_hidden;
    const float* up = gate + args.ffn_hidden;
    float* activation = args.activation + t * args.ffn_hidden;
    ForEachVector(0, args.ffn_hidden, [=](const auto& load, const auto& store) {
      store(activation, gate_of(load(gate)) * load(up));
    });
  }
}

void SwigluForwardLoop(const SwigluForwardArgs& args, int64_t begin,
                       int64_t end) {
  if (args.gate == GluGate::kGelu) {
    GluForwardLoop(args, begin, end,
                   [](Floats x) { return TanhGelu(x).value; });
  } else {
    GluForwardLoop(args, begin, end,
                   [](Floats x) { return x / (1.0f + Exp(-x)); });
  }
}

template <typename Gate>
inline void GluBackwardLoop(const SwigluBackwardArgs& args, int64_t begin,
                            int64_t end, const Gate& gate_of) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = args.gate_up + t * 2 * args.ffn_hidden;
    const float* up = gate + args.ffn_hidden;
    const float* d_activation = args.d_activation + t * args.ffn_hidden;
    float* d_gate = args.d_gate_up + t * 2 * args.ffn_hidden;
    float* d_up = d_gate + args.ffn_hidden;
    ForEachVector(0, args.ffn_hidden, [=](const auto& load, const auto& store) {
      const Gated gated = gate_of(load(gate));
      const Floats d = load(d_activation);
      const Floats d_times_up = d * load(up);
      store(d_gate, d_times_up * gated.slope);
      store(d_up, d * gated.value);
    });
  }
}

void SwigluBackwardLoop(const SwigluBackwardArgs& args, int64_t begin,
                        int64_t end) {
  if (args.gate == GluGate::kGelu) {
    GluBackwardLoop(args, begin, end, [](Floats x) { return TanhGelu(x); });
  } else {
    GluBackwardLoop(args, begin, end, [](Floats x) { return SiluGate(x); });
  }
}

void GeluForwardLoop(const GeluForwardArgs& args, int64_t begin, int64_t end) {
  WithGeluForm(args.form, [&](const auto& gelu) {
    const float* from = args.x;
    float* y = args.y;
    ForEachVector(begin, end, [=](const auto& load, const auto& store) {
      store(y, gelu(load(from)).value);
    });
  });
}

void GeluBackwardLoop(const GeluBackwardArgs& args, int64_t begin,
                      int64_t end) {
  WithGeluForm(args.form, [&](const auto& gelu) {
    const float* from = args.x;
    const float* d_y = args.d_y;
    float* d_x = args.d_x;
    ForEachVector(begin, end, [=](const auto& load, const auto& store) {
      store(d_x, load(d_y) * gelu(load(from)).slope);
    });
  });
}

void EmbeddingBackwardLoop(const EmbeddingBackwardArgs& args, int64_t begin,
                           int64_t end) {
  if (!args.accumulate) {
    for (int64_t row = 0; row < args.vocab_rows; ++row) {
      float* d_weight = args.d_weight + row * args.hidden;
      ForEachVector(begin, end, [=](const auto&, const auto& store) {
        store(d_weight, Floats{});
      });
    }
  }
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int64_t row = args.tokens[t] - args.vocab_begin;
    if (row < 0 || row >= args.vocab_rows) continue;
    float* d_weight = args.d_weight + row * args.hidden;
    const float* d_x = args.d_x + t * args.hidden;
    const float scale = args.scale;
    ForEachVector(begin, end, [=](const auto& load, const auto& store) {
      store(d_weight, load(d_weight) + load(d_x) * scale);
    });
  }
}

float MaximumLoop(const float* x, int64_t num_elements) {
  Floats maximum = Broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= num_elements; i += kLanes) {
    maximum = Maximum(maximum, Load(x + i));
  }
  float result = MaximumOfLanes(maximum);
  for (; i < num_elements; ++i) result = result > x[i] ? result : x[i];
  return result;
}

constexpr float kLog2E = 1.44269504088896341f;

// e^(x - maximum) with the cheap exponential; terms below 2^-126 of the largest
// count as nothing.
inline Floats ShiftedExp(Floats x, float maximum) {
  return Exp2Flushed((x - maximum) * kLog2E);
}

float ExponentialsLoop(float* logits, int64_t num_logits, float maximum) {
  Floats sums = {};
  int64_t i = 0;
  for (; i + kLanes <= num_logits; i += kLanes) {
    const Floats value = ShiftedExp(Load(logits + i), maximum);
    Store(logits + i, value);
    sums += value;
  }
  float total = SumOfLanes(sums);
  if (i < num_logits) {
    const Floats last =
        ShiftedExp(LoadPartial(logits + i, num_logits - i), maximum);
    StorePartial(logits + i, last, num_logits - i);
    for (int64_t lane = 0; lane < num_logits - i; ++lane) total += last[lane];
  }
  return total;
}

// The same sum, and the logits stay.
float SumExponentialsLoop(const float* logits, int64_t num_logits,
                          float maximum) {
  Floats sums = {};
  int64_t i = 0;
  for (; i + kLanes <= num_logits; i += kLanes) {
    sums += ShiftedExp(Load(logits + i), maximum);
  }
  float total = SumOfLanes(sums);
  if (i < num_logits) {
    const Floats last =
        ShiftedExp(LoadPartial(logits + i, num_logits - i), maximum);
    for (int64_t lane = 0; lane < num_logits - i; ++lane) total += last[lane];
  }
  return total;
}

void CapLoop(float* x, int64_t num_elements, float cap) {
  ForEachVector(0, num_elements, [=](const auto& load, const auto& store) {
    store(x, cap * Tanh(load(x) / cap));
  });
}

void CappedGradientLoop(float* logits, int64_t num_logits, float maximum,
                        float factor, float cap) {
  ForEachVector(0, num_logits, [=](const auto& load, const auto& store) {
    const Floats logit = load(logits);
    const Floats share = logit / cap;
    store(logits, ShiftedExp(logit, maximum) * factor * (1.0f - share * share));
  });
}

void ScaleLoop(float* x, int64_t num_elements, float factor) {
  ForEachVector(0, num_elements, [=](const auto& load, const auto& store) {
    store(x, load(x) * factor);
  });
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_TOKEN_LOOPS_H_
