#include "kernels/gemm/gemm_fp8_block.h"

namespace millrace {
namespace {

float ScaleOfB(const GemmFp8BlockArgs& args, int64_t row, int64_t block) {
  switch (args.scales_of_b) {
    case Fp8ScalesOfB::kSquares:
      return args.b_scale[row / kFp8Block * args.b_scale_stride + block];
    case Fp8ScalesOfB::kTurnedSquares:
      return args.b_scale[block * args.b_scale_stride + row / kFp8Block];
    case Fp8ScalesOfB::kRows:
      break;
  }
  return args.b_scale[block * args.b_scale_stride + row];
}

}  // namespace

void GemmFp8BlockReference(const GemmFp8BlockArgs& args) {
  const auto* a = static_cast<const float*>(args.a);
  const auto* b = static_cast<const float*>(args.b);
  auto* c = static_cast<float*>(args.c);
  for (int64_t i = 0; i < args.m; ++i) {
    for (int64_t j = 0; j < args.n; ++j) {
      double sum = args.accumulate ? c[i * args.c_stride + j] : 0.0;
      for (int64_t block = 0; block < args.k / kFp8Block; ++block) {
        double products = 0.0;
        for (int64_t k = block * kFp8Block; k < (block + 1) * kFp8Block; ++k) {
          products +=
              double{a[i * args.a_stride + k]} * b[j * args.b_stride + k];
        }
        sum += products * args.a_scale[block * args.a_scale_stride + i] *
               ScaleOfB(args, j, block);
      }
      c[i * args.c_stride + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace millrace
