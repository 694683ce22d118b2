// The resources that the GPU ops of one rank share beside the arenas: kernels
// planned for a shape, tables, counters, and scratch memory if a Program has
// none. All of it is made while ops are bound; running them allocates nothing.

#ifndef MILLRACE_WORKER_CUDA_OPS_KERNEL_CACHE_H_
#define MILLRACE_WORKER_CUDA_OPS_KERNEL_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "kernels/gemm/gemm_bf16.h"
#include "kernels/gemm/gemm_fp8.h"
#include "kernels/gemm/gemm_plain.h"
#include "kernels/pointwise/bias_plain.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"
#include "kernels/vocabulary/cross_entropy_plain.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"
#include "worker/train/rope_frequencies.h"

namespace millrace {

// A matrix product: of bf16 by the fast door, or plain.
class CudaGemm {
 public:
  explicit CudaGemm(GemmBf16Plan plan) : plan_(std::move(plan)) {}
  // `type` and the sizes of c are those of the kernel that adds a bias.
  CudaGemm(PlainGemmPlan plan, ElementType type, int64_t rows, int64_t cols)
      : plan_(std::move(plan)), type_(type), rows_(rows), cols_(cols) {}

  int64_t workspace_bytes() const;
  // `bias`: null where the product has none.
  absl::Status Run(void* c, const void* a, const void* b, const void* bias,
                   void* workspace, cudaStream_t stream) const;

 private:
  std::variant<GemmBf16Plan, PlainGemmPlan> plan_;
  // A plain product adds its bias in a kernel of its own, which needs these.
  ElementType type_ = ElementType::kFloat32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
};

// Returns the algorithms that were measured before and come with this build.
absl::StatusOr<GemmAlgorithmTable> ShippedGemmAlgorithms();

class CudaKernelCache {
 public:
  struct Options {
    GemmAlgorithmTable gemm_algorithms;
    // Multiprocessors that products may use; zero: all.
    int gemm_multiprocessors = 0;
  };
  // Creates a cache on the current device, with the choices of `tuning` for it
  // and the shipped ones (worker/cuda/ops/kernel_choices.h). Installs the
  // kernels' choices.
  static absl::StatusOr<std::unique_ptr<CudaKernelCache>> Create(
      const KernelTuning& tuning = {});
  // Installs nothing.
  static absl::StatusOr<std::unique_ptr<CudaKernelCache>> CreateWith(
      Options options);
  CudaKernelCache(const CudaKernelCache&) = delete;
  CudaKernelCache& operator=(const CudaKernelCache&) = delete;

  // Shapes that the fast products refuse get the plain one, as fp32 does.
  absl::StatusOr<const CudaGemm*> Gemm(const GemmAttributes& attributes,
                                       ElementType type, bool fp32_output);
  // The product of 8-bit copies. Sums stay in the tensor cores in the forward
  // pass alone: gradients need the bits that they lose. Unavailable on a device
  // without 8-bit products.
  absl::StatusOr<const GemmFp8Plan*> Float8Gemm(
      const GemmAttributes& attributes, bool fp32_output);
  // Multiprocessors that products may use; zero: all.
  int gemm_multiprocessors() const { return options_.gemm_multiprocessors; }
  // InvalidArgument where the shape is none of the fast kernel's.
  absl::StatusOr<const CrossEntropyBf16Plan*> CrossEntropy(
      const VocabAttributes& attributes, int64_t vocab_begin);
  absl::StatusOr<const PlainCrossEntropyPlan*> PlainCrossEntropy(
      const VocabAttributes& attributes, int64_t vocab_begin, ElementType type);
  // The model's, which tables of rotary positions are made with.
  void set_rope_factors(std::vector<double> rope_factors) {
    rope_factors_ = std::move(rope_factors);
  }
  // Returns FillRopeTableOf() the attributes, on the device.
  absl::StatusOr<const float*> RopeTable(const AttentionAttributes& attributes);

  // Words for kernels that need them to be zero before and leave them zero.
  // Only one kernel at a time may use them, as on the compute lane.
  int32_t* attention_tile_counter() { return tile_counter_.data(); }
  void* squared_norm_workspace() { return squared_norm_workspace_.data(); }

  // Returns at least `num_bytes`, 256-byte aligned, for one kernel at a time.
  // Memory returned before stays valid.
  absl::StatusOr<void*> Scratch(int64_t num_bytes);

  // Returns all device memory held here.
  int64_t bytes() const;

 private:
  using GemmKey = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, bool,
                             ElementType, bool>;
  using Float8GemmKey =
      std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, bool>;
  using CrossEntropyKey =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, double, double,
                 bool, double, ElementType>;

  CudaKernelCache(Options options, std::string chip,
                  DeviceBuffer<int32_t> tile_counter,
                  DeviceBuffer<std::byte> squared_norm_workspace);

  absl::StatusOr<CudaGemm> MakeGemm(const GemmAttributes& attributes,
                                    ElementType type, bool fp32_output) const;

  const Options options_;
  const std::string chip_;  // CurrentChipWord().
  DeviceBuffer<int32_t> tile_counter_;
  DeviceBuffer<std::byte> squared_norm_workspace_;
  std::map<GemmKey, CudaGemm> gemms_;
  std::map<Float8GemmKey, GemmFp8Plan> float8_gemms_;
  std::map<CrossEntropyKey, CrossEntropyBf16Plan> cross_entropies_;
  std::map<CrossEntropyKey, PlainCrossEntropyPlan> plain_cross_entropies_;
  std::vector<double> rope_factors_;
  std::map<RopeKey, DeviceBuffer<float>> rope_tables_;
  std::vector<DeviceBuffer<std::byte>> scratch_;  // The last is the largest.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_OPS_KERNEL_CACHE_H_
