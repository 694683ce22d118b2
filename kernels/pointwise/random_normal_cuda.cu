#include "kernels/pointwise/random_normal_cuda.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // Normals of one Philox block.
constexpr int64_t kMaxBlocks = int64_t{1} << 30;

// As Normals() of random_normal.cc, operation by operation. Multiplications
// alone, so that nothing can be contracted.
__device__ __forceinline__ void Normals(uint4 words, double (&normals)[4]) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  constexpr double kTwoPi = 2.0 * 3.141592653589793238462643383279502884;
  const uint32_t pairs[2][2] = {{words.x, words.y}, {words.z, words.w}};
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = sqrt(-2.0 * log((pairs[pair][0] + 0.5) * kUnit));
    const double angle = kTwoPi * pairs[pair][1] * kUnit;
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    normals[2 * pair] = radius * cosine;
    normals[2 * pair + 1] = radius * sine;
  }
}

// One thread draws four elements that follow each other, from one block of
// random bits where their indices allow it. Limited by arithmetic in double.
__global__ void __launch_bounds__(kThreads)
    FillNormalBoxKernel(FillNormalBoxArgs args) {
  // Counted from an aligned element of the box, so that rows of a multiple of
  // four elements meet whole blocks.
  const int64_t first =
      (args.begin / kPerThread + blockIdx.x * int64_t{kThreads} + threadIdx.x) *
      kPerThread;
  if (first >= args.end) return;
  int64_t row = args.row_begin + first / args.box_cols;
  int64_t col = first % args.box_cols;
  uint64_t drawn = ~uint64_t{0};  // The block that `normals` come from.
  double normals[4] = {};
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t element = first + i;
    const uint64_t index =
        static_cast<uint64_t>(row * args.cols + args.col_begin + col);
    if (element >= args.begin && element < args.end) {
      if (index / 4 != drawn) {
        drawn = index / 4;
        Normals(gpu::RandomBits(args.seed, args.stream, drawn), normals);
      }
      const int place = static_cast<int>(index % 4);
      const double normal = place == 0   ? normals[0]
                            : place == 1 ? normals[1]
                            : place == 2 ? normals[2]
                                         : normals[3];
      args.out[element - args.begin] = static_cast<float>(args.std * normal);
    }
    if (++col == args.box_cols) {
      col = 0;
      ++row;
    }
  }
}

// One thread an element; limited by memory bandwidth.
__global__ void __launch_bounds__(kThreads)
    FillKernel(float* out, int64_t count, float value) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) out[i] = value;
}

absl::Status CheckShape(const FillNormalBoxArgs& args) {
  if (args.begin < 0 || args.end < args.begin || args.row_begin < 0 ||
      args.col_begin < 0 || args.box_cols < 1 ||
      args.cols < args.col_begin + args.box_cols) {
    return absl::InvalidArgumentError(absl::StrCat(
        "normal numbers of elements [", args.begin, ", ", args.end,
        ") of a box of ", args.box_cols, " columns at row ", args.row_begin,
        ", column ", args.col_begin, " of a matrix of ", args.cols,
        " columns: the run must be ascending and the box lie in the matrix"));
  }
  return absl::OkStatus();
}

absl::Status CheckGrid(int64_t num_blocks) {
  if (num_blocks <= kMaxBlocks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(num_blocks, " blocks in one launch, at most ", kMaxBlocks,
                   ": fill a part at a time"));
}

}  // namespace

absl::Status LaunchFillNormalBox(const FillNormalBoxArgs& args,
                                 cudaStream_t stream) {
  RETURN_IF_ERROR(CheckShape(args));
  if (args.begin == args.end) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPortableDevice("drawing initial weights"));
  const int64_t num_groups =
      (args.end + kPerThread - 1) / kPerThread - args.begin / kPerThread;
  const int64_t num_blocks = (num_groups + kThreads - 1) / kThreads;
  RETURN_IF_ERROR(CheckGrid(num_blocks));
  FillNormalBoxKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0,
                        stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch FillNormalBox");
}

absl::Status LaunchFill(float* out, int64_t count, float value,
                        cudaStream_t stream) {
  if (count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("filling ", count, " elements: none at least"));
  }
  if (count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPortableDevice("filling a buffer"));
  const int64_t num_blocks = (count + kThreads - 1) / kThreads;
  RETURN_IF_ERROR(CheckGrid(num_blocks));
  FillKernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(
      out, count, value);
  return CudaStatus(cudaGetLastError(), "launch Fill");
}

}  // namespace millrace
