#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_fp8_host.h"
#include "kernels/attention/attention_fp8_quantize.h"
#include "kernels/attention/attention_fp8_shape.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

constexpr Float8Format kFormat = Float8Format::kE4m3;
constexpr int64_t kMaxHeadDim = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::array<float, 256>& DecodedFloat8() {
  static const auto* const values = [] {
    auto* table = new std::array<float, 256>;
    for (int bits = 0; bits < 256; ++bits) {
      (*table)[static_cast<size_t>(bits)] =
          DecodeFloat8(static_cast<uint8_t>(bits), kFormat);
    }
    return table;
  }();
  return *values;
}

// The matrix of attention_fp8_quantize.h, without the factor
// 1 / sqrt(head_dim), by the additions that a GPU makes.
void Transform(const uint64_t (&signs)[2], int64_t head_dim, float* row) {
  for (int64_t i = 0; i < head_dim; ++i) {
    if (signs[i / 64] >> (i % 64) & 1) row[i] = -row[i];
  }
  for (int64_t stride = 1; stride < head_dim; stride *= 2) {
    for (int64_t first = 0; first < head_dim; first += 2 * stride) {
      for (int64_t i = first; i < first + stride; ++i) {
        const float a = row[i];
        const float b = row[i + stride];
        row[i] = a + b;
        row[i + stride] = a - b;
      }
    }
  }
}

// The queries or the keys among packed heads.
struct Heads {
  uint8_t* out;
  float* scale;
  int64_t num_heads, first_head, block;
};

// One block of tokens of one head, `item` counting blocks of heads of
// sequences.
void QuantizeRotated(const QuantizeQkvArgs& args, const Heads& heads,
                     int64_t item) {
  const AttentionFp8Shape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t length = shape.sequence_length;
  const int64_t num_blocks = (length + heads.block - 1) / heads.block;
  const int64_t head = item / num_blocks % heads.num_heads;
  const int64_t sequence = item / num_blocks / heads.num_heads;
  const int64_t begin = item % num_blocks * heads.block;
  const int64_t end = std::min(length, begin + heads.block);
  const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
  std::array<float, kFp8KeyBlock * kMaxHeadDim> rows;
  const float norm = dim == 128 ? 0.08838834764831845f : 0.125f;
  float largest = kFp8LeastMagnitude / norm;
  for (int64_t t = begin; t < end; ++t) {
    const float* in =
        args.qkv +
        ((sequence * length + t) * all + heads.first_head + head) * dim;
    float* row = rows.data() + (t - begin) * dim;
    std::copy_n(in, dim, row);
    Transform(args.signs, dim, row);
    for (int64_t i = 0; i < dim; ++i) {
      largest = std::max(largest, std::fabs(row[i]));
    }
  }
  heads.scale[item] = largest * (norm / kFp8Largest);
  const float inverse = kFp8Largest / largest;
  for (int64_t t = begin; t < end; ++t) {
    Loops().encode_float8(
        heads.out + ((sequence * length + t) * heads.num_heads + head) * dim,
        rows.data() + (t - begin) * dim, dim, inverse, kFormat);
  }
}

// One block of tokens of one head of values.
void QuantizeValues(const QuantizeQkvArgs& args, int64_t item) {
  const AttentionFp8Shape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t length = shape.sequence_length;
  const int64_t num_blocks = NumFp8KeyBlocks(shape);
  const int64_t head = item / num_blocks % shape.num_kv_heads;
  const int64_t sequence = item / num_blocks / shape.num_kv_heads;
  const int64_t first = item % num_blocks * kFp8KeyBlock;
  const int64_t end = std::min(length, first + kFp8KeyBlock);
  const int64_t all = shape.num_heads + 2 * shape.num_kv_heads;
  const auto row = [&](int64_t t) {
    return args.qkv + ((sequence * length + t) * all + shape.num_heads +
                       shape.num_kv_heads + head) *
                          dim;
  };
  float largest = kFp8LeastMagnitude;
  for (int64_t t = first; t < end; ++t) {
    const float* values = row(t);
    for (int64_t d = 0; d < dim; ++d) {
      largest = std::max(largest, std::fabs(values[d]));
    }
  }
  args.v_scale[item] = largest / kFp8Largest;
  const float inverse = kFp8Largest / largest;
  uint8_t* out = args.v + item * kFp8KeyBlock * dim;
  constexpr int kRun = 16;  // Tokens that lie side by side.
  for (int64_t group = 0; group < kFp8KeyBlock; group += 32) {
    for (int64_t d = 0; d < dim; ++d) {
      for (int64_t half = 0; half < 32; half += kRun) {
        std::array<float, kRun> run{};
        for (int i = 0; i < kRun; ++i) {
          const int64_t t = first + group + half + Fp8TokenAt(i);
          if (t < end) run[static_cast<size_t>(i)] = row(t)[d];
        }
        Loops().encode_float8(
            out + group * dim + d / 8 * 256 + half * 8 + d % 8 * kRun,
            run.data(), kRun, inverse, kFormat);
      }
    }
  }
}

// The constants of attention_fp8_softmax.cuh.
constexpr float kExponentOffset = 8;
constexpr float kLeastWeight = 0x1p-64f;
constexpr int kLeastUnit = -120;

// The least whole number whose power of two is no less than x > 0.
int CeilLog2(float x) {
  return static_cast<int>((std::bit_cast<uint32_t>(x) + 0x7FFFFFu) >> 23) - 127;
}

// A block of keys and values of one head, decoded without their scales.
struct KeyBlock {
  std::array<float, kMaxHeadDim * kFp8KeyBlock> keys;    // [head_dim, tokens]
  std::array<float, kFp8KeyBlock * kMaxHeadDim> values;  // [tokens, head_dim]
};

// The queries of one block of one head on their way over the blocks of keys.
class QueryTile {
 public:
  QueryTile(const AttentionForwardFp8HostArgs& args, int64_t item)
      : args_(args), shape_(args.shape), dim_(shape_.head_dim) {
    const int64_t num_blocks = NumFp8QueryBlocks(shape_);
    block_ = num_blocks - 1 - item % num_blocks;
    head_ = item / num_blocks % shape_.num_heads;
    sequence_ = item / num_blocks / shape_.num_heads;
    begin_ = block_ * kFp8QueryBlock;
    end_ = std::min(shape_.sequence_length, begin_ + kFp8QueryBlock);
    maximum_.fill(-kInfinity);
    sum_.fill(0);
    o_.fill(0);
  }

  void Run() {
    const int64_t num_kv = shape_.num_kv_heads;
    const int64_t kv_head = head_ / (shape_.num_heads / num_kv);
    const int64_t first_scale =
        (sequence_ * num_kv + kv_head) * NumFp8KeyBlocks(shape_);
    const float q_factor =
        static_cast<float>(M_LOG2E / std::sqrt(static_cast<double>(dim_))) *
        args_.q_scale[(sequence_ * shape_.num_heads + head_) *
                          NumFp8QueryBlocks(shape_) +
                      block_];
    const int64_t first_block = StartOf(begin_) / kFp8KeyBlock;
    for (int64_t b = (end_ - 1) / kFp8KeyBlock; b >= first_block; --b) {
      Decode(kv_head, b, first_scale + b);
      const float value_scale = args_.v_scale[first_scale + b];
      const int old_unit = unit_;
      unit_ = std::max(unit_, CeilLog2(value_scale));
      const float weight =
          std::max(std::ldexp(value_scale, -unit_), kLeastWeight);
      Add(b, q_factor * args_.k_scale[first_scale + b], weight,
          std::ldexp(1.0f, std::max(old_unit - unit_, -126)));
    }
    for (int64_t t = begin_; t < end_; ++t) Write(t);
  }

 private:
  int64_t Token(int64_t t) const {
    return sequence_ * shape_.sequence_length + t;
  }
  int64_t StartOf(int64_t t) const { return args_.document_starts[Token(t)]; }

  void Decode(int64_t kv_head, int64_t b, int64_t block_of_values) {
    const auto& value_of = DecodedFloat8();
    const int64_t first = b * kFp8KeyBlock;
    const int64_t end =
        std::min(shape_.sequence_length, first + kFp8KeyBlock) - first;
    for (int64_t j = 0; j < end; ++j) {
      const uint8_t* key =
          args_.k + (Token(first + j) * shape_.num_kv_heads + kv_head) * dim_;
      for (int64_t d = 0; d < dim_; ++d) {
        keys_.keys[d * kFp8KeyBlock + j] = value_of[key[d]];
      }
    }
    const uint8_t* values = args_.v + block_of_values * kFp8KeyBlock * dim_;
    for (int64_t j = 0; j < end; j += 16) {
      const uint8_t* run = values + j / 32 * 32 * dim_ + j % 32 * 8;
      for (int64_t d = 0; d < dim_; ++d) {
        for (int i = 0; i < 16; ++i) {
          keys_.values[(j + Fp8TokenAt(i)) * dim_ + d] =
              value_of[run[d / 8 * 256 + d % 8 * 16 + i]];
        }
      }
    }
  }

  // Adds one block of keys to all rows. `change`: the factor on what was added
  // before, from its unit to the new one.
  void Add(int64_t b, float factor, float weight, float change) {
    const int64_t first = b * kFp8KeyBlock;
    const float log2_weight = std::log2(weight);
    for (int64_t t = begin_; t < end_; ++t) {
      const int64_t from = std::max<int64_t>(StartOf(t) - first, 0);
      const int64_t to = std::min<int64_t>(t + 1 - first, kFp8KeyBlock);
      float* o = o_.data() + (t - begin_) * dim_;
      if (from >= to) {
        for (int64_t d = 0; d < dim_; ++d) o[d] *= change;
        continue;
      }
      AddRow(t, from, to - from, {factor, weight, log2_weight, change}, o);
    }
  }

  struct BlockFactors {
    float factor, weight, log2_weight, change;
  };
  void AddRow(int64_t t, int64_t from, int64_t count, const BlockFactors& block,
              float* o) {
    const auto& value_of = DecodedFloat8();
    std::array<float, kFp8KeyBlock> s{};
    const uint8_t* query =
        args_.q + (Token(t) * shape_.num_heads + head_) * dim_;
    for (int64_t d = 0; d < dim_; ++d) {
      const float q = value_of[query[d]];
      const float* keys = keys_.keys.data() + d * kFp8KeyBlock + from;
      for (int64_t j = 0; j < count; ++j) s[j] += q * keys[j];
    }
    float& maximum = maximum_[t - begin_];
    float& sum = sum_[t - begin_];
    const float largest = *std::max_element(s.begin(), s.begin() + count);
    const float raised = std::max(maximum, std::ceil(largest * block.factor));
    const float offset = kExponentOffset - raised + block.log2_weight;
    for (int64_t j = 0; j < count; ++j) s[j] = s[j] * block.factor + offset;
    Loops().exp2_flushed(s.data(), s.data(), count);
    float added = 0;
    for (int64_t j = 0; j < count; ++j) added += s[j];
    const float rescale = std::exp2(maximum - raised);
    maximum = raised;
    sum = sum * rescale + added / block.weight;
    std::array<uint8_t, kFp8KeyBlock> rounded;
    Loops().encode_float8(rounded.data(), s.data(), count, 1, kFormat);
    const float old = rescale * block.change;
    for (int64_t d = 0; d < dim_; ++d) o[d] *= old;
    for (int64_t j = 0; j < count; ++j) {
      const float p = value_of[rounded[j]];
      const float* values = keys_.values.data() + (from + j) * dim_;
      for (int64_t d = 0; d < dim_; ++d) o[d] += p * values[d];
    }
  }

  void Write(int64_t t) {
    const int64_t row = t - begin_;
    const float inverse = std::ldexp(1.0f, unit_) / sum_[row];
    float* out = args_.o + (Token(t) * shape_.num_heads + head_) * dim_;
    for (int64_t d = 0; d < dim_; ++d) out[d] = o_[row * dim_ + d] * inverse;
    args_
        .lse[head_ * shape_.num_sequences * shape_.sequence_length + Token(t)] =
        (maximum_[row] - kExponentOffset + std::log2(sum_[row])) *
        static_cast<float>(M_LN2);
  }

  const AttentionForwardFp8HostArgs& args_;
  const AttentionFp8Shape& shape_;
  const int64_t dim_;
  int64_t block_, head_, sequence_, begin_, end_;
  // Outputs are kept in units of a power of two that is no less than any value
  // scale so far.
  int unit_ = kLeastUnit;
  KeyBlock keys_;
  std::array<float, kFp8QueryBlock> maximum_, sum_;
  std::array<float, kFp8QueryBlock * kMaxHeadDim> o_;
};

absl::Status CheckStarts(const AttentionForwardFp8HostArgs& args) {
  const int64_t length = args.shape.sequence_length;
  for (int64_t t = 0; t < args.shape.num_sequences * length; ++t) {
    const int64_t position = t % length;
    const int32_t least = position == 0 ? 0 : args.document_starts[t - 1];
    const int32_t start = args.document_starts[t];
    if (start >= least && start <= position) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("AttentionForwardFp8: token ", t, " has position ",
                     position, " in its sequence, but its document starts at ",
                     start, "; needs a start in [", least, ", position]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status QuantizeQkv(const QuantizeQkvArgs& args, int num_threads) {
  const AttentionFp8Shape& shape = args.shape;
  RETURN_IF_ERROR(CheckAttentionFp8Shape(shape));
  RETURN_IF_ERROR(CheckRowsAndThreads("QuantizeQkv", shape.num_sequences,
                                      shape.sequence_length, num_threads));
  const Heads queries = {args.q, args.q_scale, shape.num_heads, 0,
                         kFp8QueryBlock};
  const Heads keys = {args.k, args.k_scale, shape.num_kv_heads, shape.num_heads,
                      kFp8KeyBlock};
  for (const Heads& heads : {queries, keys}) {
    const int64_t num_blocks =
        (shape.sequence_length + heads.block - 1) / heads.block;
    ParallelItems(num_threads,
                  shape.num_sequences * heads.num_heads * num_blocks,
                  [&](int64_t item) { QuantizeRotated(args, heads, item); });
  }
  ParallelItems(
      num_threads,
      shape.num_sequences * shape.num_kv_heads * NumFp8KeyBlocks(shape),
      [&](int64_t item) { QuantizeValues(args, item); });
  return absl::OkStatus();
}

absl::Status AttentionForwardFp8(const AttentionForwardFp8HostArgs& args,
                                 int num_threads) {
  const AttentionFp8Shape& shape = args.shape;
  RETURN_IF_ERROR(CheckAttentionFp8Shape(shape));
  RETURN_IF_ERROR(CheckRowsAndThreads("AttentionForwardFp8",
                                      shape.num_sequences,
                                      shape.sequence_length, num_threads));
  RETURN_IF_ERROR(CheckStarts(args));
  ParallelItems(
      num_threads,
      shape.num_sequences * shape.num_heads * NumFp8QueryBlocks(shape),
      [&](int64_t item) { QueryTile(args, item).Run(); });
  return absl::OkStatus();
}

}  // namespace millrace
