// A matrix product, after Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (2008): blocks of b, and of a where it is transposed,
// are copied into panels that the innermost loop reads in order, and a few rows
// by up to three vectors of c stay in registers over a block of the depth.
//
// Every element of c is computed alike wherever it lies: one chain of
// multiply-adds from zero over each kGemmDepth steps of the depth, and each
// chain's result added to the element, in order. Its bits therefore depend
// neither on the range that it is part of nor on the product's other sizes.

#ifndef MILLRACE_KERNELS_CPU_GEMM_LOOPS_H_
#define MILLRACE_KERNELS_CPU_GEMM_LOOPS_H_

#include "kernels/cpu/gemm_range.h"
#include "kernels/cpu/vector.h"

namespace millrace {
namespace {

// The sums of a tile, a row of b and a broadcast fill the registers: 24 + 3 + 1
// of 32 in AVX-512, 12 + 3 + 1 of 16 below.
#if defined(__AVX512F__)
constexpr int kGemmRows = 8;
#else
constexpr int kGemmRows = 4;
#endif
constexpr int kGemmVectors = 3;
constexpr int kGemmPanel = kGemmVectors * kLanes;  // Columns.

static_assert(kGemmBlockRows % kGemmRows == 0);
static_assert(kGemmBlockCols % kGemmPanel == 0);
static_assert(kGemmRowUnit % kGemmRows == 0);
static_assert(kGemmColUnit % kGemmPanel == 0);

inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The columns of the next panel where `cols` are left. Four vectors are halved:
// one alone has too few sums to keep the multipliers busy.
inline int64_t PanelCols(int64_t cols) {
  if (cols > kGemmPanel && cols <= 4 * kLanes) return 2 * kLanes;
  return Smaller(cols, kGemmPanel);
}

// A panel of so many columns is filled with zeros up to whole vectors.
inline int64_t PanelWidth(int64_t cols) {
  return (cols + kLanes - 1) / kLanes * kLanes;
}

// c[r, :] (+)= sum over p of a[r * a_row + p * a_step] * b[p, :]. Rows of the
// panel b follow one another.
struct GemmTile {
  float* c;
  int64_t c_stride;
  const float* a;
  int64_t a_row;
  int64_t a_step;
  const float* b;
  int64_t depth;
  bool accumulate;
};

// Unrolled by hand: else GCC 12 keeps the sums in memory before and after the
// loop over the depth, which costs 3 %.
template <int kRows, int kVectors>
__attribute__((noinline)) void MultiplyTile(const GemmTile& tile) {
  Floats sums[kRows][kVectors];
  float* c = tile.c;
  const int64_t c_stride = tile.c_stride;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = Floats{};
      __builtin_prefetch(c + r * c_stride + v * kLanes, 1);
    }
  }
  const float* a = tile.a;
  const float* b = tile.b;
  const int64_t a_row = tile.a_row;
  const int64_t a_step = tile.a_step;
  for (int64_t p = tile.depth; p > 0; --p) {
    Floats b_row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) b_row[v] = Load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats left = Broadcast(a[r * a_row]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] += left * b_row[v];
    }
    a += a_step;
    b += kVectors * kLanes;
  }
  if (tile.accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] += Load(c + r * c_stride + v * kLanes);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      Store(c + r * c_stride + v * kLanes, sums[r][v]);
    }
  }
}

// [rows - 1][vectors - 1].
constexpr void (*kMultiplyTile[][kGemmVectors])(const GemmTile&) = {
    {MultiplyTile<1, 1>, MultiplyTile<1, 2>, MultiplyTile<1, 3>},
    {MultiplyTile<2, 1>, MultiplyTile<2, 2>, MultiplyTile<2, 3>},
    {MultiplyTile<3, 1>, MultiplyTile<3, 2>, MultiplyTile<3, 3>},
    {MultiplyTile<4, 1>, MultiplyTile<4, 2>, MultiplyTile<4, 3>},
#if defined(__AVX512F__)
    {MultiplyTile<5, 1>, MultiplyTile<5, 2>, MultiplyTile<5, 3>},
    {MultiplyTile<6, 1>, MultiplyTile<6, 2>, MultiplyTile<6, 3>},
    {MultiplyTile<7, 1>, MultiplyTile<7, 2>, MultiplyTile<7, 3>},
    {MultiplyTile<8, 1>, MultiplyTile<8, 2>, MultiplyTile<8, 3>},
#endif
};

// A tile whose last vector reaches beyond the columns of c.
void MultiplyTileInPart(const GemmTile& tile, int64_t rows, int64_t cols) {
  float sums[kGemmRows * kGemmPanel];
  GemmTile whole = tile;
  whole.c = sums;
  whole.c_stride = kGemmPanel;
  whole.accumulate = false;
  kMultiplyTile[rows - 1][(cols - 1) / kLanes](whole);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < cols; ++j) {
      const float sum = sums[r * kGemmPanel + j];
      float* c = tile.c + r * tile.c_stride + j;
      *c = tile.accumulate ? *c + sum : sum;
    }
  }
}

// Lanes of the operands of __builtin_shuffle that transpose 4 x 4 floats in
// every quarter of four vectors, in two rounds.
struct TransposeLanes {
  Ints low, high, even, odd;
};

inline TransposeLanes LanesOfTranspose() {
  TransposeLanes lanes = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    const int quarter = lane / 4 * 4;
    lanes.low[lane] = quarter + lane % 4 / 2 + lane % 2 * kLanes;
    lanes.high[lane] = lanes.low[lane] + 2;
    lanes.even[lane] = quarter + lane % 2 + lane % 4 / 2 * kLanes;
    lanes.odd[lane] = lanes.even[lane] + 2;
  }
  return lanes;
}

// Four floats of each of kLanes / 4 rows that are `stride` apart.
inline Floats LoadQuarters(const float* from, int64_t stride) {
#if defined(__AVX512F__)
  __m512 joined = _mm512_castps128_ps512(_mm_loadu_ps(from));
  joined = _mm512_insertf32x4(joined, _mm_loadu_ps(from + stride), 1);
  joined = _mm512_insertf32x4(joined, _mm_loadu_ps(from + 2 * stride), 2);
  return _mm512_insertf32x4(joined, _mm_loadu_ps(from + 3 * stride), 3);
#elif defined(__AVX2__)
  const __m256 first = _mm256_castps128_ps256(_mm_loadu_ps(from));
  return _mm256_insertf128_ps(first, _mm_loadu_ps(from + stride), 1);
#else
  (void)stride;
  return Load(from);
#endif
}

// to[p * width + j] = from[p + j * stride] for the kLanes columns j.
void PackTransposed(float* to, int64_t width, const float* from, int64_t stride,
                    int64_t depth) {
  const TransposeLanes lanes = LanesOfTranspose();
  int64_t p = 0;
  for (; p + 4 <= depth; p += 4) {
    Floats in[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = LoadQuarters(from + p + i * stride, 4 * stride);
    }
    const Floats low01 = __builtin_shuffle(in[0], in[1], lanes.low);
    const Floats low23 = __builtin_shuffle(in[2], in[3], lanes.low);
    const Floats high01 = __builtin_shuffle(in[0], in[1], lanes.high);
    const Floats high23 = __builtin_shuffle(in[2], in[3], lanes.high);
    float* rows = to + p * width;
    Store(rows, __builtin_shuffle(low01, low23, lanes.even));
    Store(rows + width, __builtin_shuffle(low01, low23, lanes.odd));
    Store(rows + 2 * width, __builtin_shuffle(high01, high23, lanes.even));
    Store(rows + 3 * width, __builtin_shuffle(high01, high23, lanes.odd));
  }
  for (; p < depth; ++p) {
    for (int j = 0; j < kLanes; ++j) to[p * width + j] = from[p + j * stride];
  }
}

// The first `cols` columns of a panel, in whole vectors but for the last.
void PackPanel(float* to, int64_t width, const GemmRange& range,
               const float* from, int64_t depth, int64_t cols) {
  for (int64_t j = 0; j < cols; j += kLanes) {
    const float* column = from + j * range.b_col;
    const int64_t count = cols - j;
    if (count >= kLanes && range.b_step == 1) {
      PackTransposed(to + j, width, column, range.b_col, depth);
      continue;
    }
    for (int64_t p = 0; p < depth; ++p, column += range.b_step) {
      float* lanes = to + p * width + j;
      if (count >= kLanes && range.b_col == 1) {
        Store(lanes, Load(column));
        continue;
      }
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = lane < count ? column[lane * range.b_col] : 0.0f;
      }
    }
  }
}

// Rows of a matrix copied into one panel before the next: few enough that they
// stay in the first-level cache together, whatever their stride.
constexpr int64_t kPackedRows = 8;

// Copies depth x cols elements of b, the panels one after another.
void PackColumns(float* to, const GemmRange& range, const float* b,
                 int64_t depth, int64_t cols) {
  const int64_t at_once = range.b_step == 1 ? depth : kPackedRows;
  for (int64_t p = 0; p < depth; p += at_once) {
    int64_t panel_cols = 0;
    for (int64_t col = 0; col < cols; col += panel_cols) {
      panel_cols = PanelCols(cols - col);
      const int64_t width = PanelWidth(panel_cols);
      PackPanel(to + col * depth + p * width, width, range,
                b + p * range.b_step + col * range.b_col,
                Smaller(depth - p, at_once), panel_cols);
    }
  }
}

// Copies rows x depth elements of a transposed a into panels of kGemmRows rows,
// the last one narrower.
void PackRows(float* to, const GemmRange& range, const float* a, int64_t depth,
              int64_t rows) {
  for (int64_t begin = 0; begin < depth; begin += kPackedRows) {
    const int64_t end = Smaller(begin + kPackedRows, depth);
    for (int64_t row = 0; row < rows; row += kGemmRows) {
      float* panel = to + row * depth;
      const int64_t height = Smaller(rows - row, kGemmRows);
      for (int64_t p = begin; p < end; ++p) {
        const float* from = a + p * range.a_step + row;
        if (height == kGemmRows) {
          __builtin_memcpy(panel + p * kGemmRows, from,
                           sizeof(float) * kGemmRows);
        } else {
          for (int64_t r = 0; r < height; ++r) panel[p * height + r] = from[r];
        }
      }
    }
  }
}

// A block of the depth of a few rows: a as it lies or packed, b packed.
struct GemmBlock {
  float* c;
  const float* a;
  const float* packed_b;
  int64_t rows;
  int64_t cols;
  int64_t depth;
  bool a_is_packed;
  bool accumulate;
};

void MultiplyBlock(const GemmBlock& block, const GemmRange& range) {
  int64_t panel_cols = 0;
  for (int64_t col = 0; col < block.cols; col += panel_cols) {
    panel_cols = PanelCols(block.cols - col);
    for (int64_t row = 0; row < block.rows; row += kGemmRows) {
      const int64_t rows = Smaller(block.rows - row, kGemmRows);
      const GemmTile tile = {
          .c = block.c + row * range.c_stride + col,
          .c_stride = range.c_stride,
          .a = block.a + row * (block.a_is_packed ? block.depth : range.a_row),
          .a_row = block.a_is_packed ? 1 : range.a_row,
          .a_step = block.a_is_packed ? rows : range.a_step,
          .b = block.packed_b + col * block.depth,
          .depth = block.depth,
          .accumulate = block.accumulate};
      if (panel_cols % kLanes == 0) {
        kMultiplyTile[rows - 1][panel_cols / kLanes - 1](tile);
      } else {
        MultiplyTileInPart(tile, rows, panel_cols);
      }
    }
  }
}

void GemmLoop(const GemmRange& range) {
  float* packed_b = range.workspace;
  float* packed_a = packed_b + kGemmDepth * kGemmBlockCols;
  // Rows of a that lie crosswise are worth copying if read several times.
  const bool pack_a = range.a_step != 1 && range.cols > 2 * kGemmColUnit;
  for (int64_t p = 0; p < range.depth; p += kGemmDepth) {
    const int64_t depth = Smaller(range.depth - p, kGemmDepth);
    for (int64_t col = 0; col < range.cols; col += kGemmBlockCols) {
      const int64_t cols = Smaller(range.cols - col, kGemmBlockCols);
      PackColumns(packed_b, range,
                  range.b + p * range.b_step + col * range.b_col, depth, cols);
      for (int64_t row = 0; row < range.rows; row += kGemmBlockRows) {
        const int64_t rows = Smaller(range.rows - row, kGemmBlockRows);
        const float* a = range.a + row * range.a_row + p * range.a_step;
        if (pack_a) PackRows(packed_a, range, a, depth, rows);
        MultiplyBlock({.c = range.c + row * range.c_stride + col,
                       .a = pack_a ? packed_a : a,
                       .packed_b = packed_b,
                       .rows = rows,
                       .cols = cols,
                       .depth = depth,
                       .a_is_packed = pack_a,
                       .accumulate = range.accumulate || p > 0},
                      range);
      }
    }
  }
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_GEMM_LOOPS_H_
