#include "kernels/attention/attention_fp8_host.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention/attention_fp8_quantize.h"
#include "tests/kernels/fp8_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

constexpr AttentionFp8Shape kShapes[] = {{.num_sequences = 1,
                                          .sequence_length = 1,
                                          .num_heads = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = 64},
                                         {.num_sequences = 2,
                                          .sequence_length = 63,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .head_dim = 128},
                                         {.num_sequences = 2,
                                          .sequence_length = 2 * kFp8KeyBlock,
                                          .num_heads = 2,
                                          .num_kv_heads = 2,
                                          .head_dim = 64},
                                         {.num_sequences = 1,
                                          .sequence_length = 601,
                                          .num_heads = 3,
                                          .num_kv_heads = 1,
                                          .head_dim = 128}};

int64_t NumTokens(const AttentionFp8Shape& shape) {
  return shape.num_sequences * shape.sequence_length;
}

// The copies of a packed projection, poisoned before.
struct Copies {
  explicit Copies(const AttentionFp8Shape& shape)
      : q(NumTokens(shape) * shape.num_heads * shape.head_dim, 0x55),
        k(NumTokens(shape) * shape.num_kv_heads * shape.head_dim, 0x55),
        v(Fp8ValueBytes(shape), 0x55),
        q_scale(Poisoned(shape.num_sequences * shape.num_heads *
                         NumFp8QueryBlocks(shape))),
        k_scale(Poisoned(shape.num_sequences * shape.num_kv_heads *
                         NumFp8KeyBlocks(shape))),
        v_scale(k_scale) {}
  friend bool operator==(const Copies&, const Copies&) = default;

  Fp8s q, k, v;
  std::vector<float> q_scale, k_scale, v_scale;
};

// Head `head` of token `t` of sequence `b` in a tensor of `heads` heads.
int64_t RowOf(const AttentionFp8Shape& shape, int64_t heads, int64_t b,
              int64_t t, int64_t head) {
  return ((b * shape.sequence_length + t) * heads + head) * shape.head_dim;
}

double ScaleAt(const AttentionFp8Shape& shape, const std::vector<float>& scale,
               int64_t heads, int64_t block, int64_t b, int64_t t,
               int64_t head) {
  const int64_t num_blocks = (shape.sequence_length + block - 1) / block;
  return scale[(b * heads + head) * num_blocks + t / block];
}

// Random rows of unlike magnitudes, some elements of which are outliers.
std::vector<float> UnevenProjection(const AttentionFp8Shape& shape) {
  const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
  std::vector<float> qkv =
      RandomFloats(7)(NumTokens(shape) * all * shape.head_dim);
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (i % 97 == 0) qkv[i] *= 20;
    qkv[i] = std::ldexp(qkv[i], static_cast<int>(i / 40000 % 5));
  }
  return qkv;
}

Copies Quantized(const AttentionFp8Shape& shape, const std::vector<float>& qkv,
                 int num_threads = 1) {
  Copies out(shape);
  const absl::Status status =
      QuantizeQkv({.q = out.q.data(),
                   .k = out.k.data(),
                   .v = out.v.data(),
                   .q_scale = out.q_scale.data(),
                   .k_scale = out.k_scale.data(),
                   .v_scale = out.v_scale.data(),
                   .qkv = qkv.data(),
                   .signs = {kFp8Signs[0], kFp8Signs[1]},
                   .shape = shape},
                  num_threads);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// By the definition in attention_fp8_quantize.h.
std::vector<double> Transformed(const float* row, int64_t dim) {
  std::vector<double> result(dim);
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < dim; ++j) {
      const bool minus = (std::popcount(static_cast<uint64_t>(i & j)) +
                          (kFp8Signs[j / 64] >> (j % 64))) &
                         1;
      result[i] += minus ? -row[j] : row[j];
    }
    result[i] /= std::sqrt(static_cast<double>(dim));
  }
  return result;
}

// Goal: copies are what attention_fp8_quantize.h says, on any number of
// threads. Method: what each number stands for beside its definition in fp64,
// within half a step of e4m3; the largest of each block is 448.
TEST(QuantizeQkvTest, GivesTheCopiesOfItsDefinition) {
  for (const AttentionFp8Shape& shape : kShapes) {
    const std::vector<float> qkv = UnevenProjection(shape);
    const Copies out = Quantized(shape, qkv);
    EXPECT_EQ(Quantized(shape, qkv, 3), out);
    const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
    const auto check = [&](int64_t heads, int64_t first, int64_t block,
                           const std::vector<float>& scale, bool is_value,
                           const auto& bits_at) {
      std::vector<double> largest(scale.size());
      for (int64_t b = 0; b < shape.num_sequences; ++b) {
        for (int64_t t = 0; t < shape.sequence_length; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            const float* in = &qkv[RowOf(shape, all, b, t, first + h)];
            const std::vector<double> row =
                is_value ? std::vector<double>(in, in + shape.head_dim)
                         : Transformed(in, shape.head_dim);
            const double unit = ScaleAt(shape, scale, heads, block, b, t, h);
            const int64_t num_blocks =
                (shape.sequence_length + block - 1) / block;
            double& most = largest[(b * heads + h) * num_blocks + t / block];
            for (int64_t d = 0; d < shape.head_dim; ++d) {
              const double value = FromFp8(bits_at(b, t, h, d)) * unit;
              ASSERT_NEAR(value, row[d],
                          std::max(std::fabs(row[d]) / 15.9, unit * 0x1p-10));
              most = std::max(most, std::fabs(value));
            }
          }
        }
      }
      for (size_t i = 0; i < scale.size(); ++i) {
        EXPECT_NEAR(largest[i] / scale[i], 448, 1e-3) << i;
      }
    };
    const auto packed = [&](const Fp8s& bytes, int64_t heads) {
      return [&, heads](int64_t b, int64_t t, int64_t h, int64_t d) {
        return bytes[RowOf(shape, heads, b, t, h) + d];
      };
    };
    check(shape.num_heads, 0, kFp8QueryBlock, out.q_scale, false,
          packed(out.q, shape.num_heads));
    check(shape.num_kv_heads, shape.num_heads, kFp8KeyBlock, out.k_scale, false,
          packed(out.k, shape.num_kv_heads));
    check(shape.num_kv_heads, shape.num_heads + shape.num_kv_heads,
          kFp8KeyBlock, out.v_scale, true,
          [&](int64_t b, int64_t t, int64_t h, int64_t d) {
            return out.v[Fp8ValueOffset(shape, b, h, t, d)];
          });
    const int64_t padding =
        std::count(out.v.begin(), out.v.end(), uint8_t{0x55});
    EXPECT_LT(padding, static_cast<int64_t>(out.v.size()) / 50);
  }
}

// Starts of documents of about 50 tokens, or of whole sequences.
std::vector<int32_t> Starts(const AttentionFp8Shape& shape, bool documents) {
  std::vector<int32_t> starts;
  for (int64_t t = 0; t < NumTokens(shape); ++t) {
    const auto position = static_cast<int32_t>(t % shape.sequence_length);
    const bool begins = documents && position % 53 == 17;
    starts.push_back(position == 0 ? 0 : begins ? position : starts.back());
  }
  return starts;
}

struct Attended {
  std::vector<float> o, lse;
  friend bool operator==(const Attended&, const Attended&) = default;
};

Attended Attend(const AttentionFp8Shape& shape, const Copies& copies,
                const std::vector<int32_t>& starts, int num_threads = 1) {
  Attended out = {Poisoned(NumTokens(shape) * shape.num_heads * shape.head_dim),
                  Poisoned(NumTokens(shape) * shape.num_heads)};
  const absl::Status status =
      AttentionForwardFp8({.o = out.o.data(),
                           .lse = out.lse.data(),
                           .q = copies.q.data(),
                           .k = copies.k.data(),
                           .v = copies.v.data(),
                           .q_scale = copies.q_scale.data(),
                           .k_scale = copies.k_scale.data(),
                           .v_scale = copies.v_scale.data(),
                           .document_starts = starts.data(),
                           .shape = shape},
                          num_threads);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// Goal: attention means what attention.h says of the numbers that the copies
// stand for, and rounds exponentials to e4m3. Method: beside fp64, with and
// without documents, where one block's values are next to nothing. Four bits
// put o off by 2.6e-2 of its norm, so the band is 1e-2 to 4e-2 where a row has
// many keys; LSE is of what was not rounded.
TEST(AttentionForwardFp8Test, IsOffByTheRoundingOfExponentials) {
  for (const AttentionFp8Shape& shape : kShapes) {
    for (const bool documents : {false, true}) {
      const int64_t kv_heads = shape.num_kv_heads;
      Copies copies = Quantized(shape, UnevenProjection(shape));
      if (NumFp8KeyBlocks(shape) > 1) copies.v_scale[0] = 0x1p-60f;
      const std::vector<int32_t> starts = Starts(shape, documents);
      const Attended out = Attend(shape, copies, starts);
      EXPECT_EQ(Attend(shape, copies, starts, 3), out);
      const auto scores_to = [&](int64_t b, int64_t h, int64_t t, int64_t j) {
        const int64_t kv = h / (shape.num_heads / kv_heads);
        double sum = 0;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          sum += FromFp8(copies.q[RowOf(shape, shape.num_heads, b, t, h) + d]) *
                 FromFp8(copies.k[RowOf(shape, kv_heads, b, j, kv) + d]);
        }
        return sum / std::sqrt(static_cast<double>(shape.head_dim)) *
               ScaleAt(shape, copies.q_scale, shape.num_heads, kFp8QueryBlock,
                       b, t, h) *
               ScaleAt(shape, copies.k_scale, kv_heads, kFp8KeyBlock, b, j, kv);
      };
      double error = 0, norm = 0;
      for (int64_t b = 0; b < shape.num_sequences; ++b) {
        for (int64_t h = 0; h < shape.num_heads; ++h) {
          const int64_t kv = h / (shape.num_heads / kv_heads);
          for (int64_t t = 0; t < shape.sequence_length; ++t) {
            const int64_t token = b * shape.sequence_length + t;
            std::vector<double> scores;
            for (int64_t j = starts[token]; j <= t; ++j) {
              scores.push_back(scores_to(b, h, t, j));
            }
            const double most = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (const double s : scores) sum += std::exp(s - most);
            const double lse = most + std::log(sum);
            ASSERT_NEAR(out.lse[h * NumTokens(shape) + token], lse,
                        1e-5 * (1 + std::fabs(most)));
            for (int64_t d = 0; d < shape.head_dim; ++d) {
              double o = 0;
              for (int64_t j = starts[token]; j <= t; ++j) {
                o += std::exp(scores[j - starts[token]] - lse) *
                     FromFp8(copies.v[Fp8ValueOffset(shape, b, kv, j, d)]) *
                     ScaleAt(shape, copies.v_scale, kv_heads, kFp8KeyBlock, b,
                             j, kv);
              }
              const double actual =
                  out.o[RowOf(shape, shape.num_heads, b, t, h) + d];
              error += (actual - o) * (actual - o);
              norm += o * o;
            }
          }
        }
      }
      EXPECT_LT(std::sqrt(error / norm), 4e-2);
      if (shape.sequence_length > 1) {
        EXPECT_GT(std::sqrt(error / norm), 3e-3);
      }
    }
  }
}

// Goal: what cannot be is refused by name.
TEST(AttentionForwardFp8Test, RefusesWhatCannotBe) {
  const AttentionFp8Shape good = kShapes[1];
  const auto message = [&](const AttentionFp8Shape& shape,
                           std::vector<int32_t> starts, int num_threads) {
    return std::string(AttentionForwardFp8({.o = nullptr,
                                            .lse = nullptr,
                                            .q = nullptr,
                                            .k = nullptr,
                                            .v = nullptr,
                                            .q_scale = nullptr,
                                            .k_scale = nullptr,
                                            .v_scale = nullptr,
                                            .document_starts = starts.data(),
                                            .shape = shape},
                                           num_threads)
                           .message());
  };
  AttentionFp8Shape shape = good;
  shape.head_dim = 96;
  EXPECT_NE(message(shape, {}, 1).find("96"), std::string::npos);
  std::vector<int32_t> starts = Starts(good, true);
  EXPECT_NE(message(good, starts, 0).find("threads"), std::string::npos);
  starts[30] = 31;
  EXPECT_NE(message(good, starts, 1).find("token 30"), std::string::npos);
  starts = Starts(good, true);
  starts[40] = 3;  // Below that of the token before it.
  EXPECT_NE(message(good, starts, 1).find("token 40"), std::string::npos);
}

}  // namespace
}  // namespace millrace
