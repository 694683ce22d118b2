// The matrix products of wgmma.cuh, wgmma_wide.cuh, wgmma_attention.cuh and
// wgmma_fp8.cuh on their own: one warpgroup, operands written by ordinary
// stores in the layouts that the headers describe, against products on the
// host.

#include "kernels/cuda/wgmma.cuh"

#include <cuda_runtime.h>

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/attention_fp8.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma_attention.cuh"
#include "kernels/cuda/wgmma_fp8.cuh"
#include "kernels/cuda/wgmma_wide.cuh"
#include "tests/kernels/fp8_testing.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

using namespace hopper;  // NOLINT: what is tested.

constexpr int kM = 64;
constexpr int kDepth = 64;  // Four steps of 16, so that steps are tested too.

// Writes [rows, 64 * groups] bf16 as groups of 64 columns with 128-byte
// swizzle.
__device__ void WriteSwizzled(uint16_t* shared, const uint16_t* global,
                              int rows, int columns) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int row = i / columns;
    const int column = i % columns;
    shared[column / 64 * rows * 64 + row * 64 +
           (column % 64 / 8 ^ row % 8) * 8 + column % 8] = global[i];
  }
}

template <int kN>
__device__ void WriteAccumulator(float* out, const float (&d)[kN / 2]) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
    out[row * kN + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}

enum class First { kShared, kSharedTransposed, kRegisters };

// out = 1 + a b: the accumulator starts at one, so that `accumulate` shows. a
// is [64, 64] and b [64, kN]; either is transposed in memory if it says so.
template <int kN, First kFirst, bool kTransposeB>
__global__ void ProductKernel(const uint16_t* a, const uint16_t* b,
                              float* out) {
  extern __shared__ uint8_t unaligned[];
  uint8_t* base = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned) + 1023) & ~uintptr_t{1023});
  uint16_t* shared_a = reinterpret_cast<uint16_t*>(base);
  uint16_t* shared_b = shared_a + kM * kDepth;
  WriteSwizzled(shared_a, a, 64, 64);
  WriteSwizzled(shared_b, b, kTransposeB ? kDepth : kN,
                kTransposeB ? kN : kDepth);
  FenceSharedForAsync();
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  const int row = threadIdx.x / kWarpSize * 16 + lane / 4;
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = 1.0f;
  uint32_t fragments[kDepth / 16][4];
  for (int k = 0; k < kDepth / 16; ++k) {
    for (int r = 0; r < 4; ++r) {
      const int at =
          (row + r % 2 * 8) * kDepth + k * 16 + r / 2 * 8 + lane % 4 * 2;
      fragments[k][r] = a[at] | static_cast<uint32_t>(a[at + 1]) << 16;
    }
  }
  RegisterFence(d);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    const uint64_t b_part =
        kTransposeB ? SwizzledDescriptor(SharedAddress(shared_b) + k * 2048,
                                         kDepth * 128)
                    : SwizzledDescriptor(SharedAddress(shared_b) + k * 32, 0);
    if constexpr (kFirst == First::kRegisters && kTransposeB) {
      MultiplyValues<kN>(d, fragments[k], b_part, true);
    } else if constexpr (kFirst == First::kRegisters) {
      MultiplyRegisters<kN, kTransposeB>(d, fragments[k], b_part, true);
    } else {
      constexpr bool kTransposeA = kFirst == First::kSharedTransposed;
      MultiplyWide<kN, kTransposeA, kTransposeB>(
          d,
          SwizzledDescriptor(
              SharedAddress(shared_a) + k * (kTransposeA ? 2048 : 32), 0),
          b_part, true);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  RegisterFence(d);
  WriteAccumulator<kN>(out, d);
}

// Small integers: every product and sum is exact in fp32 in any order.
Bf16s SmallIntegers(int64_t count) {
  std::mt19937 generator(std::random_device{}());
  std::uniform_int_distribution<int> uniform(-4, 4);
  Bf16s bits(count);
  for (uint16_t& b : bits) b = ToBf16(static_cast<float>(uniform(generator)));
  return bits;
}

template <int kN, First kFirst, bool kTransposeB>
void ExpectProduct() {
  const Bf16s a = SmallIntegers(kM * kDepth);
  const Bf16s b = SmallIntegers(kDepth * kN);
  DeviceBuffer<uint16_t> device_a = ToDevice(a);
  DeviceBuffer<uint16_t> device_b = ToDevice(b);
  DeviceBuffer<float> out = PoisonedFloats(kM * kN);
  constexpr int kWholeGroups = (kN + 63) / 64 * 64;
  constexpr int kSharedBytes = 1024 + (kM + kWholeGroups) * kDepth * 2;
  const auto kernel = ProductKernel<kN, kFirst, kTransposeB>;
  ASSERT_EQ(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedBytes),
      cudaSuccess);
  kernel<<<1, kWarpgroupSize, kSharedBytes>>>(device_a.data(), device_b.data(),
                                              out.data());
  const std::vector<float> host = ToHost(out);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float expected = 1.0f;
      for (int k = 0; k < kDepth; ++k) {
        const uint16_t left = kFirst == First::kSharedTransposed
                                  ? a[k * kM + m]
                                  : a[m * kDepth + k];
        const uint16_t right = kTransposeB ? b[k * kN + n] : b[n * kDepth + k];
        expected += FromBf16(left) * FromBf16(right);
      }
      ASSERT_EQ(host[m * kN + n], expected)
          << "width " << kN << ", row " << m << " column " << n;
    }
  }
}

// Goal: every width and transposition multiplies what its header says lies in
// shared memory. Method: exact products of small integers, four steps of k, on
// top of ones.
TEST(WgmmaTest, MultipliesFromSharedMemory) {
  ExpectProduct<64, First::kShared, false>();
  ExpectProduct<64, First::kShared, true>();
  ExpectProduct<64, First::kSharedTransposed, false>();
  ExpectProduct<64, First::kSharedTransposed, true>();
  ExpectProduct<96, First::kShared, false>();
  ExpectProduct<96, First::kSharedTransposed, false>();
  ExpectProduct<128, First::kShared, false>();
  ExpectProduct<128, First::kShared, true>();
  ExpectProduct<128, First::kSharedTransposed, false>();
  ExpectProduct<128, First::kSharedTransposed, true>();
}

TEST(WgmmaTest, MultipliesWideTiles) {
  ExpectProduct<192, First::kShared, false>();
  ExpectProduct<192, First::kSharedTransposed, true>();
  ExpectProduct<256, First::kShared, false>();
  ExpectProduct<256, First::kSharedTransposed, true>();
}

TEST(WgmmaTest, MultipliesFromRegisters) {
  ExpectProduct<64, First::kRegisters, false>();
  ExpectProduct<64, First::kRegisters, true>();
  ExpectProduct<96, First::kRegisters, false>();
  ExpectProduct<96, First::kRegisters, true>();
  ExpectProduct<128, First::kRegisters, false>();
  ExpectProduct<128, First::kRegisters, true>();
  ExpectProduct<256, First::kRegisters, true>();
}

// s = a b^T over kRowBytes columns, both in swizzled rows of bytes.
template <int kN, int kRowBytes>
__global__ void Fp8RowsKernel(const uint8_t* a, const uint8_t* b, float* out) {
  __shared__ alignas(1024) uint8_t shared_a[kM * kRowBytes];
  __shared__ alignas(1024) uint8_t shared_b[kN * kRowBytes];
  auto write = [&](uint8_t* shared, const uint8_t* global, int rows) {
    for (int i = threadIdx.x; i < rows * kRowBytes; i += blockDim.x) {
      const int row = i / kRowBytes;
      const int chunk = i % kRowBytes / 16;
      const int moved =
          kRowBytes == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
      shared[row * kRowBytes + moved * 16 + i % 16] = global[i];
    }
  };
  write(shared_a, a, kM);
  write(shared_b, b, kN);
  FenceSharedForAsync();
  __syncthreads();
  float d[kN / 2];
  RegisterFence(d);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kRowBytes / 32; ++k) {
    MultiplySharedFp8<kN>(
        d, Fp8RowsDescriptor<kRowBytes>(SharedAddress(shared_a) + k * 32),
        Fp8RowsDescriptor<kRowBytes>(SharedAddress(shared_b) + k * 32), k != 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  RegisterFence(d);
  WriteAccumulator<kN>(out, d);
}

// An accumulator's values, here columns 0..63 of p, become the first operand of
// p v; v is packed, its 16 tokens at a time in the order that this needs.
template <int kN>
__global__ void Fp8PackedKernel(const float* p, const uint8_t* v, float* out) {
  constexpr int kTokens = 64;
  __shared__ alignas(128) uint8_t shared_v[kTokens * kN];
  for (int i = threadIdx.x; i < kTokens * kN; i += blockDim.x) {
    shared_v[i] = v[i];
  }
  FenceSharedForAsync();
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  float s[kTokens / 2];
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int row = threadIdx.x / kWarpSize * 16 + lane / 4 + i % 4 / 2 * 8;
    s[i] = p[row * kTokens + i / 4 * 8 + lane % 4 * 2 + i % 2];
  }
  uint32_t operand[kTokens / 32][4];
#pragma unroll
  for (int k = 0; k < kTokens / 32; ++k) PackFp8Operand(s, k, operand[k]);
  float d[kN / 2];
  RegisterFence(d);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kTokens / 32; ++k) {
    MultiplyRegistersFp8<kN>(
        d, operand[k],
        Fp8PackedDescriptor(SharedAddress(shared_v) + k * 32 * kN), k != 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  RegisterFence(d);
  WriteAccumulator<kN>(out, d);
}

// Integers up to 4, exact in e4m3, with sums that fit 14 bits.
Fp8s SmallFp8s(int64_t count) {
  std::mt19937 generator(std::random_device{}());
  std::uniform_int_distribution<int> uniform(-4, 4);
  Fp8s bits(count);
  for (uint8_t& b : bits) b = ToFp8(uniform(generator));
  return bits;
}

template <int kN, int kRowBytes>
void ExpectFp8Rows() {
  const Fp8s a = SmallFp8s(kM * kRowBytes);
  const Fp8s b = SmallFp8s(kN * kRowBytes);
  DeviceBuffer<uint8_t> device_a = ToDevice(a);
  DeviceBuffer<uint8_t> device_b = ToDevice(b);
  DeviceBuffer<float> out = PoisonedFloats(kM * kN);
  Fp8RowsKernel<kN, kRowBytes>
      <<<1, kWarpgroupSize>>>(device_a.data(), device_b.data(), out.data());
  const std::vector<float> host = ToHost(out);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      double expected = 0.0;
      for (int k = 0; k < kRowBytes; ++k) {
        expected +=
            FromFp8(a[m * kRowBytes + k]) * FromFp8(b[n * kRowBytes + k]);
      }
      ASSERT_EQ(host[m * kN + n], expected)
          << kN << " keys, row " << m << " column " << n;
    }
  }
}

template <int kN>
void ExpectFp8Packed() {
  constexpr int kTokens = 64;
  const Fp8s p_bits = SmallFp8s(kM * kTokens);
  const Fp8s values = SmallFp8s(kTokens * kN);  // [tokens, kN]
  std::vector<float> p(p_bits.size());
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = static_cast<float>(FromFp8(p_bits[i]));
  }
  Fp8s packed(values.size());
  const AttentionFp8Shape shape = {1, kTokens, 1, 1, kN, false};
  for (int t = 0; t < kTokens; ++t) {
    for (int d = 0; d < kN; ++d) {
      packed[Fp8ValueOffset(shape, 0, 0, t, d)] = values[t * kN + d];
    }
  }
  DeviceBuffer<float> device_p = ToDevice(p);
  DeviceBuffer<uint8_t> device_v = ToDevice(packed);
  DeviceBuffer<float> out = PoisonedFloats(kM * kN);
  Fp8PackedKernel<kN>
      <<<1, kWarpgroupSize>>>(device_p.data(), device_v.data(), out.data());
  const std::vector<float> host = ToHost(out);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      double expected = 0.0;
      for (int t = 0; t < kTokens; ++t) {
        expected += p[m * kTokens + t] * FromFp8(values[t * kN + n]);
      }
      ASSERT_EQ(host[m * kN + n], expected) << "row " << m << " column " << n;
    }
  }
}

// Goal: e4m3 rows of both widths and packed values multiply as wgmma_fp8.cuh
// says, and the order of tokens in attention_fp8.h is the one an accumulator
// asks for. Method: exact products of small integers.
TEST(WgmmaFp8Test, MultipliesRows) {
  ExpectFp8Rows<kFp8KeyBlock, 64>();
  ExpectFp8Rows<kFp8KeyBlock, 128>();
}
TEST(WgmmaFp8Test, MultipliesPackedValuesByAnAccumulator) {
  ExpectFp8Packed<64>();
  ExpectFp8Packed<128>();
}

__global__ void PackKernel(const float* in, uint32_t* out, int count) {
  for (int i = threadIdx.x; i < count / 4; i += blockDim.x) {
    out[i] = PackFp8(in[4 * i], in[4 * i + 1], in[4 * i + 2], in[4 * i + 3]);
  }
}

// Goal: conversion rounds to nearest, ties to even, clips at 448, keeps order.
TEST(WgmmaFp8Test, PacksToNearest) {
  std::vector<float> in = RandomNormals().Floats(4096);
  for (float& x : in) x *= 50.0f;
  in[0] = 1e6f;
  in[1] = -1e6f;
  in[2] = 17.0f;  // Halfway between 16 and 18; 16 is even.
  in[3] = 19.0f;  // Halfway between 18 and 20; 20 is even.
  DeviceBuffer<float> device_in = ToDevice(in);
  DeviceBuffer<uint32_t> out = ToDevice(std::vector<uint32_t>(in.size() / 4));
  PackKernel<<<1, 128>>>(device_in.data(), out.data(),
                         static_cast<int>(in.size()));
  const std::vector<uint32_t> host = ToHost(out);
  auto at = [&](size_t i) {
    return FromFp8(static_cast<uint8_t>(host[i / 4] >> (i % 4 * 8)));
  };
  EXPECT_EQ(at(0), 448.0);
  EXPECT_EQ(at(1), -448.0);
  EXPECT_EQ(at(2), 16.0);
  EXPECT_EQ(at(3), 20.0);
  for (size_t i = 4; i < in.size(); ++i) {
    EXPECT_EQ(at(i), FromFp8(ToFp8(in[i]))) << in[i];
  }
}

}  // namespace
}  // namespace millrace
