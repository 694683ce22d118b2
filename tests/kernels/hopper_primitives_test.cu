// Each primitive of hopper.cuh and cluster.cuh on its own, in a kernel just
// large enough to tell whether it does what its comment says. wgmma_test.cu has
// the matrix products.

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

// ---- Barriers

// Warp 0 hands `num_rounds` numbers over to warp 1 through one word of shared
// memory; every lane arrives, so a phase needs 32 arrivals.
__global__ void HandOverKernel(int* out, int num_rounds) {
  __shared__ uint64_t full, empty;
  __shared__ int slot[kWarpSize];
  if (threadIdx.x == 0) {
    BarrierInit(&full, kWarpSize);
    BarrierInit(&empty, kWarpSize);
    BarrierInitFence();
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  for (int round = 0; round < num_rounds; ++round) {
    if (threadIdx.x < kWarpSize) {
      BarrierWait(&empty, (round & 1) ^ 1);  // A fresh barrier lets it pass.
      slot[lane] = 100 * round + lane;
      BarrierArrive(&full);
    } else {
      BarrierWait(&full, round & 1);
      out[round * kWarpSize + lane] = slot[kWarpSize - 1 - lane];
      BarrierArrive(&empty);
    }
  }
}

// Goal: phases complete after exactly their count of arrivals and alternate
// parity. Method: more rounds than parities; a phase too early or late shows as
// another round's number, a missed one as a hang.
TEST(MbarrierTest, HandsOverEveryRound) {
  constexpr int kRounds = 9;
  DeviceBuffer<int> out = ToDevice(std::vector<int>(kRounds * kWarpSize, -1));
  HandOverKernel<<<1, 2 * kWarpSize>>>(out.data(), kRounds);
  const std::vector<int> host = ToHost(out);
  for (int i = 0; i < kRounds * kWarpSize; ++i) {
    EXPECT_EQ(host[i], 100 * (i / kWarpSize) + kWarpSize - 1 - i % kWarpSize);
  }
}

// Warp 0 writes and arrives, warp 1 waits and reads: without the barrier it
// would read what stood there before.
__global__ void NamedBarrierKernel(int* out) {
  __shared__ int slot[kWarpSize];
  constexpr int kId = 7;
  const int lane = threadIdx.x % kWarpSize;
  slot[lane] = -1;
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    __nanosleep(20000);
    slot[lane] = lane;
    NamedBarrierArrive(kId, 2 * kWarpSize);
  } else {
    NamedBarrierSync(kId, 2 * kWarpSize);
    out[lane] = slot[kWarpSize - 1 - lane];
  }
}

TEST(NamedBarrierTest, SyncWaitsForArrivals) {
  DeviceBuffer<int> out = ToDevice(std::vector<int>(kWarpSize, -2));
  NamedBarrierKernel<<<1, 2 * kWarpSize>>>(out.data());
  const std::vector<int> host = ToHost(out);
  for (int i = 0; i < kWarpSize; ++i) EXPECT_EQ(host[i], kWarpSize - 1 - i);
}

// Three warpgroups start with 168 registers; one gives up what two take.
__global__ void __launch_bounds__(3 * kWarpgroupSize, 1)
    RegistersKernel(float* out) {
  if (threadIdx.x < kWarpgroupSize) {
    ShrinkRegisters<24>();
    out[threadIdx.x] = 1.0f;
    return;
  }
  GrowRegisters<240>();
  // Two hundred values that live at once.
  float values[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) values[i] = out[i + kWarpgroupSize * 3];
#pragma unroll
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int i = 0; i < 200; ++i) values[i] += values[(i + 67) % 200];
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 200; ++i) sum += values[i];
  out[threadIdx.x] = sum;
}

// Goal: registers move between warpgroups; a grow that the device could not
// serve would hang. Every pass doubles the sum of the values.
TEST(RegistersTest, MoveBetweenWarpgroups) {
  std::vector<float> values(3 * kWarpgroupSize + 200, 0.5f);
  DeviceBuffer<float> out = ToDevice(values);
  RegistersKernel<<<1, 3 * kWarpgroupSize>>>(out.data());
  const std::vector<float> host = ToHost(out);
  double sum = 0.0;
  {
    std::vector<double> v(200, 0.5);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 200; ++i) v[i] += v[(i + 67) % 200];
    }
    for (const double x : v) sum += x;
  }
  EXPECT_EQ(host[5], 1.0f);
  EXPECT_NEAR(host[kWarpgroupSize], sum, 1e-3 * sum);
  EXPECT_EQ(host[kWarpgroupSize], host[3 * kWarpgroupSize - 1]);
}

// ---- Copies

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

// ---- Matrices in shared memory

__global__ void StoreMatrixKernel(uint16_t* out, bool transposed) {
  __shared__ alignas(16) uint16_t tile[4 * 64];
  const int lane = threadIdx.x;
  // Lane l holds elements 2 (l % 4) and the next of row l / 4 of each matrix.
  uint32_t r[4];
  for (int m = 0; m < 4; ++m) {
    const uint32_t first = m * 64 + lane * 2;
    r[m] = first | (first + 1) << 16;
  }
  const uint32_t row = SharedAddress(tile) + lane * 16;
  if (transposed) {
    StoreMatrix4Transposed(row, r[0], r[1], r[2], r[3]);
  } else {
    StoreMatrix4(row, r[0], r[1], r[2], r[3]);
  }
  __syncwarp();
  for (int i = lane; i < 256; i += kWarpSize) out[i] = tile[i];
}

TEST(StoreMatrixTest, PlacesPairsPlainAndTransposed) {
  for (const bool transposed : {false, true}) {
    DeviceBuffer<uint16_t> out = PoisonedBf16(256);
    StoreMatrixKernel<<<1, kWarpSize>>>(out.data(), transposed);
    const Bf16s host = ToHost(out);
    for (int i = 0; i < 256; ++i) {
      const int row = i % 64 / 8;
      const int column = i % 8;
      EXPECT_EQ(host[i], i / 64 * 64 +
                             (transposed ? column * 8 + row : row * 8 + column))
          << transposed << " " << i;
    }
  }
}

__global__ void ConversionsKernel(const float* in, uint32_t* packed,
                                  float* powers, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    packed[i] = PackBfloat16(in[i], -in[i]);
    powers[i] = Exp2(in[i]);
  }
}

// Goal: bf16 pairs in their order, rounded to nearest even; powers of two
// within 2^-22 of exact, as the ISA promises of ex2.approx, and zero from
// -infinity, on which masks rely.
TEST(ConversionsTest, PackAndExponentiate) {
  std::vector<float> in = RandomNormals().Floats(1000);
  in[0] = -INFINITY;
  DeviceBuffer<float> device_in = ToDevice(in);
  DeviceBuffer<uint32_t> packed = ToDevice(std::vector<uint32_t>(in.size(), 1));
  DeviceBuffer<float> powers = PoisonedFloats(in.size());
  ConversionsKernel<<<1, 128>>>(device_in.data(), packed.data(), powers.data(),
                                static_cast<int>(in.size()));
  const std::vector<uint32_t> packed_host = ToHost(packed);
  const std::vector<float> powers_host = ToHost(powers);
  EXPECT_EQ(powers_host[0], 0.0f);
  for (size_t i = 1; i < in.size(); ++i) {
    EXPECT_EQ(packed_host[i] & 0xFFFF, ToBf16(in[i]));
    EXPECT_EQ(packed_host[i] >> 16, ToBf16(-in[i]));
    EXPECT_NEAR(powers_host[i] / std::exp2(double{in[i]}), 1.0, 2.5e-7);
  }
}

// ---- Clusters

// Both blocks of a cluster: each loads half a tile for both, then adds its copy
// into the output; block 0 tells block 1 through a barrier there that it may
// write its rank.
__global__ void __cluster_dims__(2)
    ClusterKernel(const __grid_constant__ CUtensorMap in,
                  const __grid_constant__ CUtensorMap out,
                  const __grid_constant__ CUtensorMap plain, int* ranks) {
  __shared__ alignas(1024) float tile[32 * 32];
  __shared__ uint64_t full, go;
  const uint32_t rank = ClusterRank();
  if (threadIdx.x == 0) {
    BarrierInit(&full, 1);
    BarrierInit(&go, 1);
    BarrierInitFence();
  }
  ClusterSync();
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&full, sizeof(tile));
    LoadMatrixMulticast(tile + rank * 16 * 32, &in, &full, 0, rank * 16, 3);
    BarrierWait(&full, 0);
    ReduceAddMatrix(&out, tile, 0, 0);
    ReduceAddMatrix(&out, tile + 16 * 32, 0, 16);
    if (rank == 1) {
      BarrierWait(&go, 0);
      StoreMatrix(&plain, tile + 16 * 32, 0, 16);
    }
    ranks[blockIdx.x] = static_cast<int>(rank);
    CommitStores();
    WaitStores<0>();
    if (rank == 0) BarrierArriveAt(&go, 1);
  }
  ClusterSync();  // No block ends while the other may still reach into it.
}

// Goal: ranks count from zero, a multicast reaches both blocks and completes on
// each one's barrier, tensor adds sum both copies, a remote arrival opens the
// other block's barrier. The output has 30 rows, so boxes of it are clipped.
TEST(ClusterTest, MulticastsAddsAndArrivesRemotely) {
  std::vector<float> in(32 * 32);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  DeviceBuffer<float> device_in = ToDevice(in);
  DeviceBuffer<float> sums = ToDevice(std::vector<float>(32 * 32, 1.0f));
  DeviceBuffer<float> plain = ToDevice(std::vector<float>(32 * 32, -1.0f));
  DeviceBuffer<int> ranks = ToDevice(std::vector<int>(2, -1));
  auto map = [](float* data, int64_t rows) {
    return EncodeMatrixTensorMap({.data = data,
                                  .rows = rows,
                                  .columns = 32,
                                  .row_stride = 32,
                                  .is_fp32 = true},
                                 16);
  };
  const auto in_map = map(device_in.data(), 32);
  const auto sums_map = map(sums.data(), 30);
  const auto plain_map = map(plain.data(), 32);
  ASSERT_TRUE(in_map.ok()) << in_map.status();
  ASSERT_TRUE(sums_map.ok()) << sums_map.status();
  ClusterKernel<<<2, 32>>>(*in_map, *sums_map, *plain_map, ranks.data());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(ToHost(ranks), (std::vector<int>{0, 1}));
  const std::vector<float> sums_host = ToHost(sums);
  const std::vector<float> plain_host = ToHost(plain);
  for (int i = 0; i < 32 * 32; ++i) {
    EXPECT_EQ(sums_host[i], i < 30 * 32 ? 1.0f + 2.0f * i : 1.0f) << i;
    EXPECT_EQ(plain_host[i], i >= 16 * 32 ? static_cast<float>(i) : -1.0f) << i;
  }
}

// ---- Programmatic dependent launch

__global__ void FirstKernel(int* value) {
  GridDependencyRelease();
  __nanosleep(
      100000);  // The dependent kernel is resident long before this ends.
  *value = 42;
}

__global__ void DependentKernel(const int* value, int* out) {
  GridDependencyWait();
  *out = *static_cast<const volatile int*>(value);
}

// Goal: a dependent kernel that waits sees what the first one wrote after it
// had released its dependents.
TEST(GridDependencyTest, WaitSeesTheWritesOfTheFirstKernel) {
  DeviceBuffer<int> value = ToDevice(std::vector<int>(1, -1));
  DeviceBuffer<int> out = ToDevice(std::vector<int>(1, -2));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.attrs = &attribute;
  config.numAttrs = 1;
  FirstKernel<<<1, 1>>>(value.data());
  ASSERT_EQ(
      cudaLaunchKernelEx(&config, DependentKernel,
                         static_cast<const int*>(value.data()), out.data()),
      cudaSuccess);
  EXPECT_EQ(ToHost(out)[0], 42);
}

}  // namespace
}  // namespace millrace
