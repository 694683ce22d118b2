// Helpers that the tests of bf16 attention share: cases with their inputs, the
// meaning in fp64, and tensors on the device.

#ifndef MILLRACE_TESTS_KERNELS_ATTENTION_ATTENTION_BF16_TESTING_H_
#define MILLRACE_TESTS_KERNELS_ATTENTION_ATTENTION_BF16_TESTING_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/cuda/device_buffer.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {

// A shape and, for packed documents, their offsets on the host;
// shape.document_offsets is then set where the case goes to the device.
struct AttentionBf16Case {
  AttentionBf16Shape shape;
  std::vector<int32_t> documents;
  float input_scale = 1.0f;  // The standard normal inputs' factor.

  int64_t NumTokens() const {
    return documents.empty() ? shape.num_sequences * shape.sequence_length
                             : shape.total_tokens;
  }
  int64_t AllHeads() const { return shape.num_heads + 2 * shape.num_kv_heads; }
  std::string Name() const {
    return absl::StrCat(
        documents.empty()
            ? absl::StrCat("B", shape.num_sequences, "S", shape.sequence_length)
            : absl::StrCat("Documents", absl::StrJoin(documents, "x")),
        "H", shape.num_heads, "K", shape.num_kv_heads, "D", shape.head_dim,
        shape.causal ? "Causal" : "Full",
        shape.window == 0 ? "" : absl::StrCat("Window", shape.window),
        shape.softcap == 0 ? "" : absl::StrCat("Softcap", shape.softcap),
        input_scale == 1.0f ? "" : "Scaled");
  }
};

// Documents of these lengths, packed one after the other.
inline AttentionBf16Case PackedDocuments(AttentionBf16Shape shape,
                                         const std::vector<int32_t>& lengths) {
  AttentionBf16Case result = {.shape = shape, .documents = {0}};
  for (const int32_t length : lengths) {
    result.documents.push_back(result.documents.back() + length);
  }
  result.shape.num_sequences = lengths.size();
  result.shape.sequence_length =
      *std::max_element(lengths.begin(), lengths.end());
  result.shape.total_tokens = result.documents.back();
  return result;
}

// In fp64, from the bf16 inputs: output [tokens, heads, head_dim], LSE as the
// kernels lay it out, and all gradients in the layout of `qkv`,
// [tokens, AllHeads(), head_dim].
struct AttentionBf16Reference {
  std::vector<double> o, lse, d_qkv;
};

// Gradients only with a `d_o` that is not empty.
inline AttentionBf16Reference ComputeAttentionBf16Reference(
    const AttentionBf16Case& c, const Bf16s& qkv_bits, const Bf16s& d_o_bits) {
  const AttentionBf16Shape& shape = c.shape;
  const int64_t dim = shape.head_dim;
  const int64_t heads = shape.num_heads;
  const int64_t all = c.AllHeads();
  const int64_t num_tokens = c.NumTokens();
  auto widen = [](const Bf16s& bits) {
    std::vector<double> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(),
                   static_cast<float (*)(uint16_t)>(FromBf16));
    return values;
  };
  const std::vector<double> qkv = widen(qkv_bits);
  const std::vector<double> d_o = widen(d_o_bits);
  AttentionBf16Reference reference;
  reference.o.resize(num_tokens * heads * dim);
  reference.lse.resize(num_tokens * heads);
  if (!d_o.empty()) reference.d_qkv.assign(qkv.size(), 0.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  auto dot = [dim](const double* a, const double* b) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
    return sum;
  };
  auto add = [dim](double* y, double factor, const double* x) {
    for (int64_t d = 0; d < dim; ++d) y[d] += factor * x[d];
  };
  for (int64_t sequence = 0; sequence < shape.num_sequences; ++sequence) {
    const bool packed = !c.documents.empty();
    const int64_t start =
        packed ? c.documents[sequence] : sequence * shape.sequence_length;
    const int64_t length =
        packed ? c.documents[sequence + 1] - start : shape.sequence_length;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t key_head = heads + h / (heads / shape.num_kv_heads);
      const int64_t value_head = key_head + shape.num_kv_heads;
      auto at = [&](int64_t token, int64_t head) {
        return ((start + token) * all + head) * dim;
      };
      for (int64_t i = 0; i < length; ++i) {
        int64_t first = 0;
        int64_t end = shape.causal ? i + 1 : length;
        if (shape.window != 0) {
          first = std::max<int64_t>(0, i - shape.window + 1);
          end = std::min(end, i + shape.window);
        }
        std::vector<double> p(end - first);
        std::vector<double> slope(p.size(), 1.0);  // The softcap's.
        double maximum = -std::numeric_limits<double>::infinity();
        for (int64_t j = first; j < end; ++j) {
          p[j - first] = scale * dot(&qkv[at(i, h)], &qkv[at(j, key_head)]);
          if (shape.softcap > 0) {
            const double share = std::tanh(p[j - first] / shape.softcap);
            p[j - first] = shape.softcap * share;
            slope[j - first] = 1 - share * share;
          }
          maximum = std::fmax(maximum, p[j - first]);
        }
        double sum = 0;
        for (const double s : p) sum += std::exp(s - maximum);
        const double lse = maximum + std::log(sum);
        reference.lse[packed ? h * num_tokens + start + i
                             : (sequence * heads + h) * length + i] = lse;
        double* o = &reference.o[((start + i) * heads + h) * dim];
        for (int64_t j = first; j < end; ++j) {
          p[j - first] = std::exp(p[j - first] - lse);
          add(o, p[j - first], &qkv[at(j, value_head)]);
        }
        if (d_o.empty()) continue;
        const double* d_row = &d_o[((start + i) * heads + h) * dim];
        const double delta = dot(o, d_row);
        for (int64_t j = first; j < end; ++j) {
          const double d_s = p[j - first] * slope[j - first] * scale *
                             (dot(d_row, &qkv[at(j, value_head)]) - delta);
          add(&reference.d_qkv[at(i, h)], d_s, &qkv[at(j, key_head)]);
          add(&reference.d_qkv[at(j, key_head)], d_s, &qkv[at(i, h)]);
          add(&reference.d_qkv[at(j, value_head)], p[j - first], d_row);
        }
      }
    }
  }
  return reference;
}

// |actual - expected| / |expected|; NaN if anything was left unwritten.
inline double RelativeError(const Bf16s& actual,
                            const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = FromBf16(actual[i]) - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

// The case on the device with fresh normal inputs; `qkv` is a packed
// projection, so that operands are strided.
class AttentionBf16Operands {
 public:
  explicit AttentionBf16Operands(const AttentionBf16Case& c)
      : c_(c),
        qkv_host_(Random(c.NumTokens() * c.AllHeads() * c.shape.head_dim,
                         c.input_scale)),
        qkv_(ToDevice(qkv_host_)),
        documents_(ToDevice(c.documents.empty() ? std::vector<int32_t>(1)
                                                : c.documents)),
        counter_(ToDevice(std::vector<int32_t>(2, 0))),
        shape_(c.shape) {
    if (!c.documents.empty()) shape_.document_offsets = documents_.data();
  }

  const AttentionBf16Shape& shape() const { return shape_; }
  const Bf16s& qkv_host() const { return qkv_host_; }

  // Standard normal values times `scale`.
  static Bf16s Random(int64_t count, float scale = 1.0f) {
    std::vector<float> values = RandomNormals().Floats(count);
    for (float& value : values) value *= scale;
    return ToBf16(values);
  }

  // Heads of a packed tensor [tokens, all_heads, head_dim] from `first` on.
  Bf16Heads Heads(DeviceBuffer<uint16_t>& packed, int64_t all_heads,
                  int64_t first) const {
    return {.data = packed.data() + first * shape_.head_dim,
            .token_stride = all_heads * shape_.head_dim,
            .head_stride = shape_.head_dim,
            .sequence_stride =
                shape_.sequence_length * all_heads * shape_.head_dim};
  }
  // Queries, keys and values of a tensor in the layout of qkv.
  Bf16Heads Queries(DeviceBuffer<uint16_t>& packed) const {
    return Heads(packed, c_.AllHeads(), 0);
  }
  Bf16Heads Keys(DeviceBuffer<uint16_t>& packed) const {
    return Heads(packed, c_.AllHeads(), shape_.num_heads);
  }
  Bf16Heads Values(DeviceBuffer<uint16_t>& packed) const {
    return Heads(packed, c_.AllHeads(), shape_.num_heads + shape_.num_kv_heads);
  }
  Bf16Heads Outputs(DeviceBuffer<uint16_t>& o) const {
    return Heads(o, shape_.num_heads, 0);
  }
  DeviceBuffer<uint16_t>& qkv() { return qkv_; }

  struct Forward {
    Bf16s o;
    std::vector<float> lse;
    float amax;  // Zero without.
  };
  // Into poisoned outputs.
  Forward RunForward(bool with_amax = false) {
    const int64_t rows = c_.NumTokens() * shape_.num_heads;
    DeviceBuffer<uint16_t> o = PoisonedBf16(rows * shape_.head_dim);
    DeviceBuffer<float> lse = PoisonedFloats(rows);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status =
        LaunchAttentionForwardBf16({.o = Outputs(o),
                                    .lse = lse.data(),
                                    .q = Queries(qkv_),
                                    .k = Keys(qkv_),
                                    .v = Values(qkv_),
                                    .tile_counter = counter_.data(),
                                    .shape = shape_,
                                    .amax = with_amax ? amax.data() : nullptr},
                                   nullptr);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {ToHost(o), ToHost(lse), ToHost(amax)[0]};
  }

 private:
  AttentionBf16Case c_;
  Bf16s qkv_host_;
  DeviceBuffer<uint16_t> qkv_;
  DeviceBuffer<int32_t> documents_;
  DeviceBuffer<int32_t> counter_;
  AttentionBf16Shape shape_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_ATTENTION_ATTENTION_BF16_TESTING_H_
