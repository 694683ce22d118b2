// The primitives of mma.cuh on their own: tiles that asynchronous copies write,
// in every layout and product that they have, against products on the host.
// Small integers make every result exact.

#include "kernels/cuda/mma.cuh"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/async_copy.cuh"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

using namespace gpu;  // NOLINT: what is tested.

constexpr int kRows = 32;
constexpr int kValidRows = 29;  // The others are filled with zeros.

// Rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next, of a tile.
__device__ void WriteAccumulator(float* out, int columns, int row_tile,
                                 int column_tile, const float (&left)[4],
                                 const float (&right)[4]) {
  const int lane = threadIdx.x;
  for (int i = 0; i < 4; ++i) {
    float* at = out + (row_tile * 16 + lane / 4 + i / 2 * 8) * columns +
                column_tile * 16 + lane % 4 * 2 + i % 2;
    at[0] = left[i];
    at[8] = right[i];
  }
}

// One warp. a and b are [kRows, kColumns]; writes rows = a b^T, columns =
// a^T b, and chained = (a b^T) b with a b^T rounded to bf16 on the way.
template <int kColumns>
__global__ void ProductsKernel(const uint16_t* a, const uint16_t* b,
                               float* rows, float* columns, float* chained) {
  using Tile = SwizzledTile<kColumns>;
  constexpr int kColumnTiles = kColumns / 16;
  constexpr int kRowTiles = kRows / 16;
  __shared__ __align__(128) uint8_t shared[2][kRows * Tile::kRowBytes];
  const uint32_t tile_a = SharedAddressOf(shared[0]);
  const uint32_t tile_b = SharedAddressOf(shared[1]);
  for (int i = threadIdx.x; i < 2 * kRows * kColumns; i += 32) {
    reinterpret_cast<uint16_t*>(shared)[i] = 0x7FC0;  // Not a number.
  }
  __syncthreads();
  auto load = [](uint32_t tile, const uint16_t* from) {
    for (int i = threadIdx.x; i < kRows * Tile::kChunksPerRow; i += 32) {
      const int row = i / Tile::kChunksPerRow;
      const int chunk = i % Tile::kChunksPerRow;
      CopyAsync16OrZero(tile + Tile::Offset(row, chunk),
                        from + row * kColumns + chunk * 8, row < kValidRows);
    }
    CommitCopies();
  };
  load(tile_a, a);
  load(tile_b, b);
  WaitCopiesAllBut<1>();  // Each lane's part of a is here; b's may not be.
  WaitCopiesAllBut<0>();
  __syncthreads();
  const uint32_t a_lane = Tile::LaneAddress(tile_a, 0);
  const uint32_t a_lower = Tile::LaneAddress(tile_a, 16);
  const uint32_t b_lane = Tile::LaneAddress(tile_b, 0);

  for (int r = 0; r < kRowTiles; ++r) {
    float product[2 * kRowTiles][4] = {};
    for (int n = 0; n < kRowTiles; ++n) {
      for (int c = 0; c < kColumnTiles; ++c) {
        MultiplyAddRows(product[2 * n], product[2 * n + 1],
                        LoadMatrix(r == 0 ? Tile::Step(a_lane, 0, c)
                                          : Tile::Step(a_lower, 0, c)),
                        LoadMatrix(Tile::Step(b_lane, n, c)));
      }
      WriteAccumulator(rows, kRows, r, n, product[2 * n], product[2 * n + 1]);
    }
    for (int c = 0; c < kColumnTiles; ++c) {
      float left[4] = {}, right[4] = {};
      for (int n = 0; n < kRowTiles; ++n) {
        MultiplyAddColumns(left, right,
                           PackLeft(product[2 * n], product[2 * n + 1]),
                           LoadMatrixTransposed(Tile::Step(b_lane, n, c)));
      }
      WriteAccumulator(chained, kColumns, r, c, left, right);
    }
  }
  for (int m = 0; m < kColumnTiles; ++m) {
    for (int c = 0; c < kColumnTiles; ++c) {
      float left[4] = {}, right[4] = {};
      for (int k = 0; k < kRowTiles; ++k) {
        MultiplyAddColumns(
            left, right,
            TransposedLeft(LoadMatrixTransposed(Tile::Step(a_lane, k, m))),
            LoadMatrixTransposed(Tile::Step(b_lane, k, c)));
      }
      WriteAccumulator(columns, kColumns, m, c, left, right);
    }
  }
}

template <int kColumns>
void ExpectExactProducts() {
  std::mt19937 generator(std::random_device{}());
  std::uniform_int_distribution<int> values(-1, 1);
  std::vector<float> a(kRows * kColumns), b(kRows * kColumns);
  for (float& x : a) x = static_cast<float>(values(generator));
  for (float& x : b) x = static_cast<float>(values(generator));
  auto device_a = ToDevice(ToBf16(a));
  auto device_b = ToDevice(ToBf16(b));
  auto rows = PoisonedFloats(kRows * kRows);
  auto columns = PoisonedFloats(kColumns * kColumns);
  auto chained = PoisonedFloats(kRows * kColumns);
  ProductsKernel<kColumns><<<1, 32>>>(device_a.data(), device_b.data(),
                                      rows.data(), columns.data(),
                                      chained.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  std::vector<float> expected_rows(kRows * kRows);
  std::vector<float> expected_columns(kColumns * kColumns);
  std::vector<float> expected_chained(kRows * kColumns);
  for (int i = 0; i < kValidRows; ++i) {
    for (int j = 0; j < kValidRows; ++j) {
      float sum = 0;
      for (int c = 0; c < kColumns; ++c) {
        sum += a[i * kColumns + c] * b[j * kColumns + c];
      }
      expected_rows[i * kRows + j] = sum;
      for (int c = 0; c < kColumns; ++c) {
        expected_chained[i * kColumns + c] += sum * b[j * kColumns + c];
      }
    }
    for (int m = 0; m < kColumns; ++m) {
      for (int c = 0; c < kColumns; ++c) {
        expected_columns[m * kColumns + c] +=
            a[i * kColumns + m] * b[i * kColumns + c];
      }
    }
  }
  EXPECT_EQ(ToHost(rows), expected_rows);
  EXPECT_EQ(ToHost(columns), expected_columns);
  EXPECT_EQ(ToHost(chained), expected_chained);
}

// Goal: a tile comes out of shared memory as it went in, and fragments meet in
// products as the header says. Method: a b^T, a^T b and (a b^T) b of random
// matrices of -1, 0 and 1 with rows past the end left to zero fill, in tiles
// poisoned with NaN; equal to the last bit, as all sums are small integers.
TEST(MmaTest, ProductsOfSwizzledTilesAreExact) {
  ExpectExactProducts<32>();
  ExpectExactProducts<64>();
  ExpectExactProducts<96>();
  ExpectExactProducts<128>();
}

template <int kColumns>
void ExpectConflictFree() {
  using Tile = SwizzledTile<kColumns>;
  std::set<uint32_t> offsets;
  for (int chunk = 0; chunk < Tile::kChunksPerRow; ++chunk) {
    for (int first_row = 0; first_row < kRows; first_row += 8) {
      std::set<uint32_t> banks;
      for (int row = first_row; row < first_row + 8; ++row) {
        offsets.insert(Tile::Offset(row, chunk));
        banks.insert(Tile::Offset(row, chunk) / 16 % 8);
      }
      EXPECT_EQ(banks.size(), 8) << "chunk " << chunk << " row " << first_row;
    }
  }
  EXPECT_EQ(offsets.size(), kRows * Tile::kChunksPerRow);
  EXPECT_EQ(*offsets.rbegin(), kRows * Tile::kRowBytes - 16);
}

// Goal: the layout uses every chunk once, and eight rows of a chunk column lie
// in the eight different groups of banks that a matrix load reads at once.
TEST(MmaTest, SwizzledTilesHaveNoBankConflicts) {
  ExpectConflictFree<32>();
  ExpectConflictFree<64>();
  ExpectConflictFree<96>();
  ExpectConflictFree<128>();
  ExpectConflictFree<256>();
}

__global__ void Exp2Kernel(float* y, const float* x) {
  y[threadIdx.x] = FastExp2(x[threadIdx.x]);
}

// Goal: powers of two are accurate where softmax needs them, and vanish at
// minus infinity.
TEST(MmaTest, FastExp2IsAccurate) {
  std::vector<float> x = {0.0f, -0.25f, 1.5f, -20.3f, 8.0f, -INFINITY};
  auto device_x = ToDevice(x);
  auto device_y = PoisonedFloats(static_cast<int64_t>(x.size()));
  Exp2Kernel<<<1, static_cast<unsigned>(x.size())>>>(device_y.data(),
                                                     device_x.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> y = ToHost(device_y);
  for (size_t i = 0; i < x.size(); ++i) {
    const float expected = std::exp2(x[i]);
    EXPECT_NEAR(y[i], expected, expected * 4e-7f) << x[i];
  }
}

}  // namespace
}  // namespace millrace
