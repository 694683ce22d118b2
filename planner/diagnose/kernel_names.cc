#include "planner/diagnose/kernel_names.h"

#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace millrace {
namespace {

// Names hold the whole template, so narrow words stand before broad ones.
// cuDNN's attention has "fprop" in its name, Triton's GEMMs have "triton", and
// nearly every PyTorch kernel has "elementwise" or "copy".
constexpr KernelPatterns kPatterns[] = {
    {"nccl nvshmem deep_ep cross_device_reduce multimem_all_ "
     "one_shot_all_reduce two_shot_all_reduce",
     KernelCategory::kCommunication},
    {"flash fmha attention attn sdpa", KernelCategory::kAttention},
    {"multi_tensor_apply adam lamb_", KernelCategory::kOptimizer},
    {"implicit_convolve convolution conv2d winograd fprop wgrad dgrad",
     KernelCategory::kConvolution},
    {"gemm gemv nvjet cutlass cublas splitk matmul triton_mm triton_tem",
     KernelCategory::kGemm},
    {"triton", KernelCategory::kFused},
    {"layer_norm layernorm rms_norm rmsnorm group_norm groupnorm batch_norm "
     "gammabeta",
     KernelCategory::kNorm},
    {"softmax cross_entropy nll_loss", KernelCategory::kSoftmax},
    {"embedding index gather scatter topk sort", KernelCategory::kIndexing},
    {"reduce scan", KernelCategory::kReduction},
    {"elementwise pointwise catarraybatchedcopy copy fill dropout transpose "
     "rotary",
     KernelCategory::kElementwise},
};

constexpr absl::string_view kCategoryNames[kNumKernelCategories] = {
    "GEMM",      "attention",        "convolution", "optimizer",
    "norm",      "softmax and loss", "indexing",    "fused (Triton)",
    "reduction", "elementwise",      "other",       "communication"};
constexpr absl::string_view kCollectiveNames[kNumCollectives] = {
    "all-reduce",   "all-gather", "reduce-scatter", "all-to-all",
    "send/receive", "broadcast",  "reduce",         "other"};

// Accepts "_reduce_scatter_base",
// "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL" and "reducescatter".
std::optional<Collective> CollectiveIn(absl::string_view text) {
  const std::string name =
      absl::StrReplaceAll(absl::AsciiStrToLower(text), {{"_", ""}, {"-", ""}});
  const auto has = [&](absl::string_view piece) {
    return absl::StrContains(name, piece);
  };
  if (has("allreduce")) return Collective::kAllReduce;
  if (has("allgather")) return Collective::kAllGather;
  if (has("reducescatter")) return Collective::kReduceScatter;
  if (has("alltoall")) return Collective::kAllToAll;
  if (has("send") || has("recv")) return Collective::kSendReceive;
  if (has("broadcast")) return Collective::kBroadcast;
  if (has("reduce")) return Collective::kReduce;
  return std::nullopt;
}

}  // namespace

absl::Span<const KernelPatterns> AllKernelPatterns() { return kPatterns; }

KernelCategory CategorizeKernel(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const KernelPatterns& patterns : kPatterns) {
    for (const absl::string_view piece : absl::StrSplit(patterns.pieces, ' ')) {
      if (absl::StrContains(lower, piece)) return patterns.category;
    }
  }
  return KernelCategory::kOther;
}

Collective CollectiveOf(absl::string_view kernel_name,
                        absl::string_view recorded) {
  if (const auto known = CollectiveIn(recorded)) return *known;
  return CollectiveIn(kernel_name).value_or(Collective::kOther);
}

absl::string_view CategoryName(KernelCategory category) {
  return kCategoryNames[static_cast<int>(category)];
}

absl::string_view CollectiveName(Collective collective) {
  return kCollectiveNames[static_cast<int>(collective)];
}

}  // namespace millrace
