#include "kernels/pointwise/qk_norm_rope.h"

#include <cmath>
#include <vector>

#include "kernels/pointwise/rope.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;
using Doubles = std::vector<double>;

constexpr double kNormEpsilon = 1e-3;

const std::vector<QkNormRopeShape> kNormedShapes = {
    {1, 1, 1, 1, 2}, {7, 3, 2, 1, 6}, {10, 5, 4, 2, 34}, {90, 30, 3, 3, 40}};

// The definition in double, on whole rows.
Doubles NormedAndTurned(const QkNormRopeShape& shape, const Doubles& qkv,
                        const Doubles& q_weight, const Doubles& k_weight,
                        const std::vector<float>& table) {
  Doubles out = qkv;
  const int64_t half = shape.head_dim / 2;
  for (int64_t t = 0; t < shape.num_tokens; ++t) {
    const int64_t position = t % shape.sequence_length;
    for (int64_t head = 0; head < shape.num_normed(); ++head) {
      const Doubles& weight = head < shape.num_heads ? q_weight : k_weight;
      double* x = out.data() + t * shape.row() + head * shape.head_dim;
      double squares = 0;
      for (int64_t i = 0; i < shape.head_dim; ++i) squares += x[i] * x[i];
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(shape.head_dim) +
                        kNormEpsilon);
      for (int64_t i = 0; i < half; ++i) {
        const double cosine = table[position * half + i];
        const double sine =
            table[(shape.sequence_length + position) * half + i];
        const double a = x[i] * rstd * weight[i];
        const double b = x[i + half] * rstd * weight[i + half];
        x[i] = a * cosine - b * sine;
        x[i + half] = b * cosine + a * sine;
      }
    }
  }
  return out;
}

struct NormedCase {
  explicit NormedCase(const QkNormRopeShape& shape)
      : shape(shape),
        qkv(random(shape.num_tokens * shape.row())),
        q_weight(random(shape.head_dim)),
        k_weight(random(shape.head_dim)),
        table(RopeTableBytes(shape.sequence_length, shape.head_dim) / 4) {
    EXPECT_TRUE(FillRopeTable(table.data(), shape.sequence_length,
                              shape.head_dim, 300.0)
                    .ok());
  }

  // qkv, raw, rstd.
  Outputs Forward(int num_threads) const {
    const int64_t num_heads = shape.num_tokens * shape.num_normed();
    Outputs out = {qkv, Poisoned(num_heads * shape.head_dim),
                   Poisoned(num_heads)};
    EXPECT_TRUE(QkNormRopeForward({.qkv = out[0].data(),
                                   .raw = out[1].data(),
                                   .rstd = out[2].data(),
                                   .q_weight = q_weight.data(),
                                   .k_weight = k_weight.data(),
                                   .table = table.data(),
                                   .epsilon = static_cast<float>(kNormEpsilon),
                                   .shape = shape},
                                  num_threads)
                    .ok());
    return out;
  }

  RandomFloats random{3};
  QkNormRopeShape shape;
  std::vector<float> qkv, q_weight, k_weight, table;
};

Doubles Widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// Goal: the forward pass means what the definition says, leaves values alone
// and keeps the heads as they were. Method: the definition in double.
TEST(QkNormRopeTest, ForwardMatchesTheDefinition) {
  for (const QkNormRopeShape& shape : kNormedShapes) {
    const NormedCase c(shape);
    const Doubles expected =
        NormedAndTurned(shape, Widened(c.qkv), Widened(c.q_weight),
                        Widened(c.k_weight), c.table);
    std::vector<float> raw, rstd;
    for (int64_t t = 0; t < shape.num_tokens; ++t) {
      for (int64_t head = 0; head < shape.num_normed(); ++head) {
        double squares = 0;
        for (int64_t i = 0; i < shape.head_dim; ++i) {
          raw.push_back(c.qkv[t * shape.row() + head * shape.head_dim + i]);
          squares += double{raw.back()} * raw.back();
        }
        rstd.push_back(static_cast<float>(
            1 / std::sqrt(squares / static_cast<double>(shape.head_dim) +
                          kNormEpsilon)));
      }
    }
    ExpectKernelMatches({{expected.begin(), expected.end()}, raw, rstd}, 2e-6,
                        [&](int threads) { return c.Forward(threads); });
  }
}

// Goal: the backward pass is the derivative of the forward pass, written or
// added. Method: central differences of the definition in double, of a random
// weighing of its outputs.
TEST(QkNormRopeTest, BackwardIsTheDerivative) {
  for (const QkNormRopeShape& shape : kNormedShapes) {
    if (shape.num_tokens > 10) continue;  // Differences take their time.
    NormedCase c(shape);
    const std::vector<float> d_out = c.random(shape.num_tokens * shape.row());
    Doubles inputs[] = {Widened(c.qkv), Widened(c.q_weight),
                        Widened(c.k_weight)};
    const auto weighed = [&] {
      const Doubles out =
          NormedAndTurned(shape, inputs[0], inputs[1], inputs[2], c.table);
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * d_out[i];
      return sum;
    };
    Outputs derivatives;
    for (Doubles& input : inputs) {
      std::vector<float>& derivative = derivatives.emplace_back();
      for (double& x : input) {
        constexpr double kStep = 1e-5;
        const double before = x;
        x = before + kStep;
        const double above = weighed();
        x = before - kStep;
        derivative.push_back(
            static_cast<float>((above - weighed()) / (2 * kStep)));
        x = before;
      }
    }
    const Outputs forward = c.Forward(1);
    const std::vector<float> before = c.random(shape.head_dim);
    for (const bool accumulate : {false, true}) {
      Outputs expected = derivatives;
      for (const size_t weight : {1, 2}) {
        for (int64_t i = 0; accumulate && i < shape.head_dim; ++i) {
          expected[weight][i] += before[i];
        }
      }
      ExpectKernelMatches(expected, 5e-6, [&](int threads) {
        Outputs d = {d_out, accumulate ? before : Poisoned(shape.head_dim),
                     accumulate ? before : Poisoned(shape.head_dim)};
        EXPECT_TRUE(QkNormRopeBackward({.d_qkv = d[0].data(),
                                        .d_q_weight = d[1].data(),
                                        .d_k_weight = d[2].data(),
                                        .raw = forward[1].data(),
                                        .rstd = forward[2].data(),
                                        .q_weight = c.q_weight.data(),
                                        .k_weight = c.k_weight.data(),
                                        .table = c.table.data(),
                                        .shape = shape,
                                        .accumulate = accumulate},
                                       threads)
                        .ok());
        return d;
      });
    }
  }
}

TEST(QkNormRopeTest, RefusesBadShapes) {
  for (const QkNormRopeShape& shape :
       {QkNormRopeShape{1, 1, 1, 1, 3}, QkNormRopeShape{1, 0, 1, 1, 2},
        QkNormRopeShape{1, 1, 0, 1, 2}, QkNormRopeShape{-1, 1, 1, 1, 2}}) {
    EXPECT_EQ(QkNormRopeForward({.shape = shape}, 1).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(QkNormRopeBackward({.shape = shape}, 1).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
