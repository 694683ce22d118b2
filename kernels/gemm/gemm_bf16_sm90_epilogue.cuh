// Stores a finished accumulator of gemm_bf16_sm90.cuh. An epilogue is
// made once a consumer warpgroup and kernel, with C::kEpilogueBytes of shared
// memory and a named barrier of its own. All threads of the warpgroup call
//   template <int kN> void Write(p, row, column, end_row, d)
// for 64 rows of c from `row` on, none from end_row on, and kN columns from
// `column` on, d being as wgmma.cuh says; and at the end Finish().

#ifndef MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_EPILOGUE_CUH_
#define MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_EPILOGUE_CUH_

#include <cstdint>

#include "kernels/gemm/gemm_bf16_sm90.cuh"

namespace millrace::gemm_sm90 {

// Pieces of 64 rows and 128 bytes go out through shared memory and the copy
// engine, which clips them to c: one is written while others are still read.
// Measured on one H200, this takes 2,480 cycles a tile of 128 x 256, stores
// from registers (as StoreRowsBf16) 3,120.
template <typename C>
class PieceWriter {
 public:
  __device__ __forceinline__ PieceWriter(uint8_t* shared, int barrier)
      : shared_(shared), barrier_(barrier) {}

  // write(address) fills a piece, send(pointer) hands it to the copy engine.
  template <typename Write, typename Send>
  __device__ __forceinline__ void Next(const Write& write, const Send& send) {
    const bool leader = threadIdx.x % kWarpgroupSize == 0;
    uint8_t* piece = shared_ + piece_ * C::kPieceBytes;
    if (leader) WaitStoresRead<C::kPieces - 1>();
    NamedBarrierSync(barrier_, kWarpgroupSize);
    write(SharedAddress(piece));
    FenceSharedForAsync();
    NamedBarrierSync(barrier_, kWarpgroupSize);
    if (leader) {
      send(piece);
      CommitStores();
    }
    if (++piece_ == C::kPieces) piece_ = 0;
  }

  __device__ __forceinline__ void Finish() {
    if (threadIdx.x % kWarpgroupSize == 0) WaitStores<0>();
  }

 private:
  uint8_t* shared_;
  int barrier_;
  int piece_ = 0;
};

// Rounds to bf16. Rows end where c ends.
template <typename C>
class StoreBf16 : public PieceWriter<C> {
 public:
  using PieceWriter<C>::PieceWriter;

  template <int kN>
  __device__ __forceinline__ void Write(const Params& p, int row, int column,
                                        int /*end_row*/,
                                        const float (&d)[kN / 2]) {
    const int thread = threadIdx.x % kWarpgroupSize;
    const int lane = thread % kWarpSize;
    const int piece_row = thread / kWarpSize * 16 + lane % 16;
#pragma unroll
    for (int first = 0; first < kN; first += 64) {
      this->Next(
          [&](uint32_t piece) {
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
              const int i = first / 2 + 4 * j;
              const int chunk = (j + lane / 16) ^ (piece_row % 8);
              StoreMatrix4(
                  piece + piece_row * 128 + chunk * 16,
                  PackBfloat16(d[i] * p.scale, d[i + 1] * p.scale),
                  PackBfloat16(d[i + 2] * p.scale, d[i + 3] * p.scale),
                  PackBfloat16(d[i + 4] * p.scale, d[i + 5] * p.scale),
                  PackBfloat16(d[i + 6] * p.scale, d[i + 7] * p.scale));
            }
          },
          [&](const void* piece) {
            StoreMatrix(&p.c, piece, column + first, row);
          });
    }
  }
};

// Stores in fp32, or adds, which the L2 cache does: nobody waits for the sum,
// and nobody else adds to it. Rows end where c ends.
template <typename C, bool kAdd>
class StoreFp32 : public PieceWriter<C> {
 public:
  using PieceWriter<C>::PieceWriter;

  template <int kN>
  __device__ __forceinline__ void Write(const Params& p, int row, int column,
                                        int /*end_row*/,
                                        const float (&d)[kN / 2]) {
    const int thread = threadIdx.x % kWarpgroupSize;
    const int lane = thread % kWarpSize;
#pragma unroll
    for (int first = 0; first < kN; first += 32) {
      this->Next(
          [&](uint32_t piece) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const int piece_row =
                  thread / kWarpSize * 16 + j % 2 * 8 + lane / 4;
              const int chunk = (j / 2 * 2 + lane % 4 / 2) ^ (piece_row % 8);
              const int i = first / 2 + 2 * j;
              asm volatile(
                  "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                      piece + piece_row * 128 + chunk * 16 + lane % 2 * 8),
                  "f"(d[i] * p.scale), "f"(d[i + 1] * p.scale)
                  : "memory");
            }
          },
          [&](const void* piece) {
            if constexpr (kAdd) {
              ReduceAddMatrix(&p.c, piece, column + first, row);
            } else {
              StoreMatrix(&p.c, piece, column + first, row);
            }
          });
    }
  }
};

// Rounds to bf16 and stores from registers, row by row up to end_row. The four
// threads of a quad hold a row's columns in pairs; they exchange, so that each
// stores 16 bytes and a quad 64. Columns are a multiple of eight.
class StoreRowsBf16 {
 public:
  __device__ __forceinline__ StoreRowsBf16(uint8_t* /*shared*/,
                                           int /*barrier*/) {}

  template <int kN>
  __device__ __forceinline__ void Write(const Params& p, int row, int column,
                                        int end_row, const float (&d)[kN / 2]) {
    const int thread = threadIdx.x % kWarpgroupSize;
    row += thread / kWarpSize * 16 + thread % kWarpSize / 4;
    column += thread % 4 * 8;
    uint16_t* c = static_cast<uint16_t*>(p.c_data) + row * p.c_stride + column;
#pragma unroll
    for (int first = 0; first < kN; first += 32) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = first / 2 + i * 4 + half * 2;
          x[i] = PackBfloat16(d[at] * p.scale, d[at + 1] * p.scale);
        }
        TransposeQuad(x);
        if (row + half * 8 < end_row && column + first < p.num_columns) {
          *reinterpret_cast<uint4*>(c + half * 8 * p.c_stride + first) =
              make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void Finish() {}

 private:
  // Thread t of a quad gives x[i] to thread i, and gets its x[t].
  static __device__ __forceinline__ void TransposeQuad(uint32_t (&x)[4]) {
    const bool odd = threadIdx.x % 2 == 1;
    const bool upper = threadIdx.x % 4 >= 2;
    const uint32_t x01 = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
    const uint32_t x23 = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
    x[0] = odd ? x01 : x[0];
    x[1] = odd ? x[1] : x01;
    x[2] = odd ? x23 : x[2];
    x[3] = odd ? x[3] : x23;
    const uint32_t x02 = __shfl_xor_sync(~0u, upper ? x[0] : x[2], 2);
    const uint32_t x13 = __shfl_xor_sync(~0u, upper ? x[1] : x[3], 2);
    x[0] = upper ? x02 : x[0];
    x[1] = upper ? x13 : x[1];
    x[2] = upper ? x[2] : x02;
    x[3] = upper ? x[3] : x13;
  }
};

}  // namespace millrace::gemm_sm90

#endif  // MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_EPILOGUE_CUH_
