#include "kernels/autotune/tune_gemm.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/autotune/tuning_case_tensors.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

absl::StatusOr<GemmMeasurement> TuneOne(const GemmBf16Shape& shape,
                                        int max_candidates) {
  TuningTensors tensors;
  const GemmBf16Options options;
  const int64_t c_bytes = shape.m * shape.n * (shape.fp32_output ? 4 : 2);
  const int num_sets =
      NumTuningSets(2 * (shape.m * shape.k + shape.k * shape.n) + c_bytes);
  ASSIGN_OR_RETURN(void* workspace, tensors.Bytes(options.max_workspace_bytes));
  std::vector<GemmBf16Args> sets(std::min(num_sets, 4));
  for (GemmBf16Args& set : sets) {
    ASSIGN_OR_RETURN(set.a, tensors.Normals(shape.m * shape.k));
    ASSIGN_OR_RETURN(set.b, tensors.Normals(shape.k * shape.n));
    ASSIGN_OR_RETURN(set.c, tensors.Bytes(c_bytes));
    set.workspace = workspace;
  }
  ASSIGN_OR_RETURN(
      const std::vector<GemmMeasurement> measured,
      MeasureGemmBf16(shape, options, sets, max_candidates, nullptr));
  if (measured.empty()) return absl::InternalError("no algorithm ran");
  return measured.front();
}

}  // namespace

std::vector<GemmBf16Shape> GemmShapesOfLayer(int64_t num_tokens,
                                             int64_t outputs, int64_t inputs) {
  return {{.m = num_tokens, .n = outputs, .k = inputs, .trans_b = true},
          {.m = num_tokens, .n = inputs, .k = outputs},
          {.m = outputs,
           .n = inputs,
           .k = num_tokens,
           .trans_a = true,
           .fp32_output = true,
           .accumulate = true}};
}

std::vector<GemmBf16Shape> TrainingGemmShapes() {
  std::vector<GemmBf16Shape> shapes;
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{2048, 2048},
                                        {8192, 2048},
                                        {2048, 8192},
                                        {4096, 4096},
                                        {6144, 4096},
                                        {14336, 4096},
                                        {28672, 4096},
                                        {4096, 14336},
                                        {8192, 8192}}) {
    for (const GemmBf16Shape& shape :
         GemmShapesOfLayer(16384, outputs, inputs)) {
      shapes.push_back(shape);
    }
  }
  return shapes;
}

absl::StatusOr<GemmAlgorithmTable> TuneGemms(
    absl::Span<const GemmBf16Shape> shapes, int max_candidates,
    const std::function<void(absl::string_view)>& log) {
  GemmAlgorithmTable table;
  ASSIGN_OR_RETURN(const std::string chip, CurrentChipWord());
  for (const GemmBf16Shape& shape : shapes) {
    const std::string word = GemmBf16ShapeWord(shape);
    const absl::StatusOr<GemmMeasurement> best = TuneOne(shape, max_candidates);
    if (!best.ok()) {
      return absl::Status(best.status().code(),
                          absl::StrCat("tune the matrix product ", word, ": ",
                                       best.status().message()));
    }
    const double microseconds = 1e3 * best->milliseconds;
    table.Set(chip, shape, {best->algorithm, microseconds});
    log(absl::StrFormat("%s: %.1f us, %.0f TFLOP/s with %s", word, microseconds,
                        2e-6 * static_cast<double>(shape.m) *
                            static_cast<double>(shape.n) *
                            static_cast<double>(shape.k) / microseconds,
                        best->algorithm.text));
  }
  return table;
}

}  // namespace millrace
