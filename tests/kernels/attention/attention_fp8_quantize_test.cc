#include "kernels/attention/attention_fp8_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/fp8_testing.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

struct Case {
  AttentionFp8Shape shape;
  bool rope;
  bool hadamard;
};

// The values that one tensor must have before rounding: [sequences, tokens,
// heads, head_dim] in fp64.
struct Tensor {
  int64_t tokens, heads, dim;
  std::vector<double> values;
  double At(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return values[((b * tokens + t) * heads + h) * dim + d];
  }
};

// As rope.h lays it out.
std::vector<float> RopeTable(int64_t tokens, int64_t dim) {
  std::vector<float> table(tokens * dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(1e4, -2.0 * static_cast<double>(i) /
                                                     static_cast<double>(dim));
      table[t * dim / 2 + i] = static_cast<float>(std::cos(angle));
      table[(tokens + t) * dim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

void Rotate(std::vector<double>& row, const std::vector<float>& table,
            int64_t tokens, int64_t token) {
  const int64_t half = static_cast<int64_t>(row.size()) / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double cosine = table[token * half + i];
    const double sine = table[(tokens + token) * half + i];
    const double a = row[i];
    const double b = row[i + half];
    row[i] = a * cosine - b * sine;
    row[i + half] = b * cosine + a * sine;
  }
}

// By the definition in attention_fp8_quantize.h, element by element.
std::vector<double> Transformed(const std::vector<double>& row,
                                const uint64_t (&signs)[2]) {
  const size_t dim = row.size();
  std::vector<double> result(dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      const bool minus =
          (__builtin_popcountll(i & j) + (signs[j / 64] >> (j % 64))) & 1;
      result[i] += minus ? -row[j] : row[j];
    }
    result[i] /= std::sqrt(static_cast<double>(dim));
  }
  return result;
}

Tensor Expected(const Case& c, const std::vector<float>& packed, int64_t first,
                int64_t heads, bool is_value, const std::vector<float>& table,
                const uint64_t (&signs)[2]) {
  const AttentionFp8Shape& shape = c.shape;
  const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
  Tensor tensor = {shape.sequence_length, heads, shape.head_dim, {}};
  for (int64_t b = 0; b < shape.num_sequences; ++b) {
    for (int64_t t = 0; t < shape.sequence_length; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const float* in =
            &packed[((b * shape.sequence_length + t) * all + first + h) *
                    shape.head_dim];
        std::vector<double> row(in, in + shape.head_dim);
        if (c.rope && !is_value) Rotate(row, table, shape.sequence_length, t);
        if (c.hadamard && !is_value) row = Transformed(row, signs);
        tensor.values.insert(tensor.values.end(), row.begin(), row.end());
      }
    }
  }
  return tensor;
}

// Scales are the blocks' largest magnitudes over 448, but for the roundings of
// fp32 sums of 128 terms (1e-6 of the largest); an element is off by half a
// unit of e4m3's four bits at most, or half of its smallest step.
template <typename BitsAt>
void ExpectQuantized(const Tensor& expected, int64_t sequences,
                     const std::vector<float>& scales, int64_t block,
                     const std::string& what, const BitsAt& bits_at) {
  const int64_t num_blocks = (expected.tokens + block - 1) / block;
  ASSERT_EQ(static_cast<int64_t>(scales.size()),
            sequences * expected.heads * num_blocks);
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t h = 0; h < expected.heads; ++h) {
      for (int64_t n = 0; n < num_blocks; ++n) {
        const int64_t end = std::min(expected.tokens, (n + 1) * block);
        double largest = kFp8LeastMagnitude;
        for (int64_t t = n * block; t < end; ++t) {
          for (int64_t d = 0; d < expected.dim; ++d) {
            largest = std::max(largest, std::fabs(expected.At(b, t, h, d)));
          }
        }
        const double scale = scales[(b * expected.heads + h) * num_blocks + n];
        ASSERT_NEAR(scale * 448 / largest, 1.0, 1e-5)
            << what << " scale of block " << n << ", head " << h;
        for (int64_t t = n * block; t < end; ++t) {
          for (int64_t d = 0; d < expected.dim; ++d) {
            const double value = expected.At(b, t, h, d);
            const double bound =
                std::max(std::fabs(value) / 16, scale / 1024) + 1e-6 * largest;
            ASSERT_LE(std::fabs(FromFp8(bits_at(b, t, h, d)) * scale - value),
                      bound)
                << what << " token " << t << " head " << h << " element " << d;
          }
        }
      }
    }
  }
}

class QuantizeFp8Test : public testing::TestWithParam<Case> {};

// Goal: the quantizer gives exact scales, rounded elements and the layout that
// attention_fp8.h states, with and without rotation and incoherent processing.
// Method: odd shapes out of a packed projection with one outlier, outputs
// poisoned with NaN, compared with fp64 loops that follow the definitions.
TEST_P(QuantizeFp8Test, MatchesItsDefinition) {
  const Case c = GetParam();
  const AttentionFp8Shape& shape = c.shape;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
  RandomNormals random;
  Bf16s bits = random.Bits(num_tokens * all * shape.head_dim);
  bits[bits.size() / 2] = ToBf16(100.0f);
  const std::vector<float> table =
      RopeTable(shape.sequence_length, shape.head_dim);
  const uint64_t signs[2] = {0x243F6A8885A308D3, 0x13198A2E03707344};

  DeviceBuffer<uint16_t> packed = ToDevice(bits);
  DeviceBuffer<float> device_table = ToDevice(table);
  const int64_t q_size = num_tokens * shape.num_heads * shape.head_dim;
  const int64_t k_size = num_tokens * shape.num_kv_heads * shape.head_dim;
  DeviceBuffer<uint8_t> q = ToDevice(Fp8s(q_size, kNanFp8));
  DeviceBuffer<uint8_t> k = ToDevice(Fp8s(k_size, kNanFp8));
  DeviceBuffer<uint8_t> v = ToDevice(Fp8s(Fp8ValueBytes(shape), kNanFp8));
  const int64_t num_key_scales =
      shape.num_sequences * shape.num_kv_heads * NumFp8KeyBlocks(shape);
  DeviceBuffer<float> q_scale = PoisonedFloats(
      shape.num_sequences * shape.num_heads * NumFp8QueryBlocks(shape));
  DeviceBuffer<float> k_scale = PoisonedFloats(num_key_scales);
  DeviceBuffer<float> v_scale = PoisonedFloats(num_key_scales);
  auto in = [&](int64_t first) {
    return Bf16Heads{
        .data = packed.data() + first * shape.head_dim,
        .token_stride = all * shape.head_dim,
        .head_stride = shape.head_dim,
        .sequence_stride = shape.sequence_length * all * shape.head_dim};
  };
  auto out = [&](DeviceBuffer<uint8_t>& buffer, int64_t heads) {
    return Fp8Heads{
        .data = buffer.data(),
        .token_stride = heads * shape.head_dim,
        .head_stride = shape.head_dim,
        .sequence_stride = shape.sequence_length * heads * shape.head_dim};
  };
  const absl::Status status = LaunchQuantizeQkvFp8(
      {.q = out(q, shape.num_heads),
       .k = out(k, shape.num_kv_heads),
       .v = v.data(),
       .q_scale = q_scale.data(),
       .k_scale = k_scale.data(),
       .v_scale = v_scale.data(),
       .q_in = in(0),
       .k_in = in(shape.num_heads),
       .v_in = in(shape.num_heads + shape.num_kv_heads),
       .rope_table = c.rope ? device_table.data() : nullptr,
       .hadamard = c.hadamard,
       .signs = {signs[0], signs[1]},
       .shape = shape},
      nullptr);
  ASSERT_TRUE(status.ok()) << status;

  const std::vector<float> inputs = FromBf16(bits);
  auto expected = [&](int64_t first, int64_t heads, bool is_value) {
    return Expected(c, inputs, first, heads, is_value, table, signs);
  };
  auto plain = [&](const Fp8s& host, int64_t heads) {
    return [&host, &shape, heads](int64_t b, int64_t t, int64_t h, int64_t d) {
      return host[((b * shape.sequence_length + t) * heads + h) *
                      shape.head_dim +
                  d];
    };
  };
  const Fp8s q_host = ToHost(q);
  const Fp8s k_host = ToHost(k);
  const Fp8s v_host = ToHost(v);
  const int64_t sequences = shape.num_sequences;
  ExpectQuantized(expected(0, shape.num_heads, false), sequences,
                  ToHost(q_scale), kFp8QueryBlock, "q",
                  plain(q_host, shape.num_heads));
  ExpectQuantized(expected(shape.num_heads, shape.num_kv_heads, false),
                  sequences, ToHost(k_scale), kFp8KeyBlock, "k",
                  plain(k_host, shape.num_kv_heads));
  ExpectQuantized(
      expected(shape.num_heads + shape.num_kv_heads, shape.num_kv_heads, true),
      sequences, ToHost(v_scale), kFp8KeyBlock, "v",
      [&](int64_t b, int64_t t, int64_t h, int64_t d) {
        return v_host[Fp8ValueOffset(shape, b, h, t, d)];
      });
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t t = shape.sequence_length;
         t < NumFp8KeyBlocks(shape) * kFp8KeyBlock; ++t) {
      ASSERT_EQ(v_host[Fp8ValueOffset(shape, b, 0, t, shape.head_dim - 1)], 0)
          << "after the last token, at " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, QuantizeFp8Test, testing::ValuesIn([] {
      std::vector<Case> cases;
      for (const int64_t dim : {64, 128}) {
        cases.push_back({{1, 1, 1, 1, dim, false}, false, false});
        cases.push_back({{2, 63, 2, 1, dim, false}, true, true});
        cases.push_back({{1, kFp8KeyBlock, 2, 2, dim, false}, false, true});
        cases.push_back({{2, 333, 6, 2, dim, false}, true, false});
        // Enough blocks of queries that one takes several heads.
        cases.push_back({{6, 1100, 40, 1, dim, false}, true, false});
      }
      return cases;
    }()),
    [](const testing::TestParamInfo<Case>& info) {
      const AttentionFp8Shape& shape = info.param.shape;
      return absl::StrCat("B", shape.num_sequences, "S", shape.sequence_length,
                          "H", shape.num_heads, "K", shape.num_kv_heads, "D",
                          shape.head_dim, info.param.rope ? "Rope" : "",
                          info.param.hadamard ? "Hadamard" : "");
    });

// Goal: the matrix of the definition is orthogonal, so that scores stay as they
// are. Method: it keeps the dot product of two rows.
TEST(QuantizeFp8DefinitionTest, IncoherentProcessingKeepsScores) {
  const uint64_t signs[2] = {0xA4093822299F31D0, 0x082EFA98EC4E6C89};
  RandomNormals random;
  for (const int64_t dim : {64, 128}) {
    const std::vector<float> a = random.Floats(dim);
    const std::vector<float> b = random.Floats(dim);
    const auto x = Transformed({a.begin(), a.end()}, signs);
    const auto y = Transformed({b.begin(), b.end()}, signs);
    double before = 0;
    double after = 0;
    for (int64_t i = 0; i < dim; ++i) {
      before += double{a[i]} * b[i];
      after += x[i] * y[i];
    }
    EXPECT_NEAR(after, before, 1e-9);
  }
}

// Goal: a block of zeros has a scale above zero and stays zeros.
TEST(QuantizeFp8EdgeTest, TakesZeros) {
  const AttentionFp8Shape shape = {1, 40, 1, 1, 128, false};
  DeviceBuffer<uint16_t> zeros = ToDevice(Bf16s(40 * 128, 0));
  DeviceBuffer<uint8_t> q = ToDevice(Fp8s(40 * 128, kNanFp8));
  DeviceBuffer<uint8_t> v = ToDevice(Fp8s(Fp8ValueBytes(shape), kNanFp8));
  DeviceBuffer<float> scales = PoisonedFloats(3);
  const Bf16Heads in = {zeros.data(), 128, 128, 40 * 128};
  const absl::Status status =
      LaunchQuantizeQkvFp8({.q = {q.data(), 128, 128, 40 * 128},
                            .k = {q.data(), 128, 128, 40 * 128},
                            .v = v.data(),
                            .q_scale = scales.data(),
                            .k_scale = scales.data() + 1,
                            .v_scale = scales.data() + 2,
                            .q_in = in,
                            .k_in = in,
                            .v_in = in,
                            .hadamard = true,
                            .shape = shape},
                           nullptr);
  ASSERT_TRUE(status.ok()) << status;
  for (const float scale : ToHost(scales)) EXPECT_GT(scale, 0.0f);
  for (const uint8_t bits : ToHost(q)) ASSERT_EQ(bits & 0x7F, 0);
  for (const uint8_t bits : ToHost(v)) ASSERT_EQ(bits & 0x7F, 0);
}

}  // namespace
}  // namespace millrace
