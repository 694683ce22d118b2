// Measures the algorithms of matrix products on the current device, for a table
// (gemm_algorithm_table.h): what tune_kernels.h does for the other kernels.

#ifndef MILLRACE_KERNELS_AUTOTUNE_TUNE_GEMM_H_
#define MILLRACE_KERNELS_AUTOTUNE_TUNE_GEMM_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/gemm/gemm_algorithm_table.h"

namespace millrace {

// The three products of a linear layer [tokens, inputs] to [tokens, outputs]:
// forward, input gradient, and weight gradient (fp32, accumulated).
std::vector<GemmBf16Shape> GemmShapesOfLayer(int64_t num_tokens,
                                             int64_t outputs, int64_t inputs);
// The layers of models from 2k to 8k wide, 16k tokens.
std::vector<GemmBf16Shape> TrainingGemmShapes();

// The fastest algorithm of each shape, among the `max_candidates` that
// cuBLASLt's heuristic puts first and our own kernels. Allocates its matrices;
// for a GPU that does nothing else. `log` gets a line a shape.
absl::StatusOr<GemmAlgorithmTable> TuneGemms(
    absl::Span<const GemmBf16Shape> shapes, int max_candidates,
    const std::function<void(absl::string_view)>& log);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_AUTOTUNE_TUNE_GEMM_H_
