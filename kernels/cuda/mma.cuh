// Tensor cores as every GPU from compute capability 8.0 on has them: a warp
// multiplies fragments that it holds in registers (mma.sync) and fills them
// from shared memory (ldmatrix). bf16 in, fp32 out. Names follow the PTX ISA.
//
// A fragment is four registers of two bf16 each: the four 8x8 quarters of a
// 16x16 tile, in the order (rows 0-7, columns 0-7), (rows 8-15, columns 0-7),
// (rows 0-7, columns 8-15), (rows 8-15, columns 8-15). In each quarter, lane l
// holds row l / 4, columns 2 (l % 4) and the next; loaded transposed, column
// l / 4, rows 2 (l % 4) and the next.

#ifndef MILLRACE_KERNELS_CUDA_MMA_CUH_
#define MILLRACE_KERNELS_CUDA_MMA_CUH_

#include <cstdint>

namespace millrace::gpu {

struct Fragment {
  uint32_t r[4];
};

// The left operand of a product out of a tile that was loaded transposed.
__device__ __forceinline__ Fragment TransposedLeft(const Fragment& x) {
  return {{x.r[0], x.r[2], x.r[1], x.r[3]}};
}

__device__ __forceinline__ uint32_t SharedAddressOf(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Each lane gives the address of 16 bytes: rows l % 16 of the left half of the
// tile from lanes 0 to 15, of the right half from the others.
__device__ __forceinline__ Fragment LoadMatrix(uint32_t shared_address) {
  Fragment x;
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.r[0]), "=r"(x.r[1]), "=r"(x.r[2]), "=r"(x.r[3])
      : "r"(shared_address));
  return x;
}
__device__ __forceinline__ Fragment
LoadMatrixTransposed(uint32_t shared_address) {
  Fragment x;
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.r[0]), "=r"(x.r[1]), "=r"(x.r[2]), "=r"(x.r[3])
      : "r"(shared_address));
  return x;
}

// d[16, 8] += a[16, 16] b[16, 8]. Lane l holds of d the rows l / 4 (d[0], d[1])
// and l / 4 + 8 (d[2], d[3]) at columns 2 (l % 4) and the next, so that two
// neighbouring accumulators, packed in pairs, are the left operand of a further
// product. b0 and b1 are rows 0-7 and 8-15 of b, held by column.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const Fragment& a,
                                            uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// d[16, 16] += a b^T, where `b` is a tile [16 columns of d, 16] as loaded.
__device__ __forceinline__ void MultiplyAddRows(float (&left)[4],
                                                float (&right)[4],
                                                const Fragment& a,
                                                const Fragment& b) {
  MultiplyAdd(left, a, b.r[0], b.r[2]);
  MultiplyAdd(right, a, b.r[1], b.r[3]);
}

// d[16, 16] += a b, where `b` is a tile [16, 16 columns of d] that was loaded
// transposed.
__device__ __forceinline__ void MultiplyAddColumns(float (&left)[4],
                                                   float (&right)[4],
                                                   const Fragment& a,
                                                   const Fragment& b) {
  MultiplyAdd(left, a, b.r[0], b.r[1]);
  MultiplyAdd(right, a, b.r[2], b.r[3]);
}

// Two floats as bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two neighbouring accumulators as the left operand of a further product.
__device__ __forceinline__ Fragment PackLeft(const float (&left)[4],
                                             const float (&right)[4]) {
  return {{PackBf16(left[0], left[1]), PackBf16(left[2], left[3]),
           PackBf16(right[0], right[1]), PackBf16(right[2], right[3])}};
}

// 2^x, to two units in the last place; very small results become zero.
__device__ __forceinline__ float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A row-major tile of kColumns bf16 columns in shared memory. The 16-byte
// chunks of a row change places with the row (exclusive or), so that any eight
// consecutive rows of one chunk column lie in different banks: LoadMatrix, and
// stores of accumulators by row, then meet no conflict. Its address is a
// multiple of 128.
template <int kColumns>
struct SwizzledTile {
  static_assert(kColumns % 32 == 0);
  static constexpr int kRowBytes = 2 * kColumns;
  static constexpr int kChunksPerRow = kColumns / 8;
  // Chunks change places in groups of eight where rows fill all banks, else of
  // four, every second row.
  static constexpr int kGroup = kColumns % 64 == 0 ? 8 : 4;

  __host__ __device__ static constexpr int Permute(int row, int chunk) {
    return chunk ^ (kGroup == 8 ? row & 7 : row >> 1 & 3);
  }
  // In bytes from the start of the tile.
  __host__ __device__ static constexpr uint32_t Offset(int row, int chunk) {
    return row * kRowBytes + Permute(row, chunk) * 16;
  }
  // Returns the address that this lane passes to LoadMatrix() for the tile of
  // 16 rows from `first_row`, a multiple of 16, and the first 16 columns.
  __device__ static __forceinline__ uint32_t LaneAddress(uint32_t tile,
                                                         int first_row) {
    const int lane = threadIdx.x % 32;
    return tile + Offset(first_row + lane % 16, lane / 16);
  }
  // The same 16 * row_tile rows and 16 * column_tile columns further.
  __device__ static __forceinline__ uint32_t Step(uint32_t lane_address,
                                                  int row_tile,
                                                  int column_tile) {
    constexpr int kTiles = kGroup / 2;
    return (lane_address ^ (column_tile % kTiles * 32)) +
           column_tile / kTiles * (kGroup * 16) + row_tile * (16 * kRowBytes);
  }
};

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_MMA_CUH_
