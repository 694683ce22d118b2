// The copies of hopper.cuh and cluster.cuh, each in a kernel just large enough
// to tell whether it does what its comment says.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

using namespace hopper;  // NOLINT: what is tested.

// Loads one box [rows, 64] of a 4-D tensor, shows shared memory as it lies, and
// stores the box into another tensor.
__global__ void TensorCopyKernel(const __grid_constant__ CUtensorMap in,
                                 const __grid_constant__ CUtensorMap out,
                                 uint16_t* raw, int rows, int x1, int x2,
                                 int x3, CachePolicy policy) {
  __shared__ alignas(1024) uint16_t tile[64 * 64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&in);
    PrefetchTensorMap(&out);
    BarrierInit(&full, 1);
    BarrierInitFence();
    BarrierArriveExpect(&full, rows * 128);
    LoadTensor4(tile, &in, &full, 64, x1, x2, x3, policy);
  }
  __syncthreads();
  BarrierWait(&full, 0);
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) raw[i] = tile[i];
  if (threadIdx.x == 0) {
    StoreTensor4(&out, tile, 64, x1, x2, x3);
    CommitStores();
    WaitStores<0>();
  }
}

// Goal: a box arrives with 128-byte swizzle, zeros beyond the tensor, its bytes
// counted in full; a store is clipped. Method: the box hangs over the last rows
// and starts at column 64 of 128; every other byte of the output stays poison.
TEST(TensorCopyTest, SwizzlesFillsAndClips) {
  constexpr int64_t kColumns = 128, kRows = 50, kMiddle = 3, kOuter = 2;
  constexpr int kBoxRows = 24, kFirstRow = 40;
  const Bf16s in = RandomNormals().Bits(kOuter * kMiddle * kRows * kColumns);
  DeviceBuffer<uint16_t> device_in = ToDevice(in);
  for (const CachePolicy policy :
       {CachePolicy::kEvictNormal, CachePolicy::kEvictFirst,
        CachePolicy::kEvictLast}) {
    DeviceBuffer<uint16_t> device_out = PoisonedBf16(in.size());
    DeviceBuffer<uint16_t> raw = PoisonedBf16(kBoxRows * 64);
    auto map = [&](uint16_t* data) {
      return EncodeHeadsTensorMap({.data = data,
                                   .columns = kColumns,
                                   .rows = kRows,
                                   .middle = kMiddle,
                                   .outer = kOuter,
                                   .row_stride = kColumns,
                                   .middle_stride = kRows * kColumns,
                                   .outer_stride = kMiddle * kRows * kColumns},
                                  kBoxRows);
    };
    const auto in_map = map(device_in.data());
    const auto out_map = map(device_out.data());
    ASSERT_TRUE(in_map.ok()) << in_map.status();
    ASSERT_TRUE(out_map.ok()) << out_map.status();
    TensorCopyKernel<<<1, 128>>>(*in_map, *out_map, raw.data(), kBoxRows,
                                 kFirstRow, 1, 1, policy);
    const Bf16s raw_host = ToHost(raw);
    const Bf16s out = ToHost(device_out);
    auto at = [&](int64_t row, int64_t column) {
      return ((1 * kMiddle + 1) * kRows + row) * kColumns + column;
    };
    for (int row = 0; row < kBoxRows; ++row) {
      for (int column = 0; column < 64; ++column) {
        const int place = row * 64 + (column / 8 ^ row % 8) * 8 + column % 8;
        ASSERT_EQ(raw_host[place], kFirstRow + row < kRows
                                       ? in[at(kFirstRow + row, 64 + column)]
                                       : 0)
            << "row " << row << " column " << column;
      }
    }
    for (int64_t i = 0; i < static_cast<int64_t>(in.size()); ++i) {
      const bool in_box =
          i % kColumns >= 64 && i >= at(kFirstRow, 0) && i < at(kRows, 0);
      ASSERT_EQ(out[i], in_box ? in[i] : kNanBf16) << i;
    }
  }
}

__global__ void ByteTensorKernel(const __grid_constant__ CUtensorMap in,
                                 uint8_t* raw, int row_bytes, int rows) {
  __shared__ alignas(1024) uint8_t tile[16 * 128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    BarrierInit(&full, 1);
    BarrierInitFence();
    BarrierArriveExpect(&full, rows * row_bytes);
    LoadTensor4(tile, &in, &full, 0, 0, 0, 0, CachePolicy::kEvictNormal);
  }
  __syncthreads();
  BarrierWait(&full, 0);
  for (int i = threadIdx.x; i < rows * row_bytes; i += blockDim.x) {
    raw[i] = tile[i];
  }
}

// Goal: 8-bit rows of 64 bytes swizzle by pairs of rows, those of 128 by rows.
TEST(TensorCopyTest, SwizzlesRowsOfBytes) {
  for (const int row_bytes : {64, 128}) {
    constexpr int kRows = 16;
    std::vector<uint8_t> in(kRows * row_bytes);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i / 16);
    DeviceBuffer<uint8_t> device_in = ToDevice(in);
    DeviceBuffer<uint8_t> raw = ToDevice(std::vector<uint8_t>(in.size(), 255));
    const auto map = EncodeByteHeadsTensorMap({.data = device_in.data(),
                                               .columns = row_bytes,
                                               .rows = kRows,
                                               .middle = 1,
                                               .outer = 1,
                                               .row_stride = row_bytes,
                                               .middle_stride = row_bytes,
                                               .outer_stride = row_bytes},
                                              kRows);
    ASSERT_TRUE(map.ok()) << map.status();
    ByteTensorKernel<<<1, 128>>>(*map, raw.data(), row_bytes, kRows);
    const std::vector<uint8_t> host = ToHost(raw);
    for (int row = 0; row < kRows; ++row) {
      for (int chunk = 0; chunk < row_bytes / 16; ++chunk) {
        const int moved =
            row_bytes == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
        ASSERT_EQ(host[row * row_bytes + moved * 16],
                  in[row * row_bytes + chunk * 16])
            << row_bytes << " bytes, row " << row << " chunk " << chunk;
      }
    }
  }
  DeviceBuffer<uint8_t> some = ToDevice(std::vector<uint8_t>(1024));
  EXPECT_EQ(EncodeByteHeadsTensorMap({some.data(), 96, 1, 1, 1, 96, 96, 96}, 8)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

__global__ void RowKernel(const __grid_constant__ CUtensorMap in, float* raw,
                          int columns, int row) {
  __shared__ alignas(128) float buffer[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    BarrierInit(&full, 1);
    BarrierInitFence();
    BarrierArriveExpect(&full, columns * sizeof(float));
    LoadMatrix(buffer, &in, &full, 0, row);
  }
  __syncthreads();
  BarrierWait(&full, 0);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) raw[i] = buffer[i];
}

// Goal: a row of numbers arrives unswizzled, the one that was asked for, and
// rows that the map cannot have are refused by name.
TEST(TensorCopyTest, BringsRowsAsTheyAre) {
  for (const int columns : {4, 64, 128, 256}) {
    constexpr int kRows = 5;
    const std::vector<float> in = RandomNormals().Floats(kRows * columns);
    DeviceBuffer<float> device_in = ToDevice(in);
    DeviceBuffer<float> raw = PoisonedFloats(columns + 1);
    const auto map = EncodeRowsTensorMap(device_in.data(), kRows, columns);
    ASSERT_TRUE(map.ok()) << map.status();
    RowKernel<<<1, 64>>>(*map, raw.data(), columns, 3);
    const std::vector<float> host = ToHost(raw);
    for (int i = 0; i < columns; ++i) {
      ASSERT_EQ(host[i], in[3 * columns + i]) << columns << " columns, " << i;
    }
    EXPECT_TRUE(std::isnan(host[columns]));
  }
  DeviceBuffer<float> some = ToDevice(std::vector<float>(1024));
  for (const int columns : {3, 260}) {
    const absl::Status status =
        EncodeRowsTensorMap(some.data(), 2, columns).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(absl::StrCat("of ", columns)),
              absl::string_view::npos)
        << status;
  }
}

// Brings floats in, doubles them with ordinary accesses, and adds them to `out`
// through the copy engine twice; the second time the buffer is changed first,
// which it may be once the first has been read.
__global__ void BulkKernel(const float* in, float* out, int count) {
  __shared__ alignas(16) float buffer[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    BarrierInit(&full, 1);
    BarrierInitFence();
    BarrierArriveExpect(&full, count * sizeof(float));
    LoadBulk(buffer, in, count * sizeof(float), &full);
  }
  __syncthreads();
  BarrierWait(&full, 0);
  for (int round = 0; round < 2; ++round) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) buffer[i] *= 2.0f;
    FenceSharedForAsync();
    __syncthreads();
    if (threadIdx.x == 0) {
      ReduceAddBulk(out, buffer, count * sizeof(float));
      CommitStores();
      WaitStoresRead<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) WaitStores<0>();
}

// Goal: plain copies count their bytes, what threads write before the fence is
// what the engine adds, and the sum is exact. Small integers; twice and four
// times the input on top of ones. The element after the last stays.
TEST(BulkCopyTest, LoadsAndAdds) {
  constexpr int kCount = 252;
  std::vector<float> in(kCount);
  for (int i = 0; i < kCount; ++i) in[i] = static_cast<float>(i);
  DeviceBuffer<float> device_in = ToDevice(in);
  DeviceBuffer<float> out = ToDevice(std::vector<float>(kCount + 1, 1.0f));
  BulkKernel<<<1, 64>>>(device_in.data(), out.data(), kCount);
  const std::vector<float> host = ToHost(out);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(host[i], 1.0f + 6.0f * i);
  EXPECT_EQ(host[kCount], 1.0f);
}

// Writes to shared memory with ordinary stores and sends that out, twice: the
// buffer changes once the first copy has read it.
__global__ void BulkStoreKernel(float* out, int count) {
  __shared__ alignas(16) float buffer[256];
  for (int round = 0; round < 2; ++round) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      buffer[i] = static_cast<float>(round * 1000 + i);
    }
    FenceSharedForAsync();
    __syncthreads();
    if (threadIdx.x == 0) {
      StoreBulk(out + round * count, buffer, count * sizeof(float));
      CommitStores();
      WaitStoresRead<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) WaitStores<0>();
}

// Goal: a store carries exactly its bytes, as they were when it was issued.
// Method: two runs of poisoned memory, and an element after them that stays.
TEST(BulkCopyTest, Stores) {
  constexpr int kCount = 252;
  DeviceBuffer<float> out = PoisonedFloats(2 * kCount + 1);
  BulkStoreKernel<<<1, 64>>>(out.data(), kCount);
  const std::vector<float> host = ToHost(out);
  for (int i = 0; i < 2 * kCount; ++i) {
    EXPECT_EQ(host[i], static_cast<float>(i / kCount * 1000 + i % kCount)) << i;
  }
  EXPECT_TRUE(std::isnan(host[2 * kCount]));
}

}  // namespace
}  // namespace millrace
