#include "kernels/pointwise/rope_bf16.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/pointwise/rope.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr float kEpsilon = 1e-6f;
// Half a unit in the last place of bf16, 2^-8, and fp32 noise of the larger of
// two terms.
constexpr double kRounding = 0x1.02p-8;
constexpr double kNoise = 1e-5;

struct Case {
  RopeBf16Shape shape;
  int64_t gap;  // Elements between the token rows.
  bool has_position_ids;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t head_dim : {16, 32, 64, 80, 96, 128, 192, 256, 512}) {
    cases.push_back({{1, 1, 1, head_dim, 1, 1}, 0, false});
    cases.push_back({{77, 3, 1, head_dim, 10, 13}, 24, true});
  }
  cases.push_back({{777, 32, 8, 128, 100, 100}, 0, false});
  cases.push_back({{301, 6, 6, 64, 301, 400}, 8, true});
  cases.push_back({{5, 71, 1, 64, 3, 3}, 0, false});
  cases.push_back({{129, 1, 5, 128, 7, 7}, 0, true});
  return cases;
}

// A projection [num_tokens, num_heads + 2 num_kv_heads, head_dim] on the host,
// and the fp32 references that work on it.
class RopeBf16Test : public testing::TestWithParam<Case> {
 protected:
  RopeBf16Test() {
    table_.resize(RopeTableBytes(shape_.table_length, shape_.head_dim) / 4);
    EXPECT_TRUE(FillRopeTable(table_.data(), shape_.table_length,
                              shape_.head_dim, 10000.0)
                    .ok());
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      position_ids_.push_back(
          GetParam().has_position_ids
              ? static_cast<int32_t>((7 * t + 3) % shape_.table_length)
              : static_cast<int32_t>(t % shape_.sequence_length));
    }
  }

  // Turns rows without gaps by the angle of their positions.
  void Turn(std::vector<float>& qkv, bool inverse) const {
    const int64_t half = shape_.head_dim / 2;
    std::vector<float> table(2 * shape_.num_tokens * half);
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        table[t * half + i] = table_[position_ids_[t] * half + i];
        table[(shape_.num_tokens + t) * half + i] =
            table_[(shape_.table_length + position_ids_[t]) * half + i];
      }
    }
    RopeReference({.qkv = qkv.data(),
                   .table = table.data(),
                   .num_tokens = shape_.num_tokens,
                   .sequence_length = shape_.num_tokens,
                   .num_heads = shape_.num_heads,
                   .num_kv_heads = shape_.num_kv_heads,
                   .head_dim = shape_.head_dim,
                   .inverse = inverse});
  }

  // f(first head, number of heads, weight or its gradient, is it the keys').
  template <typename F>
  void ForParts(const F& f) const {
    f(int64_t{0}, shape_.num_heads, false);
    f(shape_.num_heads, shape_.num_kv_heads, true);
  }

  // The heads [first, first + count) of all tokens, one after the other.
  std::vector<float> Gather(const std::vector<float>& qkv, int64_t first,
                            int64_t count) const {
    std::vector<float> heads;
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      const auto begin = qkv.begin() + t * row_ + first * shape_.head_dim;
      heads.insert(heads.end(), begin, begin + count * shape_.head_dim);
    }
    return heads;
  }
  void Scatter(const std::vector<float>& heads, int64_t first, int64_t count,
               std::vector<float>& qkv) const {
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      std::copy_n(heads.begin() + t * count * shape_.head_dim,
                  count * shape_.head_dim,
                  qkv.begin() + t * row_ + first * shape_.head_dim);
    }
  }

  // Rows without gaps, spread to rows with gaps of NaN, and back; the latter
  // also checks that nobody wrote the gaps.
  Bf16s Spread(const Bf16s& rows) const {
    Bf16s spread(shape_.num_tokens * stride_, kNanBf16);
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      std::copy_n(rows.begin() + t * row_, row_, spread.begin() + t * stride_);
    }
    return spread;
  }
  Bf16s Join(const Bf16s& spread) const {
    Bf16s rows(shape_.num_tokens * row_);
    for (int64_t t = 0; t < shape_.num_tokens; ++t) {
      std::copy_n(spread.begin() + t * stride_, row_, rows.begin() + t * row_);
      for (int64_t i = row_; i < stride_; ++i) {
        EXPECT_EQ(spread[t * stride_ + i], kNanBf16) << "gap of token " << t;
      }
    }
    return rows;
  }

  const RopeBf16Shape shape_ = GetParam().shape;
  const int64_t row_ =
      (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
  const int64_t stride_ = row_ + GetParam().gap;
  const int64_t num_all_heads_ = shape_.num_heads + shape_.num_kv_heads;
  std::vector<float> table_;
  std::vector<int32_t> position_ids_;
  RandomNormals random_;
};

// Goal: both directions mean what rope.h says, in place, and leave the value
// heads and the gaps between rows alone; backward, amax is the largest
// magnitude of all heads, those of values included. Method: against the
// reference on the same bf16 inputs.
TEST_P(RopeBf16Test, TurnsInPlace) {
  const Bf16s qkv = random_.Bits(shape_.num_tokens * row_);
  const DeviceBuffer<float> table = ToDevice(table_);
  const DeviceBuffer<int32_t> ids = ToDevice(position_ids_);
  for (const bool inverse : {false, true}) {
    DeviceBuffer<uint16_t> device = ToDevice(Spread(qkv));
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const int32_t* position_ids =
        GetParam().has_position_ids ? ids.data() : nullptr;
    const absl::Status status =
        inverse ? LaunchRopeBackwardBf16({.d_qkv = device.data(),
                                          .d_qkv_token_stride = stride_,
                                          .table = table.data(),
                                          .position_ids = position_ids,
                                          .shape = shape_,
                                          .amax = amax.data()},
                                         nullptr)
                : LaunchRopeForwardBf16({.out = device.data(),
                                         .out_token_stride = stride_,
                                         .qkv = device.data(),
                                         .qkv_token_stride = stride_,
                                         .table = table.data(),
                                         .position_ids = position_ids,
                                         .shape = shape_},
                                        nullptr);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> expected = FromBf16(qkv);
    Turn(expected, inverse);
    const Bf16s actual = Join(ToHost(device));
    ExpectNear(FromBf16(actual), expected, kRounding, kNoise,
               inverse ? "turned back" : "turned");
    EXPECT_EQ(ToHost(amax)[0], inverse ? LargestMagnitude(actual) : 0.0f);
  }
}

// Goal: forward with QK-norm is RMSNorm of each head, then the turn; out of
// place it writes the query and key heads and nothing else, in place it gives
// the same bits. Method: the references in turn.
TEST_P(RopeBf16Test, NormsThenTurns) {
  const Bf16s qkv = random_.Bits(shape_.num_tokens * row_);
  const Bf16s weights[2] = {random_.Bits(shape_.head_dim),
                            random_.Bits(shape_.head_dim)};
  std::vector<float> expected = FromBf16(qkv);
  std::vector<float> expected_rstd(shape_.num_tokens * num_all_heads_);
  ForParts([&](int64_t first, int64_t count, bool is_key) {
    std::vector<float> heads = Gather(expected, first, count);
    std::vector<float> rstd(shape_.num_tokens * count);
    const std::vector<float> weight = FromBf16(weights[is_key]);
    RmsNormForwardReference({.y = heads.data(),
                             .rstd = rstd.data(),
                             .x = heads.data(),
                             .weight = weight.data(),
                             .num_tokens = shape_.num_tokens * count,
                             .hidden = shape_.head_dim,
                             .epsilon = kEpsilon});
    Scatter(heads, first, count, expected);
    for (int64_t i = 0; i < shape_.num_tokens * count; ++i) {
      expected_rstd[i / count * num_all_heads_ + first + i % count] = rstd[i];
    }
  });
  Turn(expected, false);

  const DeviceBuffer<float> table = ToDevice(table_);
  const DeviceBuffer<int32_t> ids = ToDevice(position_ids_);
  const DeviceBuffer<uint16_t> q_weight = ToDevice(weights[0]),
                               k_weight = ToDevice(weights[1]);
  DeviceBuffer<uint16_t> device = ToDevice(Spread(qkv));
  DeviceBuffer<float> rstd = PoisonedFloats(shape_.num_tokens * num_all_heads_);
  RopeForwardBf16Args args = {
      .out_token_stride = num_all_heads_ * shape_.head_dim,
      .qkv = device.data(),
      .qkv_token_stride = stride_,
      .table = table.data(),
      .position_ids = GetParam().has_position_ids ? ids.data() : nullptr,
      .q_weight = q_weight.data(),
      .k_weight = k_weight.data(),
      .rstd = rstd.data(),
      .epsilon = kEpsilon,
      .shape = shape_};
  DeviceBuffer<uint16_t> out =
      PoisonedBf16(shape_.num_tokens * args.out_token_stride);
  args.out = out.data();
  absl::Status status = LaunchRopeForwardBf16(args, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const Bf16s apart = ToHost(out);
  ExpectNear(FromBf16(apart), Gather(expected, 0, num_all_heads_), kRounding,
             kNoise, "out");
  ExpectNear(ToHost(rstd), expected_rstd, 2e-6, 0, "rstd");

  args.out = device.data();
  args.out_token_stride = stride_;
  status = LaunchRopeForwardBf16(args, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> in_place = FromBf16(Join(ToHost(device)));
  EXPECT_EQ(Gather(in_place, 0, num_all_heads_), FromBf16(apart));
  EXPECT_EQ(Gather(in_place, num_all_heads_, shape_.num_kv_heads),
            Gather(FromBf16(qkv), num_all_heads_, shape_.num_kv_heads));
}

// Goal: backward with QK-norm turns back, then is the backward pass of RMSNorm;
// weight gradients are set or added to, and equal bits come again. Tolerance of
// the weight gradients: sums of up to 777 x 32 fp32 terms of size 10.
TEST_P(RopeBf16Test, TurnsBackThenUndoesTheNorm) {
  const Bf16s qkv = random_.Bits(shape_.num_tokens * row_);
  const Bf16s d_qkv = random_.Bits(shape_.num_tokens * row_);
  const Bf16s weights[2] = {random_.Bits(shape_.head_dim),
                            random_.Bits(shape_.head_dim)};
  const std::vector<float> before[2] = {random_.Floats(shape_.head_dim),
                                        random_.Floats(shape_.head_dim)};
  std::vector<float> turned = FromBf16(d_qkv);
  Turn(turned, true);
  for (const bool accumulate : {false, true}) {
    SCOPED_TRACE(absl::StrCat("accumulate ", accumulate));
    std::vector<float> expected = turned;
    std::vector<float> d_weights[2] = {before[0], before[1]};
    std::vector<float> all_rstd(shape_.num_tokens * num_all_heads_);
    ForParts([&](int64_t first, int64_t count, bool is_key) {
      const int64_t num_rows = shape_.num_tokens * count;
      const std::vector<float> x = Gather(FromBf16(qkv), first, count);
      const std::vector<float> d_y = Gather(turned, first, count);
      const std::vector<float> weight = FromBf16(weights[is_key]);
      std::vector<float> rstd(num_rows), d_x(x.size()), unused(x.size());
      RmsNormForwardReference({.y = unused.data(),
                               .rstd = rstd.data(),
                               .x = x.data(),
                               .weight = weight.data(),
                               .num_tokens = num_rows,
                               .hidden = shape_.head_dim,
                               .epsilon = kEpsilon});
      RmsNormBackwardReference({.d_x = d_x.data(),
                                .d_weight = d_weights[is_key].data(),
                                .d_y = d_y.data(),
                                .x = x.data(),
                                .rstd = rstd.data(),
                                .weight = weight.data(),
                                .d_residual = nullptr,
                                .num_tokens = num_rows,
                                .hidden = shape_.head_dim,
                                .accumulate = accumulate});
      Scatter(d_x, first, count, expected);
      for (int64_t i = 0; i < num_rows; ++i) {
        all_rstd[i / count * num_all_heads_ + first + i % count] = rstd[i];
      }
    });

    const DeviceBuffer<float> table = ToDevice(table_);
    const DeviceBuffer<int32_t> ids = ToDevice(position_ids_);
    const DeviceBuffer<uint16_t> q_weight = ToDevice(weights[0]),
                                 k_weight = ToDevice(weights[1]),
                                 x = ToDevice(Spread(qkv));
    const DeviceBuffer<float> rstd = ToDevice(all_rstd);
    auto run = [&](bool with_amax) {
      DeviceBuffer<uint16_t> d = ToDevice(Spread(d_qkv));
      DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
      DeviceBuffer<float> d_q_weight =
          accumulate ? ToDevice(before[0]) : PoisonedFloats(shape_.head_dim);
      DeviceBuffer<float> d_k_weight =
          accumulate ? ToDevice(before[1]) : PoisonedFloats(shape_.head_dim);
      DeviceBuffer<float> workspace =
          PoisonedFloats(RopeBackwardBf16WorkspaceBytes(shape_) / 4);
      const absl::Status status = LaunchRopeBackwardBf16(
          {.d_qkv = d.data(),
           .d_qkv_token_stride = stride_,
           .table = table.data(),
           .position_ids = GetParam().has_position_ids ? ids.data() : nullptr,
           .q_weight = q_weight.data(),
           .k_weight = k_weight.data(),
           .qkv = x.data(),
           .qkv_token_stride = stride_,
           .rstd = rstd.data(),
           .d_q_weight = d_q_weight.data(),
           .d_k_weight = d_k_weight.data(),
           .accumulate = accumulate,
           .workspace = workspace.data(),
           .shape = shape_,
           .amax = with_amax ? amax.data() : nullptr},
          nullptr);
      EXPECT_TRUE(status.ok()) << status;
      const Bf16s rows = Join(ToHost(d));
      EXPECT_EQ(ToHost(amax)[0], with_amax ? LargestMagnitude(rows) : 0.0f);
      return std::tuple{rows, ToHost(d_q_weight), ToHost(d_k_weight)};
    };
    const auto first = run(false);
    ExpectNear(FromBf16(std::get<0>(first)), expected, kRounding, 2 * kNoise,
               "d_qkv");
    ExpectNear(std::get<1>(first), d_weights[0], 1e-5, 1e-3, "d_q_weight");
    ExpectNear(std::get<2>(first), d_weights[1], 1e-5, 1e-3, "d_k_weight");
    EXPECT_EQ(run(true), first) << "the second run differs";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeBf16Test, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           const RopeBf16Shape& shape = info.param.shape;
                           return absl::StrCat(
                               "T", shape.num_tokens, "H", shape.num_heads, "K",
                               shape.num_kv_heads, "D", shape.head_dim,
                               info.param.has_position_ids ? "Ids" : "");
                         });

// Goal: amax counts the elements that do not turn, too. Method: the largest is
// among them, then among those that turn.
TEST(RopeBf16PartTest, AmaxCountsWholeHeads) {
  constexpr int64_t kHeadDim = 64;
  constexpr int64_t kRotary = 32;
  constexpr int64_t kTokens = 9;
  const RopeBf16Shape shape = {.num_tokens = kTokens,
                               .num_heads = 2,
                               .num_kv_heads = 1,
                               .head_dim = kHeadDim,
                               .sequence_length = kTokens,
                               .table_length = kTokens,
                               .rotary_dim = kRotary};
  std::vector<float> table(RopeTableBytes(kTokens, kRotary) / 4);
  ASSERT_TRUE(FillRopeTable(table.data(), kTokens, kRotary, 10000.0).ok());
  const DeviceBuffer<float> device_table = ToDevice(table);
  RandomNormals random;
  for (const int64_t place : {kRotary + 5, int64_t{3}, 3 * kHeadDim + 1}) {
    Bf16s d = random.Bits(kTokens * 4 * kHeadDim);
    d[5 * 4 * kHeadDim + place] = ToBf16(-40.0f);
    DeviceBuffer<uint16_t> device_d = ToDevice(d);
    DeviceBuffer<float> amax = ToDevice(std::vector<float>{0.0f});
    const absl::Status status =
        LaunchRopeBackwardBf16({.d_qkv = device_d.data(),
                                .d_qkv_token_stride = 4 * kHeadDim,
                                .table = device_table.data(),
                                .shape = shape,
                                .amax = amax.data()},
                               nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(ToHost(amax)[0], LargestMagnitude(ToHost(device_d)));
  }
}

// Goal: no tokens do nothing, but weight gradients are still set.
TEST(RopeBf16ShapeTest, NoTokens) {
  const RopeBf16Shape shape = {0, 2, 1, 64, 10, 10};
  EXPECT_TRUE(LaunchRopeForwardBf16({.shape = shape}, nullptr).ok());
  EXPECT_TRUE(LaunchRopeBackwardBf16({.shape = shape}, nullptr).ok());
  const DeviceBuffer<uint16_t> weight = PoisonedBf16(64);
  DeviceBuffer<float> d_q_weight = PoisonedFloats(64);
  DeviceBuffer<float> d_k_weight = PoisonedFloats(64);
  EXPECT_TRUE(LaunchRopeBackwardBf16({.q_weight = weight.data(),
                                      .k_weight = weight.data(),
                                      .d_q_weight = d_q_weight.data(),
                                      .d_k_weight = d_k_weight.data(),
                                      .shape = shape},
                                     nullptr)
                  .ok());
  EXPECT_EQ(ToHost(d_q_weight), std::vector<float>(64, 0.0f));
  EXPECT_EQ(ToHost(d_k_weight), std::vector<float>(64, 0.0f));
}

// Goal: what the kernels cannot do is refused by name, before any launch.
TEST(RopeBf16ShapeTest, RefusesWhatItCannotDo) {
  const RopeForwardBf16Args good = {.out_token_stride = 256,
                                    .qkv_token_stride = 256,
                                    .shape = {1, 2, 1, 64, 10, 10}};
  auto refuse = [](const RopeForwardBf16Args& args, const char* named) {
    const absl::Status status = LaunchRopeForwardBf16(args, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find(named) != absl::string_view::npos)
        << status;
  };
  for (const int64_t head_dim : {0, 8, 72, 528}) {
    RopeForwardBf16Args args = good;
    args.shape.head_dim = head_dim;
    refuse(args, absl::StrCat("got ", head_dim).c_str());
  }
  RopeForwardBf16Args args = good;
  args.shape.num_kv_heads = 0;
  refuse(args, "0 key heads");
  args = good;
  args.shape.num_tokens = int64_t{1} << 30;
  refuse(args, "1073741824 tokens");
  args = good;
  args.shape.table_length = 9;
  refuse(args, "a table of 9 positions");
  args = good;
  args.out_token_stride = 257;
  refuse(args, "got 257");
  const uint16_t weight[8] = {};
  args = good;
  args.q_weight = weight;
  refuse(args, "one is missing");
  args = good;
  args.qkv = reinterpret_cast<const void*>(uintptr_t{8});
  refuse(args, "16 bytes");
}

}  // namespace
}  // namespace millrace
