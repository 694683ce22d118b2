// A bf16 product on the GPU, and what it should become.

#ifndef MILLRACE_TESTS_KERNELS_GEMM_GEMM_BF16_TESTING_H_
#define MILLRACE_TESTS_KERNELS_GEMM_GEMM_BF16_TESTING_H_

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/gemm/gemm_bf16.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {

inline std::vector<uint16_t> RandomBits(int64_t count) {
  static RandomNormals normals;
  return normals.Bits(count);
}

inline int64_t Stride(int64_t stride, int64_t columns) {
  return stride == 0 ? columns : stride;
}

// A matrix of bf16 or fp32, on the host as doubles and on the device.
struct Output {
  Output(int64_t rows, int64_t columns, int64_t stride, bool is_fp32,
         bool poisoned)
      : columns(columns), stride(stride), is_fp32(is_fp32) {
    const int64_t count = (rows - 1) * stride + columns;
    for (uint16_t bits : poisoned ? std::vector<uint16_t>(count, kNanBf16)
                                  : RandomBits(count)) {
      before.push_back(FromBf16(bits));
    }
    Reset();
  }

  // Puts the old values back where they were.
  void Reset() {
    if (is_fp32) {
      const std::vector<float> values(before.begin(), before.end());
      Put(fp32, values);
    } else {
      std::vector<uint16_t> bits;
      for (float value : before) {
        bits.push_back(std::isnan(value) ? kNanBf16 : ToBf16(value));
      }
      Put(bf16, bits);
    }
  }

  template <typename T>
  static void Put(std::optional<DeviceBuffer<T>>& buffer,
                  const std::vector<T>& values) {
    if (!buffer.has_value()) {
      buffer.emplace(ToDevice(values));
      return;
    }
    EXPECT_EQ(cudaMemcpy(buffer->data(), values.data(),
                         values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  void* data() {
    return is_fp32 ? static_cast<void*>(fp32->data())
                   : static_cast<void*>(bf16->data());
  }

  std::vector<float> Values() const {
    if (is_fp32) return ToHost(*fp32);
    std::vector<float> values;
    for (uint16_t bits : ToHost(*bf16)) values.push_back(FromBf16(bits));
    return values;
  }

  int64_t columns, stride;
  bool is_fp32;
  std::vector<float> before;
  std::optional<DeviceBuffer<float>> fp32;
  std::optional<DeviceBuffer<uint16_t>> bf16;
};

// One shape with inputs, outputs, and what they should become in fp64.
struct Problem {
  explicit Problem(const GemmBf16Shape& shape)
      : shape(shape),
        a_bits(RandomBits((shape.trans_a ? shape.k : shape.m) * AStride())),
        b_bits(RandomBits((shape.trans_b ? shape.n : shape.k) * BStride())),
        a(ToDevice(a_bits)),
        b(ToDevice(b_bits)),
        c(shape.m, shape.n, Stride(shape.c_stride, shape.n), shape.fp32_output,
          !shape.accumulate),
        scale(static_cast<float>(1 / std::sqrt(shape.k))) {}

  int64_t AStride() const {
    return Stride(shape.a_stride, shape.trans_a ? shape.m : shape.k);
  }
  int64_t BStride() const {
    return Stride(shape.b_stride, shape.trans_b ? shape.k : shape.n);
  }
  double A(int64_t i, int64_t k) const {
    return FromBf16(
        a_bits[shape.trans_a ? k * AStride() + i : i * AStride() + k]);
  }
  double B(int64_t k, int64_t j) const {
    return FromBf16(
        b_bits[shape.trans_b ? j * BStride() + k : k * BStride() + j]);
  }

  // scale * op(a) op(b), dense.
  std::vector<double> Product() const {
    std::vector<double> product(shape.m * shape.n, 0.0);
    std::vector<double> b_rows(shape.k * shape.n);
    for (int64_t k = 0; k < shape.k; ++k) {
      for (int64_t j = 0; j < shape.n; ++j) b_rows[k * shape.n + j] = B(k, j);
    }
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t k = 0; k < shape.k; ++k) {
        const double a_ik = A(i, k) * scale;
        for (int64_t j = 0; j < shape.n; ++j) {
          product[i * shape.n + j] += a_ik * b_rows[k * shape.n + j];
        }
      }
    }
    return product;
  }

  GemmBf16Args Args() {
    return {.c = c.data(), .a = a.data(), .b = b.data(), .scale = scale};
  }

  GemmBf16Shape shape;
  std::vector<uint16_t> a_bits, b_bits;
  DeviceBuffer<uint16_t> a, b;
  Output c;
  float scale;
};

// Rounding to bf16 costs up to 2^-8 of a value. In bf16, the value that is
// added to, `before`, may be rounded together with the product or without it.
// fp32 sums of k terms of size 1/sqrt(k) are good to 1e-5. NaN never passes.
inline bool IsClose(double actual, double expected, bool is_fp32,
                    double before) {
  const double relative = is_fp32 ? 1e-5 : 1.0 / 256;
  double size = std::fabs(expected);
  if (!is_fp32 && !std::isnan(before)) size += size + std::fabs(before);
  return std::fabs(actual - expected) <= relative * size + 1e-5;
}

inline absl::Status RunPlan(const GemmBf16Plan& plan, GemmBf16Args args) {
  auto workspace = DeviceBuffer<uint8_t>::Allocate(plan.workspace_bytes() + 1);
  if (!workspace.ok()) return workspace.status();
  args.workspace = workspace->data();
  absl::Status status = plan.Run(args, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return status;
}

inline constexpr const char* kOwnAlgorithms[] = {
    "wgmma/1/128x256/r3", "wgmma/1/128x256/r2", "wgmma/1/128x192turns/r1",
    "wgmma/1/128x192turns/r4", "wgmma/1/256x192/r3"};

// Everything between the matrix's rows stays as it was, the rows become
// `expected` [m, n].
inline void ExpectRows(const Output& c, const std::vector<double>& expected,
                       const std::string& what) {
  const std::vector<float> values = c.Values();
  int num_wrong = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t row = i / c.stride;
    const int64_t column = i % c.stride;
    if (column >= c.columns) {
      ASSERT_EQ(std::memcmp(&values[i], &c.before[i], 4), 0)
          << what << " wrote beside row " << row << " at " << column;
      continue;
    }
    const double want = expected[row * c.columns + column];
    if (!IsClose(values[i], want, c.is_fp32, c.before[i]) && ++num_wrong <= 3) {
      ADD_FAILURE() << what << ": c[" << row << ", " << column << "] is "
                    << values[i] << ", expected " << want << ", before "
                    << c.before[i];
    }
  }
  EXPECT_EQ(num_wrong, 0) << what;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_KERNELS_GEMM_GEMM_BF16_TESTING_H_
