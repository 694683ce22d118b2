// Each primitive of hopper.cuh and cluster.cuh on its own, in a kernel just
// large enough to tell whether it does what its comment says.
// hopper_copies_test.cu has the copies, wgmma_test.cu the matrix products.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <vector>

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
