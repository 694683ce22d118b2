#include "kernels/gemm/gemm_plain.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gemm/gemm_cublaslt.h"

namespace millrace {
namespace {

// cuBLASLt computes in fp32; through tf32 only where it is asked to, which
// nothing here does.
absl::StatusOr<LtProblem> Problem(const PlainGemmOptions& options) {
  const GemmShape& shape = options.shape;
  const LtType type =
      options.type == ElementType::kFloat32 ? LtType::kFp32 : LtType::kBf16;
  LtProblem problem = {
      .name = absl::StrCat(
          "plain ", options.type == ElementType::kFloat32 ? "fp32" : "bf16",
          " GEMM of m ", shape.m, " n ", shape.n, " k ", shape.k,
          shape.trans_a ? " trans_a" : "", shape.trans_b ? " trans_b" : ""),
      .m = shape.m,
      .n = shape.n,
      .k = shape.k,
      .trans_a = shape.trans_a,
      .trans_b = shape.trans_b,
      .accumulate = shape.accumulate,
      .a_type = type,
      .b_type = type,
      .c_type = options.fp32_output ? LtType::kFp32 : type,
      .epilogue = GemmEpilogue::kNone,
      .a_stride = options.a_stride,
      .b_stride = options.b_stride,
      .c_stride = options.c_stride,
      .aux_stride = 0,
      .fast_accumulation = false,
      .num_multiprocessors = 0,
      .max_workspace_bytes = options.max_workspace_bytes};
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  for (const int64_t size : {shape.m, shape.n, shape.k}) {
    if (size < 1 || size > kMaxSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          problem.name, ": sizes are from 1 to ", kMaxSize, "; got ", size));
    }
  }
  if (options.max_workspace_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.name, ": a workspace is not negative; got ",
                     options.max_workspace_bytes, " bytes"));
  }
  struct Operand {
    int64_t* stride;
    int64_t columns;
    ElementType type;
  };
  for (const Operand& operand :
       {Operand{&problem.a_stride, shape.trans_a ? shape.m : shape.k,
                options.type},
        Operand{&problem.b_stride, shape.trans_b ? shape.k : shape.n,
                options.type},
        Operand{&problem.c_stride, shape.n,
                options.fp32_output ? ElementType::kFloat32 : options.type}}) {
    if (*operand.stride == 0) *operand.stride = operand.columns;
    if (*operand.stride < operand.columns) {
      return absl::InvalidArgumentError(
          absl::StrCat(problem.name, ": rows of ", operand.columns,
                       " elements exceed their stride of ", *operand.stride));
    }
    if (*operand.stride * ElementBytes(operand.type) % 16 != 0) {
      problem.pointer_alignment = static_cast<int>(ElementBytes(options.type));
    }
  }
  return problem;
}

}  // namespace

struct PlainGemmPlan::Impl {
  LtMatmul matmul;
};

PlainGemmPlan::PlainGemmPlan(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
PlainGemmPlan::PlainGemmPlan(PlainGemmPlan&&) noexcept = default;
PlainGemmPlan& PlainGemmPlan::operator=(PlainGemmPlan&&) noexcept = default;
PlainGemmPlan::~PlainGemmPlan() = default;

absl::StatusOr<PlainGemmPlan> PlainGemmPlan::Create(
    const PlainGemmOptions& options) {
  ASSIGN_OR_RETURN(const LtProblem problem, Problem(options));
  ASSIGN_OR_RETURN(LtMatmul matmul,
                   LtMatmul::Create(problem, /*algorithm=*/{}));
  return PlainGemmPlan(std::unique_ptr<Impl>(new Impl{std::move(matmul)}));
}

int64_t PlainGemmPlan::workspace_bytes() const {
  return impl_->matmul.algorithm().workspace_bytes;
}

absl::Status PlainGemmPlan::Run(const PlainGemmArgs& args,
                                cudaStream_t stream) const {
  return impl_->matmul.Run({.c = args.c,
                            .a = args.a,
                            .b = args.b,
                            .bias = nullptr,
                            .aux = nullptr,
                            .a_scale = nullptr,
                            .b_scale = nullptr,
                            .scale = 1.0f,
                            .workspace = args.workspace},
                           stream);
}

}  // namespace millrace
