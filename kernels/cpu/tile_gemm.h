// A small matrix product on tiles that lie in the first- or second-level cache:
// the arithmetic of attention.

#ifndef MILLRACE_KERNELS_CPU_TILE_GEMM_H_
#define MILLRACE_KERNELS_CPU_TILE_GEMM_H_

#include "kernels/cpu/vector.h"

namespace millrace {
namespace {

// c[r, :] (+)= sum over p of a[r * a_row + p * a_step] * b[p, :]. Rows of b and
// c have `cols` columns, a multiple of kLanes, at their strides.
struct TileGemmArgs {
  float* c;
  int64_t c_stride;
  const float* a;
  int64_t a_row;
  int64_t a_step;
  const float* b;
  int64_t b_stride;
  int64_t rows;
  int64_t cols;
  int64_t depth;
  bool accumulate;
};

// kRows x kVectors accumulators stay in registers over the whole depth; each
// element of a is broadcast once to kVectors multiply-adds.
template <int kRows, int kVectors>
__attribute__((noinline)) void TileBlock(const TileGemmArgs& args, float* c,
                                         const float* a, const float* b) {
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] =
          args.accumulate ? Load(c + r * args.c_stride + v * kLanes) : Floats{};
    }
  }
  const int64_t a_row = args.a_row;
  const int64_t a_step = args.a_step;
  const int64_t b_stride = args.b_stride;
  for (int64_t p = args.depth; p > 0; --p) {
    Floats b_row[kVectors];
    for (int v = 0; v < kVectors; ++v) b_row[v] = Load(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats left = Broadcast(a[r * a_row]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] += left * b_row[v];
    }
    a += a_step;
    b += b_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Store(c + r * args.c_stride + v * kLanes, sums[r][v]);
    }
  }
}

template <int kVectors>
void TileColumns(const TileGemmArgs& args, int64_t col) {
  // Rows in blocks as equal as can be: 32 rows are 6 + 6 + 5 + 5 + 5 + 5.
  const int64_t num_blocks = (args.rows + kTileRows - 1) / kTileRows;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t row = args.rows * block / num_blocks;
    const int64_t rows = args.rows * (block + 1) / num_blocks - row;
    float* c = args.c + row * args.c_stride + col;
    const float* a = args.a + row * args.a_row;
    const float* b = args.b + col;
    switch (rows) {
      case 6:
        TileBlock<6, kVectors>(args, c, a, b);
        break;
      case 5:
        TileBlock<5, kVectors>(args, c, a, b);
        break;
      case 4:
        TileBlock<4, kVectors>(args, c, a, b);
        break;
      case 3:
        TileBlock<3, kVectors>(args, c, a, b);
        break;
      case 2:
        TileBlock<2, kVectors>(args, c, a, b);
        break;
      default:
        TileBlock<1, kVectors>(args, c, a, b);
    }
  }
}

void TileGemm(const TileGemmArgs& args) {
  int64_t col = 0;
  for (; col + kTileVectors * kLanes <= args.cols;
       col += kTileVectors * kLanes) {
    TileColumns<kTileVectors>(args, col);
  }
  switch ((args.cols - col) / kLanes) {
    case 3:
      TileColumns<3>(args, col);
      break;
    case 2:
      TileColumns<2>(args, col);
      break;
    case 1:
      TileColumns<1>(args, col);
      break;
    default:
      break;
  }
}

// to[c * to_stride + r] = from[r * from_stride + c] * factor.
inline void TransposeTile(float* to, int64_t to_stride, const float* from,
                          int64_t from_stride, int64_t rows, int64_t cols,
                          float factor) {
  using Four = float __attribute__((vector_size(16)));
  using LooseFour =
      float __attribute__((vector_size(16), aligned(4), may_alias));
  using FourInts = int32_t __attribute__((vector_size(16)));
  const int64_t whole_rows = rows / 4 * 4;
  const int64_t whole_cols = cols / 4 * 4;
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t c = 0; c < whole_cols; c += 4) {
      Four in[4];
      for (int i = 0; i < 4; ++i) {
        in[i] = *reinterpret_cast<const LooseFour*>(from +
                                                    (r + i) * from_stride + c) *
                factor;
      }
      const Four low01 = __builtin_shuffle(in[0], in[1], FourInts{0, 4, 1, 5});
      const Four low23 = __builtin_shuffle(in[2], in[3], FourInts{0, 4, 1, 5});
      const Four high01 = __builtin_shuffle(in[0], in[1], FourInts{2, 6, 3, 7});
      const Four high23 = __builtin_shuffle(in[2], in[3], FourInts{2, 6, 3, 7});
      const Four out[4] = {
          __builtin_shuffle(low01, low23, FourInts{0, 1, 4, 5}),
          __builtin_shuffle(low01, low23, FourInts{2, 3, 6, 7}),
          __builtin_shuffle(high01, high23, FourInts{0, 1, 4, 5}),
          __builtin_shuffle(high01, high23, FourInts{2, 3, 6, 7})};
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<LooseFour*>(to + (c + i) * to_stride + r) = out[i];
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      to[c * to_stride + r] = from[r * from_stride + c] * factor;
    }
  }
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_TILE_GEMM_H_
