#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/gemm_range.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

// A second thread is woken for no less work than this, some 10 us of one core.
constexpr int64_t kMinFlopsPerThread = int64_t{1} << 20;

int64_t NumUnits(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit;
}

// The first row or column of the part-th of num_parts parts.
int64_t BeginOfPart(int64_t size, int64_t unit, int64_t part,
                    int64_t num_parts) {
  return std::min(size, NumUnits(size, unit) * part / num_parts * unit);
}

struct GemmGrid {
  int row_parts;
  int col_parts;
};

// As many rectangles as threads are worth waking. Every thread copies its own
// rows of a and columns of b, so rectangles of the least circumference do.
GemmGrid ChooseGemmGrid(const GemmShape& shape, int num_threads) {
  const double flops = 2.0 * static_cast<double>(shape.m) *
                       static_cast<double>(shape.n) *
                       static_cast<double>(shape.k);
  const int64_t row_units = NumUnits(shape.m, kGemmRowUnit);
  const int64_t col_units = NumUnits(shape.n, kGemmColUnit);
  int num_parts = static_cast<int>(
      std::clamp(flops / kMinFlopsPerThread, 1.0, double(num_threads)));
  for (; num_parts > 1; --num_parts) {
    GemmGrid best = {0, 0};
    int64_t least = 0;
    for (int rows = 1; rows <= num_parts; ++rows) {
      const int cols = num_parts / rows;
      if (rows * cols != num_parts || rows > row_units || cols > col_units) {
        continue;
      }
      const int64_t around = shape.m / rows + shape.n / cols;
      if (best.row_parts == 0 || around < least) {
        best = {rows, cols};
        least = around;
      }
    }
    if (best.row_parts != 0) return best;
  }
  return {1, 1};
}

}  // namespace

absl::StatusOr<GemmPlan> GemmPlan::Create(const GemmShape& shape,
                                          int num_threads) {
  if (shape.m < 1 || shape.n < 1 || shape.k < 1 || num_threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "GEMM needs sizes and threads of at least one; got m ", shape.m, ", n ",
        shape.n, ", k ", shape.k, ", ", num_threads, " threads"));
  }
  RETURN_IF_ERROR(CheckCpuLevel());
  const GemmGrid grid = ChooseGemmGrid(shape, num_threads);
  return GemmPlan(shape, grid.row_parts, grid.col_parts);
}

int64_t GemmPlan::workspace_bytes() const {
  return int64_t{row_parts_} * col_parts_ * kGemmWorkspaceFloats *
         static_cast<int64_t>(sizeof(float));
}

absl::Status GemmPlan::Run(float* c, const float* a, const float* b,
                           void* workspace) const {
  if (workspace == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("this GEMM needs a workspace of ", workspace_bytes(),
                     " bytes; got none"));
  }
  const GemmShape& s = shape_;
  const GemmRange whole = {.c = c,
                           .a = a,
                           .b = b,
                           .workspace = static_cast<float*>(workspace),
                           .c_stride = s.n,
                           .a_row = s.trans_a ? 1 : s.k,
                           .a_step = s.trans_a ? s.m : 1,
                           .b_step = s.trans_b ? 1 : s.n,
                           .b_col = s.trans_b ? s.k : 1,
                           .rows = s.m,
                           .cols = s.n,
                           .depth = s.k,
                           .accumulate = s.accumulate};
  const auto run_part = [&](int64_t part) {
    const int64_t i = part / col_parts_;
    const int64_t j = part % col_parts_;
    const int64_t row = BeginOfPart(s.m, kGemmRowUnit, i, row_parts_);
    const int64_t col = BeginOfPart(s.n, kGemmColUnit, j, col_parts_);
    GemmRange range = whole;
    range.rows = BeginOfPart(s.m, kGemmRowUnit, i + 1, row_parts_) - row;
    range.cols = BeginOfPart(s.n, kGemmColUnit, j + 1, col_parts_) - col;
    range.c += row * whole.c_stride + col;
    range.a += row * whole.a_row;
    range.b += col * whole.b_col;
    range.workspace += part * kGemmWorkspaceFloats;
    Loops().gemm(range);
  };
  const int num_parts = row_parts_ * col_parts_;
  ParallelRanges(num_parts, num_parts, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) run_part(part);
  });
  return absl::OkStatus();
}

}  // namespace millrace
