#include "kernels/pointwise/random_normal_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/random_normal.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

constexpr uint64_t kSeed = 0x123456789ABCDEF0;
constexpr uint64_t kStream = 0xFEDCBA9876543210;
constexpr double kStd = 0.02;

std::vector<float> OnDevice(FillNormalBoxArgs args) {
  DeviceBuffer<float> out = PoisonedFloats(args.end - args.begin);
  args.out = out.data();
  EXPECT_EQ(LaunchFillNormalBox(args, nullptr), absl::OkStatus());
  return ToHost(out);
}

std::vector<float> OnHost(const FillNormalBoxArgs& args) {
  std::vector<float> out(args.end - args.begin);
  for (int64_t i = args.begin; i < args.end; ++i) {
    const int64_t row = args.row_begin + i / args.box_cols;
    const int64_t col = args.col_begin + i % args.box_cols;
    FillNormal({.out = &out[i - args.begin],
                .std = args.std,
                .seed = args.seed,
                .stream = args.stream,
                .first_index = static_cast<uint64_t>(row * args.cols + col),
                .count = 1});
  }
  return out;
}

// Goal: any run of any box of a matrix holds the numbers that the CPU draws for
// the same elements. Method: whole matrices, tensor-parallel columns, rows, and
// runs that begin and end anywhere, at widths that are and are not multiples of
// a block of random bits. Logarithm, sine and cosine are within two units in
// the last place of a double, so rounding to float differs for about one in
// 10^8, by one place; more than one in 10^5 would be a mistake.
TEST(RandomNormalCudaTest, DrawsWhatTheCpuDraws) {
  const std::vector<FillNormalBoxArgs> boxes = {
      {.begin = 0, .end = 512 * 1024, .box_cols = 1024, .cols = 1024},
      {.begin = 0,
       .end = 300 * 256,
       .row_begin = 7,
       .col_begin = 512,
       .box_cols = 256,
       .cols = 1024},
      {.begin = 1234,
       .end = 99999,
       .row_begin = 3,
       .box_cols = 777,
       .cols = 777},
      {.begin = 5, .end = 6, .col_begin = 3, .box_cols = 7, .cols = 11},
      {.begin = 13,
       .end = 20000,
       .row_begin = int64_t{1} << 33,
       .col_begin = 1,
       .box_cols = 130,
       .cols = 132},
      {.begin = 8, .end = 8, .box_cols = 4, .cols = 4},
  };
  for (FillNormalBoxArgs args : boxes) {
    args.std = kStd;
    args.seed = kSeed;
    args.stream = kStream;
    const std::vector<float> actual = OnDevice(args);
    const std::vector<float> expected = OnHost(args);
    int64_t num_unlike = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      ++num_unlike;
      ASSERT_EQ(actual[i], std::nextafter(expected[i], actual[i]))
          << "element " << i << " of " << args.end - args.begin << " in "
          << args.box_cols << " columns";
    }
    EXPECT_LE(num_unlike, static_cast<int64_t>(expected.size() / 100000));
  }
}

// Goal: what cannot be is refused by name. Method: one field wrong at a time.
TEST(RandomNormalCudaTest, RefusesBoxesOutsideTheMatrix) {
  const FillNormalBoxArgs good = {.end = 8, .box_cols = 4, .cols = 4};
  FillNormalBoxArgs descending = good, wide = good, none = good;
  descending.begin = 9;
  wide.col_begin = 1;
  none.box_cols = 0;
  for (const FillNormalBoxArgs& args : {descending, wide, none}) {
    EXPECT_TRUE(absl::IsInvalidArgument(LaunchFillNormalBox(args, nullptr)));
  }
}

// Goal: a fill reaches the last element and stops there. Method: poisoned guard
// elements on both sides.
TEST(RandomNormalCudaTest, FillsExactly) {
  for (const int64_t count : {0, 1, 255, 256, 100001}) {
    DeviceBuffer<float> out = PoisonedFloats(count + 2);
    ASSERT_EQ(LaunchFill(out.data() + 1, count, 1.5f, nullptr),
              absl::OkStatus());
    const std::vector<float> values = ToHost(out);
    EXPECT_TRUE(std::isnan(values.front()) && std::isnan(values.back()));
    EXPECT_EQ(std::count(values.begin() + 1, values.end() - 1, 1.5f), count);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(LaunchFill(nullptr, -1, 0, nullptr)));
}

// Goal: eight billion parameters take less than a second on one H200. Method:
// time a quarter of a gigabyte, whose numbers the test above has checked.
TEST(RandomNormalCudaTest, IsFastEnoughForBillions) {
  constexpr int64_t kCols = 8192, kRows = 8192;
  DeviceBuffer<float> out = PoisonedFloats(kRows * kCols);
  cudaEvent_t begin, end;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  float milliseconds = 0;
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(cudaEventRecord(begin), cudaSuccess);
    ASSERT_EQ(LaunchFillNormalBox({.out = out.data(),
                                   .end = kRows * kCols,
                                   .box_cols = kCols,
                                   .cols = kCols,
                                   .std = kStd,
                                   .seed = kSeed,
                                   .stream = kStream},
                                  nullptr),
              absl::OkStatus());
    ASSERT_EQ(cudaEventRecord(end), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
    ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const double per_second = kRows * kCols / (1e-3 * milliseconds);
  RecordProperty("elements_per_second", absl::StrCat(per_second));
  std::printf("%.3g numbers a second\n", per_second);
  EXPECT_GT(per_second, 8e9);
}

}  // namespace
}  // namespace millrace
