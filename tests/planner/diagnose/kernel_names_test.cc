#include "planner/diagnose/kernel_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"

namespace millrace {
namespace {

// Goal: names that real libraries give their kernels fall where a reader would
// put them. Method: one or two of each library, with the traps: templates that
// mention other categories' words.
TEST(KernelNamesTest, CategorizesRealNames) {
  const std::pair<const char*, KernelCategory> kCases[] = {
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)",
       KernelCategory::kCommunication},
      {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
       KernelCategory::kCommunication},
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", KernelCategory::kGemm},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
       KernelCategory::kGemm},
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>",
       KernelCategory::kGemm},
      {"void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<cutlass::bf16>>",
       KernelCategory::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
       KernelCategory::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x128_rf_sm80", KernelCategory::kAttention},
      {"void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>",
       KernelCategory::kElementwise},
      {"void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
       KernelCategory::kElementwise},
      {"void at::native::reduce_kernel<512, 1, ReduceOp<float>>",
       KernelCategory::kReduction},
      {"void at::native::vectorized_layer_norm_kernel<float>",
       KernelCategory::kNorm},
      {"void multi_tensor_apply_kernel<LpNormFunctor>",
       KernelCategory::kOptimizer},
      {"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
       KernelCategory::kFused},
      {"triton_tem_fused_mm_3", KernelCategory::kGemm},
      {"void cunn_SoftMaxForward<8, c10::BFloat16>", KernelCategory::kSoftmax},
      {"void at::native::indexSelectLargeIndex<float>",
       KernelCategory::kIndexing},
      {"my_secret_kernel", KernelCategory::kOther},
      {"", KernelCategory::kOther},
  };
  for (const auto& [name, category] : kCases) {
    EXPECT_EQ(CategorizeKernel(name), category)
        << name << " is " << CategoryName(CategorizeKernel(name));
  }
}

// Goal: the recorded collective decides, else the kernel's name. Method: an
// all-to-all, whose kernel is SendRecv, and kernels alone.
TEST(KernelNamesTest, NamesCollectives) {
  EXPECT_EQ(CollectiveOf("ncclDevKernel_SendRecv(...)", "all_to_allv"),
            Collective::kAllToAll);
  EXPECT_EQ(CollectiveOf("ncclDevKernel_SendRecv(...)", ""),
            Collective::kSendReceive);
  EXPECT_EQ(CollectiveOf("ncclDevKernel_ReduceScatter_Sum_bf16", ""),
            Collective::kReduceScatter);
  EXPECT_EQ(CollectiveOf("ncclDevKernel_Generic", "_allgather_base"),
            Collective::kAllGather);
  EXPECT_EQ(CollectiveOf("ncclDevKernel_Reduce_Sum", ""), Collective::kReduce);
  EXPECT_EQ(CollectiveOf("ncclDevKernel_Generic", "barrier"),
            Collective::kOther);
}

// Goal: each row of the table can decide, and docs/diagnose.md shows them all.
// Method: the piece alone must give its row's category, for which no earlier
// row may fit; each must stand in the document in code quotes.
TEST(KernelNamesTest, EveryPatternCountsAndIsDocumented) {
  const absl::StatusOr<std::string> document = ReadFile("docs/diagnose.md");
  ASSERT_TRUE(document.ok()) << document.status();
  for (const KernelPatterns& patterns : AllKernelPatterns()) {
    for (const absl::string_view piece : absl::StrSplit(patterns.pieces, ' ')) {
      EXPECT_EQ(CategorizeKernel(piece), patterns.category) << piece;
      EXPECT_EQ(absl::AsciiStrToLower(piece), piece);
      EXPECT_THAT(*document,
                  ::testing::HasSubstr(absl::StrCat("`", piece, "`")));
    }
  }
}

}  // namespace
}  // namespace millrace
