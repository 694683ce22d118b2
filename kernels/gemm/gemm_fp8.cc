#include "kernels/gemm/gemm_fp8.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/gemm/gemm_cublaslt.h"

namespace millrace {

struct GemmFp8Plan::Impl {
  GemmFp8Shape shape;
  LtMatmul matmul;
};

GemmFp8Plan::GemmFp8Plan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GemmFp8Plan::GemmFp8Plan(GemmFp8Plan&&) noexcept = default;
GemmFp8Plan& GemmFp8Plan::operator=(GemmFp8Plan&&) noexcept = default;
GemmFp8Plan::~GemmFp8Plan() = default;

const GemmFp8Shape& GemmFp8Plan::shape() const { return impl_->shape; }
const GemmAlgorithm& GemmFp8Plan::algorithm() const {
  return impl_->matmul.algorithm().algorithm;
}
int64_t GemmFp8Plan::workspace_bytes() const {
  return impl_->matmul.algorithm().workspace_bytes;
}

absl::StatusOr<GemmFp8Plan> GemmFp8Plan::Create(
    const GemmFp8Shape& shape, const GemmBf16Options& options) {
  const std::string name = absl::StrCat(
      "fp8 GEMM m", shape.m, "n", shape.n, "k", shape.k,
      shape.a_is_e5m2 ? " e5m2" : " e4m3", shape.b_is_e5m2 ? " e5m2" : " e4m3",
      shape.bias ? " bias" : "");
  const int64_t a_stride = shape.a_stride == 0 ? shape.k : shape.a_stride;
  const int64_t b_stride = shape.b_stride == 0 ? shape.k : shape.b_stride;
  const int64_t c_stride = shape.c_stride == 0 ? shape.n : shape.c_stride;
  if (shape.m < 1 || shape.n < 1 || shape.k < 1 || a_stride < shape.k ||
      b_stride < shape.k || c_stride < shape.n) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": sizes are at least one and strides no shorter than rows; got "
        "strides ",
        a_stride, ", ", b_stride, " and ", c_stride));
  }
  if (shape.k % 16 != 0 || a_stride % 16 != 0 || b_stride % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": k and the strides of a and b are multiples of 16; got strides ",
        a_stride, " and ", b_stride));
  }
  if (shape.a_is_e5m2 && shape.b_is_e5m2) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": at least one operand is e4m3"));
  }
  if (shape.bias && (shape.fp32_output || shape.accumulate)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": a bias needs an output in bf16 that is not added to"));
  }
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  if (limits.compute_capability < 89) {
    return absl::UnavailableError(absl::StrCat(
        name, ": fp8 needs compute capability 8.9; the device has ",
        limits.compute_capability / 10, ".", limits.compute_capability % 10));
  }
  auto type = [](bool is_e5m2) {
    return is_e5m2 ? LtType::kFp8E5M2 : LtType::kFp8E4M3;
  };
  ASSIGN_OR_RETURN(
      LtMatmul matmul,
      LtMatmul::Create(
          {.name = name,
           .m = shape.m,
           .n = shape.n,
           .k = shape.k,
           .trans_a = false,
           .trans_b = true,
           .accumulate = shape.accumulate,
           .a_type = type(shape.a_is_e5m2),
           .b_type = type(shape.b_is_e5m2),
           .c_type = shape.fp32_output ? LtType::kFp32 : LtType::kBf16,
           .epilogue = shape.bias ? GemmEpilogue::kBias : GemmEpilogue::kNone,
           .a_stride = a_stride,
           .b_stride = b_stride,
           .c_stride = c_stride,
           .aux_stride = 0,
           .fast_accumulation = shape.fast_accumulation,
           .num_multiprocessors = options.num_multiprocessors,
           .max_workspace_bytes = options.max_workspace_bytes},
          options.algorithm.value_or(GemmAlgorithm())));
  return GemmFp8Plan(std::make_unique<Impl>(Impl{shape, std::move(matmul)}));
}

absl::Status GemmFp8Plan::Run(const GemmFp8Args& args,
                              cudaStream_t stream) const {
  if (args.a_scale == nullptr || args.b_scale == nullptr) {
    return absl::InvalidArgumentError(
        "fp8 GEMM reads a scale of each operand; one is null");
  }
  if (impl_->shape.bias && args.bias == nullptr) {
    return absl::InvalidArgumentError(
        "fp8 GEMM was planned with a bias; the bias is null");
  }
  return impl_->matmul.Run({.c = args.c,
                            .a = args.a,
                            .b = args.b,
                            .bias = const_cast<void*>(args.bias),
                            .aux = nullptr,
                            .a_scale = args.a_scale,
                            .b_scale = args.b_scale,
                            .scale = args.scale,
                            .workspace = args.workspace},
                           stream);
}

}  // namespace millrace
