#include "kernels/gemm/gemm_plain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/gemm/gemm.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

std::string ShapeName(const GemmShape& shape) {
  return absl::StrCat("m ", shape.m, " n ", shape.n, " k ", shape.k,
                      shape.trans_a ? " trans_a" : "",
                      shape.trans_b ? " trans_b" : "",
                      shape.accumulate ? " accumulate" : "");
}

// `columns` of each row, rows `stride` apart, what lies between NaN.
std::vector<float> Spread(const std::vector<float>& dense, int64_t columns,
                          int64_t stride) {
  const int64_t rows = static_cast<int64_t>(dense.size()) / columns;
  std::vector<float> spread(rows * stride, kNan);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(dense.begin() + r * columns, columns,
                spread.begin() + r * stride);
  }
  return spread;
}
std::vector<float> Gathered(const std::vector<float>& spread, int64_t columns,
                            int64_t stride) {
  std::vector<float> dense;
  for (size_t begin = 0; begin < spread.size(); begin += stride) {
    dense.insert(dense.end(), spread.begin() + begin,
                 spread.begin() + begin + columns);
  }
  return dense;
}

// Goal: any shape, transposed or not, dense or with strides, written or added
// to, in fp32, bf16 and bf16 with an fp32 output; no sum depends on what the
// workspace held. Method: against the fp64 reference; an element may be off by
// fp32 rounding of a sum of k products of normal values, about sqrt(k) 2^-24
// each, and by one rounding of the output (two where a bf16 output is added
// to).
TEST(PlainGemmTest, MatchesTheReference) {
  RandomNormals random;
  struct Types {
    ElementType type;
    bool fp32_output;
  };
  for (const auto [type, fp32_output] : {Types{ElementType::kFloat32, false},
                                         Types{ElementType::kBfloat16, false},
                                         Types{ElementType::kBfloat16, true}}) {
    for (const GemmShape& size :
         {GemmShape{.m = 1, .n = 1, .k = 1}, GemmShape{.m = 3, .n = 5, .k = 7},
          GemmShape{.m = 33, .n = 101, .k = 65},
          GemmShape{.m = 200, .n = 96, .k = 511},
          GemmShape{.m = 1, .n = 300, .k = 129},
          GemmShape{.m = 257, .n = 1, .k = 40},
          GemmShape{.m = 256, .n = 384, .k = 128}}) {
      for (int variant = 0; variant < 16; ++variant) {
        GemmShape shape = size;
        shape.trans_a = variant % 2 == 1;
        shape.trans_b = variant / 2 % 2 == 1;
        shape.accumulate = variant / 4 % 2 == 1;
        const int64_t padding = variant / 8 * 3;
        SCOPED_TRACE(absl::StrCat(ElementName(type),
                                  fp32_output ? " to fp32 " : " ",
                                  ShapeName(shape), " padding ", padding));
        const ElementType c_type = fp32_output ? ElementType::kFloat32 : type;
        const int64_t a_columns = shape.trans_a ? shape.m : shape.k;
        const int64_t b_columns = shape.trans_b ? shape.k : shape.n;
        const std::vector<float> a =
            Rounded(type, random.Floats(shape.m * shape.k));
        const std::vector<float> b =
            Rounded(type, random.Floats(shape.k * shape.n));
        const std::vector<float> before =
            shape.accumulate ? Rounded(c_type, random.Floats(shape.m * shape.n))
                             : std::vector<float>(shape.m * shape.n, kNan);
        std::vector<float> c = before;
        GemmReference(shape, c.data(), a.data(), b.data());

        const PlainGemmOptions options = {.shape = shape,
                                          .type = type,
                                          .fp32_output = fp32_output,
                                          .a_stride = a_columns + padding,
                                          .b_stride = b_columns + padding,
                                          .c_stride = shape.n + padding};
        absl::StatusOr<PlainGemmPlan> plan = PlainGemmPlan::Create(options);
        ASSERT_TRUE(plan.ok()) << plan.status();
        PlainTensor device_a(type, Spread(a, a_columns, options.a_stride),
                             /*is_aligned=*/true);
        PlainTensor device_b(type, Spread(b, b_columns, options.b_stride),
                             /*is_aligned=*/true);
        std::vector<float> first;
        for (int run = 0; run < 2; ++run) {
          PlainTensor device_c(c_type,
                               Spread(before, shape.n, options.c_stride),
                               /*is_aligned=*/true);
          DeviceBuffer<uint8_t> workspace =
              ToDevice(std::vector<uint8_t>(plan->workspace_bytes(), 0xFF));
          const absl::Status status = plan->Run({.c = device_c.data(),
                                                 .a = device_a.data(),
                                                 .b = device_b.data(),
                                                 .workspace = workspace.data()},
                                                nullptr);
          ASSERT_TRUE(status.ok()) << status;
          const std::vector<float> out =
              Gathered(device_c.Host(), shape.n, options.c_stride);
          if (run == 0) first = out;
          ExpectEqualBits(out, first, "c");
        }
        const double sum_error = 8 * 0x1p-25 * double(shape.k) + 1e-6;
        const double rounding = c_type == ElementType::kBfloat16
                                    ? (shape.accumulate ? 2 : 1) * 0x1p-8
                                    : 1e-6;
        // A bf16 product may be rounded before it is added.
        const double added =
            c_type == ElementType::kBfloat16 && shape.accumulate
                ? 0x1p-8 * 4 * std::sqrt(double(shape.k))
                : 0.0;
        ExpectNear(first, c, rounding, sum_error + added, "c");
      }
    }
  }
}

// Goal: fp32 is fp32, not tf32, which keeps ten bits of a factor. Method: one
// factor is a one and a last bit that tf32 has not, the other one; every
// partial sum fits 24 bits, so that nothing but the exact sum can come out.
TEST(PlainGemmTest, KeepsEveryBitOfFp32) {
  struct Case {
    int64_t size, k;
    float factor;
  };
  for (const auto [size, k, factor] :
       {Case{64, 1, 1.0f + 0x1p-23f}, Case{64, 64, 1.0f + 0x1p-17f},
        Case{1024, 1024, 1.0f + 0x1p-13f}}) {
    for (const bool trans_b : {false, true}) {
      const std::vector<float> factors(size * k, factor);
      const std::vector<float> ones(size * k, 1.0f);
      absl::StatusOr<PlainGemmPlan> plan = PlainGemmPlan::Create(
          {.shape = {.m = size, .n = size, .k = k, .trans_b = trans_b},
           .type = ElementType::kFloat32});
      ASSERT_TRUE(plan.ok()) << plan.status();
      DeviceBuffer<uint8_t> workspace =
          ToDevice(std::vector<uint8_t>(plan->workspace_bytes(), 0xFF));
      for (const bool is_a : {false, true}) {
        PlainTensor a(ElementType::kFloat32, is_a ? factors : ones, true);
        PlainTensor b(ElementType::kFloat32, is_a ? ones : factors, true);
        PlainTensor c(ElementType::kFloat32, size * size, true);
        const absl::Status status = plan->Run({.c = c.data(),
                                               .a = a.data(),
                                               .b = b.data(),
                                               .workspace = workspace.data()},
                                              nullptr);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(c.Host(), std::vector<float>(size * size,
                                               static_cast<float>(k) * factor))
            << "k " << k << (trans_b ? " trans_b" : "");
      }
    }
  }
}

TEST(PlainGemmTest, RefusesWhatCannotBe) {
  for (const PlainGemmOptions& options :
       {PlainGemmOptions{.shape = {.m = 0, .n = 4, .k = 4}},
        PlainGemmOptions{.shape = {.m = 4, .n = -1, .k = 4}},
        PlainGemmOptions{.shape = {.m = 4, .n = 4, .k = int64_t{1} << 31}},
        PlainGemmOptions{.shape = {.m = 4, .n = 4, .k = 4}, .a_stride = 3},
        PlainGemmOptions{.shape = {.m = 4, .n = 4, .k = 4}, .c_stride = 2},
        PlainGemmOptions{.shape = {.m = 4, .n = 4, .k = 4},
        .max_workspace_bytes = -1}}) {
    EXPECT_EQ(PlainGemmPlan::Create(options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
