#include "kernels/attention/attention_fp8.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/fp8_testing.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

// Random e4m3 tensors with scales, in the layouts of attention_fp8.h and as
// what they stand for: [sequences, tokens, heads, head_dim] in fp64.
struct Inputs {
  Fp8s q, k, v;
  std::vector<float> q_scale, k_scale, v_scale;
  std::vector<double> q_values, k_values, v_values;
};

Inputs MakeInputs(const AttentionFp8Shape& shape) {
  // Scales differ from block to block by up to 5.6 times, so that a block
  // with its neighbour's scale is far off.
  std::mt19937 generator(std::random_device{}());
  std::normal_distribution<double> normal(0.0, 60.0);
  std::uniform_real_distribution<double> exponent(-8.0, -5.5);
  Inputs inputs;
  auto scales = [&](int64_t heads, int64_t blocks) {
    std::vector<float> scale(shape.num_sequences * heads * blocks);
    for (float& s : scale)
      s = static_cast<float>(std::exp2(exponent(generator)));
    return scale;
  };
  inputs.q_scale = scales(shape.num_heads, NumFp8QueryBlocks(shape));
  inputs.k_scale = scales(shape.num_kv_heads, NumFp8KeyBlocks(shape));
  inputs.v_scale = scales(shape.num_kv_heads, NumFp8KeyBlocks(shape));
  // The first block's values are next to nothing beside the others'.
  if (NumFp8KeyBlocks(shape) > 1) inputs.v_scale[0] = std::ldexp(1.0f, -60);
  inputs.v.assign(Fp8ValueBytes(shape), 0);
  auto fill = [&](int64_t heads, int64_t block, const std::vector<float>& scale,
                  std::vector<double>& values, auto put) {
    const int64_t num_blocks = (shape.sequence_length + block - 1) / block;
    for (int64_t b = 0; b < shape.num_sequences; ++b) {
      for (int64_t t = 0; t < shape.sequence_length; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            const uint8_t bits = ToFp8(normal(generator));
            put(b, t, h, d, bits);
            values.push_back(FromFp8(bits) *
                             scale[(b * heads + h) * num_blocks + t / block]);
          }
        }
      }
    }
  };
  auto append = [](Fp8s& bytes) {
    return [&bytes](int64_t, int64_t, int64_t, int64_t, uint8_t bits) {
      bytes.push_back(bits);
    };
  };
  fill(shape.num_heads, kFp8QueryBlock, inputs.q_scale, inputs.q_values,
       append(inputs.q));
  fill(shape.num_kv_heads, kFp8KeyBlock, inputs.k_scale, inputs.k_values,
       append(inputs.k));
  fill(shape.num_kv_heads, kFp8KeyBlock, inputs.v_scale, inputs.v_values,
       [&](int64_t b, int64_t t, int64_t h, int64_t d, uint8_t bits) {
         inputs.v[Fp8ValueOffset(shape, b, h, t, d)] = bits;
       });
  return inputs;
}

struct AttentionCase {
  AttentionFp8Shape shape;
  bool documents = false;
};

// By token, the first of its document within its sequence: documents of many
// lengths, from one token to several blocks of keys.
std::vector<int32_t> MakeStarts(const AttentionFp8Shape& shape) {
  std::mt19937 generator(std::random_device{}());
  std::bernoulli_distribution begins(0.01);
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < shape.num_sequences; ++b) {
    int32_t start = 0;
    for (int32_t t = 0; t < shape.sequence_length; ++t) {
      // The second ends at a block of queries, the third at one of keys.
      if (t == 1 || t == kFp8QueryBlock || t == kFp8KeyBlock ||
          (t > 2 * kFp8KeyBlock && begins(generator))) {
        start = t;
      }
      starts.push_back(start);
    }
  }
  return starts;
}

struct Reference {
  std::vector<double> o, lse;
};

// `starts`: empty where every sequence is one document.
Reference Compute(const AttentionFp8Shape& shape, const Inputs& inputs,
                  const std::vector<int32_t>& starts) {
  const int64_t seq = shape.sequence_length;
  const int64_t dim = shape.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  Reference reference;
  reference.o.resize(inputs.q_values.size());
  reference.lse.resize(shape.num_sequences * shape.num_heads * seq);
  std::vector<double> p(seq);
  for (int64_t b = 0; b < shape.num_sequences; ++b) {
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      const int64_t kv = h / (shape.num_heads / shape.num_kv_heads);
      auto key_row = [&](int64_t t) {
        return ((b * seq + t) * shape.num_kv_heads + kv) * dim;
      };
      for (int64_t t = 0; t < seq; ++t) {
        const int64_t row = ((b * seq + t) * shape.num_heads + h) * dim;
        const int64_t begin = starts.empty() ? 0 : starts[b * seq + t];
        const int64_t end = shape.causal ? t + 1 : seq;
        double maximum = -std::numeric_limits<double>::infinity();
        for (int64_t j = begin; j < end; ++j) {
          p[j] = 0;
          for (int64_t d = 0; d < dim; ++d) {
            p[j] += inputs.q_values[row + d] * inputs.k_values[key_row(j) + d];
          }
          p[j] *= scale;
          maximum = std::fmax(maximum, p[j]);
        }
        double sum = 0;
        for (int64_t j = begin; j < end; ++j) sum += std::exp(p[j] - maximum);
        const double lse = maximum + std::log(sum);
        const int64_t lse_row = starts.empty() ? b * shape.num_heads + h
                                               : h * shape.num_sequences + b;
        reference.lse[lse_row * seq + t] = lse;
        for (int64_t j = begin; j < end; ++j) {
          const double weight = std::exp(p[j] - lse);
          for (int64_t d = 0; d < dim; ++d) {
            reference.o[row + d] += weight * inputs.v_values[key_row(j) + d];
          }
        }
      }
    }
  }
  return reference;
}

class AttentionFp8Test : public testing::TestWithParam<AttentionCase> {};

// Goal: the kernel means what attention_fp8.h says, for every block's own
// scales and documents, and writes every element. Method: odd and even shapes
// against fp64 of what the e4m3 inputs stand for, outputs poisoned with NaN.
// Exponentials rounded to 4 significant bits are off by up to 1/16, 2.6e-2 in
// the mean square, and so is a sum of them times values of random sign; 4e-2
// allows for small shapes. A single exponential may be off by its 1/16, and the
// output by the rounding to bf16 more. The tensor cores' 14 bits show in LSE:
// scores of 5 are off by up to 1e-3.
TEST_P(AttentionFp8Test, MatchesTheReference) {
  AttentionFp8Shape shape = GetParam().shape;
  const Inputs inputs = MakeInputs(shape);
  const std::vector<int32_t> starts =
      GetParam().documents ? MakeStarts(shape) : std::vector<int32_t>();
  const Reference reference = Compute(shape, inputs, starts);
  DeviceBuffer<int32_t> device_starts =
      ToDevice(starts.empty() ? std::vector<int32_t>(1) : starts);
  if (!starts.empty()) shape.document_starts = device_starts.data();
  DeviceBuffer<uint8_t> q = ToDevice(inputs.q);
  DeviceBuffer<uint8_t> k = ToDevice(inputs.k);
  DeviceBuffer<uint8_t> v = ToDevice(inputs.v);
  DeviceBuffer<float> q_scale = ToDevice(inputs.q_scale);
  DeviceBuffer<float> k_scale = ToDevice(inputs.k_scale);
  DeviceBuffer<float> v_scale = ToDevice(inputs.v_scale);
  DeviceBuffer<int32_t> counter = ToDevice(std::vector<int32_t>(2, 0));
  auto strides = [&](DeviceBuffer<uint8_t>& buffer, int64_t heads) {
    return Fp8Heads{
        .data = buffer.data(),
        .token_stride = heads * shape.head_dim,
        .head_stride = shape.head_dim,
        .sequence_stride = shape.sequence_length * heads * shape.head_dim};
  };
  auto run = [&](std::vector<float>* lse_out) {
    DeviceBuffer<uint16_t> o = PoisonedBf16(inputs.q.size());
    DeviceBuffer<float> lse = PoisonedFloats(reference.lse.size());
    const Fp8Heads like_q = strides(q, shape.num_heads);
    const absl::Status status = LaunchAttentionForwardFp8(
        {.o = {.data = o.data(),
               .token_stride = like_q.token_stride,
               .head_stride = like_q.head_stride,
               .sequence_stride = like_q.sequence_stride},
         .lse = lse.data(),
         .q = like_q,
         .k = strides(k, shape.num_kv_heads),
         .v = v.data(),
         .q_scale = q_scale.data(),
         .k_scale = k_scale.data(),
         .v_scale = v_scale.data(),
         .tile_counter = counter.data(),
         .shape = shape},
        nullptr);
    EXPECT_TRUE(status.ok()) << status;
    *lse_out = ToHost(lse);
    return ToHost(o);
  };
  std::vector<float> lse;
  const Bf16s o = run(&lse);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    const double difference = FromBf16(o[i]) - reference.o[i];
    error += difference * difference;
    norm += reference.o[i] * reference.o[i];
  }
  EXPECT_LT(std::sqrt(error / norm), lse.size() == 1 ? 1.0 / 16 + 4e-3 : 4e-2);
  for (size_t i = 0; i < lse.size(); ++i) {
    ASSERT_NEAR(lse[i], reference.lse[i], 3e-3) << i;
  }
  std::vector<float> lse_again;
  EXPECT_EQ(run(&lse_again), o) << "the second run differs";
  EXPECT_EQ(lse_again, lse);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionFp8Test, testing::ValuesIn([] {
      std::vector<AttentionCase> cases;
      for (const int64_t head_dim : {64, 128}) {
        for (const bool causal : {true, false}) {
          for (const AttentionFp8Shape& shape : std::vector<AttentionFp8Shape>{
                   {1, 1, 1, 1, head_dim, causal},
                   {2, 63, 2, 1, head_dim, causal},
                   {1, 2 * kFp8KeyBlock, 2, 2, head_dim, causal},
                   {2, 601, 6, 2, head_dim, causal},
                   // More tiles than multiprocessors.
                   {3, 260, 24, 4, head_dim, causal}}) {
            cases.push_back({shape});
            if (causal) cases.push_back({shape, true});
          }
        }
      }
      // Documents of several blocks of keys, some blocks of which are whole.
      cases.push_back({{2, 2000, 4, 2, 128, true}, true});
      return cases;
    }()),
    [](const testing::TestParamInfo<AttentionCase>& info) {
      const AttentionFp8Shape& shape = info.param.shape;
      return absl::StrCat("B", shape.num_sequences, "S", shape.sequence_length,
                          "H", shape.num_heads, "K", shape.num_kv_heads, "D",
                          shape.head_dim, shape.causal ? "Causal" : "Full",
                          info.param.documents ? "Documents" : "");
    });

// Goal: shapes the kernel does not have are refused by name, before any launch.
TEST(AttentionFp8ShapeTest, RefusesWhatItCannotDo) {
  const AttentionFp8Shape good = {1, 128, 4, 2, 128, true};
  auto refuse = [](const AttentionFp8Shape& shape, const char* named) {
    const absl::Status status =
        LaunchAttentionForwardFp8({.shape = shape}, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find(named) != absl::string_view::npos)
        << status;
  };
  AttentionFp8Shape shape = good;
  shape.head_dim = 80;
  refuse(shape, "80");
  shape = good;
  shape.num_kv_heads = 3;
  refuse(shape, "3 key-value heads");
  shape = good;
  shape.sequence_length = 0;
  refuse(shape, "0 tokens");
  shape = good;
  shape.num_sequences = 70000;
  refuse(shape, "70000");
  shape = good;
  shape.causal = false;
  const int32_t start = 0;
  shape.document_starts = &start;
  refuse(shape, "causal");
  shape = good;
  shape.num_sequences = 0;
  EXPECT_TRUE(LaunchAttentionForwardFp8({.shape = shape}, nullptr).ok());
}

}  // namespace
}  // namespace millrace
