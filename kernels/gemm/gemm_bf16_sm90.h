// Our own GEMM for Hopper behind the door of gemm_bf16.h: persistent blocks,
// one warpgroup that feeds and two that multiply.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_H_
#define MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm_bf16.h"

namespace millrace {

// How tiles are computed and in which order. As text
// "wgmma/<version>/<tile>/r<raster>".
struct GemmSm90Config {
  enum class Tile {
    kWide,   // 128 x 256, shared by both consumers.
    kTurns,  // 128 x 192 for each consumer in turn.
    kTall,   // 256 x 192, shared by both; reads least of the L2 cache.
  };
  Tile tile = Tile::kWide;
  // Clusters of rows that are worked on together, column after column, so that
  // what they read stays in the L2 cache.
  int raster = 8;
};

GemmAlgorithm FormatGemmSm90(const GemmSm90Config& config);
// NotFound if the text is of another kernel, FailedPrecondition if of another
// version of this one.
absl::StatusOr<GemmSm90Config> ParseGemmSm90(const GemmAlgorithm& algorithm);

// Returns the configurations worth measuring.
std::vector<GemmSm90Config> GemmSm90Candidates();

// InvalidArgument names what of the shape the kernel has not: epilogues other
// than kNone, c += in bf16, strides that are not multiples of 16 bytes.
// Unavailable on a device that is not a Hopper.
absl::Status CheckGemmSm90(const GemmBf16Shape& shape);

// `shape` has passed the check, and its strides are not zero. Uses two
// multiprocessors at least.
absl::Status LaunchGemmSm90(const GemmSm90Config& config,
                            const GemmBf16Shape& shape, int num_multiprocessors,
                            const GemmBf16Args& args, cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_BF16_SM90_H_
