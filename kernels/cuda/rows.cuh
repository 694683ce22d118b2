// Deals the elements of bf16 rows to threads, eight at a time. The groups of
// eight are numbered across all rows, so no row length leaves lanes idle.

#ifndef MILLRACE_KERNELS_CUDA_ROWS_CUH_
#define MILLRACE_KERNELS_CUDA_ROWS_CUH_

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace millrace::gpu {

// Divides numbers below 2^31 by one known on the host, without a division
// (Granlund and Montgomery, "Division by Invariant Integers using
// Multiplication", 1994).
class Divider {
 public:
  explicit Divider(uint32_t divisor) : divisor_(divisor) {
    while ((uint64_t{1} << shift_) < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>(
        (uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor) / divisor +
        1);
  }
  __device__ __forceinline__ void Divide(uint32_t n, uint32_t* quotient,
                                         uint32_t* remainder) const {
    *quotient = (__umulhi(multiplier_, n) + n) >> shift_;
    *remainder = n - *quotient * divisor_;
  }

 private:
  uint32_t divisor_;
  uint32_t multiplier_;
  uint32_t shift_ = 0;
};

// [rows, columns], its eights numbered through.
class Eights {
 public:
  // The place of one group of eight: `count` columns of `row` from `column` on.
  // Groups beyond the last have a `count` of zero.
  struct Place {
    int64_t row;
    int64_t column;
    int count;
  };

  // rows x columns of less than kMaxEights.
  Eights(int64_t rows, int64_t columns)
      : per_row_(static_cast<uint32_t>(PerRow(columns))),
        num_eights_(static_cast<uint32_t>(rows * PerRow(columns))),
        columns_(columns) {}

  static constexpr int64_t kMaxEights = int64_t{1} << 31;
  static bool Fits(int64_t rows, int64_t columns) {
    return rows <= (kMaxEights - 1) / PerRow(columns);
  }

  uint32_t num_eights() const { return num_eights_; }

  __device__ __forceinline__ Place Find(uint32_t eight) const {
    uint32_t row, in_row;
    per_row_.Divide(eight, &row, &in_row);
    const int64_t column = int64_t{in_row} * 8;
    const int64_t left = columns_ - column;
    return {row, column,
            eight < num_eights_ ? static_cast<int>(left < 8 ? left : 8) : 0};
  }

 private:
  static int64_t PerRow(int64_t columns) { return (columns + 7) / 8; }

  Divider per_row_;
  uint32_t num_eights_;
  int64_t columns_;
};

// Eight elements at `address`, of which `count` exist; the others are zero and
// are not stored. kIsWide: the address is a multiple of 16 bytes and all of an
// eight exists or nothing, which spares registers. kStreams says that nobody
// reads the eight again; activations are 1 to 6 % faster without saying so,
// rows of embeddings 5 % slower.
template <bool kIsWide, bool kStreams = true>
__device__ __forceinline__ Float8 LoadEight(const uint16_t* address,
                                            int count) {
  if constexpr (kIsWide) {
    if (count == 0) return Unpack8(uint4{});
    return Unpack8(kStreams ? Load16Streaming(address) : Load16(address));
  }
  Float8 x = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < count) x.v[j] = LowHalf(static_cast<uint32_t>(address[j]));
  }
  return x;
}
template <bool kIsWide>
__device__ __forceinline__ void StoreEight(uint16_t* address, const Float8& x,
                                           int count) {
  const uint4 raw = Pack8(x);
  if constexpr (kIsWide) {
    if (count > 0) Store16Streaming(address, raw);
    return;
  }
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < count) {
      address[j] = static_cast<uint16_t>(words[j / 2] >> (16 * (j % 2)));
    }
  }
}

}  // namespace millrace::gpu

#endif  // MILLRACE_KERNELS_CUDA_ROWS_CUH_
