#include "planner/diagnose/kernel_names.h"

#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace millrace {
namespace {

// Names hold the whole template, so narrow words stand before broad ones:
// cuDNN's attention says "fprop", Triton's GEMMs say "triton", and nearly every
// PyTorch kernel says "elementwise" or "copy" somewhere.
constexpr KernelPattern kPatterns[] = {
    {"nccl", KernelCategory::kCommunication},
    {"nvshmem", KernelCategory::kCommunication},
    {"deep_ep", KernelCategory::kCommunication},
    {"cross_device_reduce", KernelCategory::kCommunication},
    {"multimem_all_", KernelCategory::kCommunication},
    {"one_shot_all_reduce", KernelCategory::kCommunication},
    {"two_shot_all_reduce", KernelCategory::kCommunication},
    {"flash", KernelCategory::kAttention},
    {"fmha", KernelCategory::kAttention},
    {"attention", KernelCategory::kAttention},
    {"attn", KernelCategory::kAttention},
    {"sdpa", KernelCategory::kAttention},
    {"multi_tensor_apply", KernelCategory::kOptimizer},
    {"adam", KernelCategory::kOptimizer},
    {"lamb_", KernelCategory::kOptimizer},
    {"implicit_convolve", KernelCategory::kConvolution},
    {"convolution", KernelCategory::kConvolution},
    {"conv2d", KernelCategory::kConvolution},
    {"winograd", KernelCategory::kConvolution},
    {"fprop", KernelCategory::kConvolution},
    {"wgrad", KernelCategory::kConvolution},
    {"dgrad", KernelCategory::kConvolution},
    {"gemm", KernelCategory::kGemm},
    {"gemv", KernelCategory::kGemm},
    {"nvjet", KernelCategory::kGemm},
    {"cutlass", KernelCategory::kGemm},
    {"cublas", KernelCategory::kGemm},
    {"splitk", KernelCategory::kGemm},
    {"matmul", KernelCategory::kGemm},
    {"triton_mm", KernelCategory::kGemm},
    {"triton_tem", KernelCategory::kGemm},
    {"triton", KernelCategory::kFused},
    {"layer_norm", KernelCategory::kNorm},
    {"layernorm", KernelCategory::kNorm},
    {"rms_norm", KernelCategory::kNorm},
    {"rmsnorm", KernelCategory::kNorm},
    {"group_norm", KernelCategory::kNorm},
    {"groupnorm", KernelCategory::kNorm},
    {"batch_norm", KernelCategory::kNorm},
    {"gammabeta", KernelCategory::kNorm},
    {"softmax", KernelCategory::kSoftmax},
    {"cross_entropy", KernelCategory::kSoftmax},
    {"nll_loss", KernelCategory::kSoftmax},
    {"embedding", KernelCategory::kIndexing},
    {"index", KernelCategory::kIndexing},
    {"gather", KernelCategory::kIndexing},
    {"scatter", KernelCategory::kIndexing},
    {"topk", KernelCategory::kIndexing},
    {"sort", KernelCategory::kIndexing},
    {"reduce", KernelCategory::kReduction},
    {"scan", KernelCategory::kReduction},
    {"elementwise", KernelCategory::kElementwise},
    {"pointwise", KernelCategory::kElementwise},
    {"catarraybatchedcopy", KernelCategory::kElementwise},
    {"copy", KernelCategory::kElementwise},
    {"fill", KernelCategory::kElementwise},
    {"dropout", KernelCategory::kElementwise},
    {"transpose", KernelCategory::kElementwise},
    {"rotary", KernelCategory::kElementwise},
};

// "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL" and
// "reducescatter" alike.
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

absl::Span<const KernelPattern> KernelPatterns() { return kPatterns; }

KernelCategory CategorizeKernel(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const KernelPattern& pattern : kPatterns) {
    if (absl::StrContains(lower, pattern.piece)) return pattern.category;
  }
  return KernelCategory::kOther;
}

Collective CollectiveOf(absl::string_view kernel_name,
                        absl::string_view recorded) {
  if (const auto known = CollectiveIn(recorded)) return *known;
  return CollectiveIn(kernel_name).value_or(Collective::kOther);
}

absl::string_view CategoryName(KernelCategory category) {
  switch (category) {
    case KernelCategory::kGemm:
      return "GEMM";
    case KernelCategory::kAttention:
      return "attention";
    case KernelCategory::kConvolution:
      return "convolution";
    case KernelCategory::kOptimizer:
      return "optimizer";
    case KernelCategory::kNorm:
      return "norm";
    case KernelCategory::kSoftmax:
      return "softmax and loss";
    case KernelCategory::kIndexing:
      return "indexing";
    case KernelCategory::kFused:
      return "fused (Triton)";
    case KernelCategory::kReduction:
      return "reduction";
    case KernelCategory::kElementwise:
      return "elementwise";
    case KernelCategory::kOther:
      return "other";
    case KernelCategory::kCommunication:
      return "communication";
  }
  return "other";
}

absl::string_view CollectiveName(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kSendReceive:
      return "send/receive";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kOther:
      return "other";
  }
  return "other";
}

}  // namespace millrace
