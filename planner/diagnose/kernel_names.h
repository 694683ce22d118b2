// What a GPU kernel does, judged by its name: the one table of name patterns.

#ifndef MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_
#define MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// In the order in which time is attributed where kernels of several categories
// run at once: the first one gets it.
enum class KernelCategory {
  kGemm,
  kAttention,
  kConvolution,
  kOptimizer,
  kNorm,
  kSoftmax,
  kIndexing,
  kFused,
  kReduction,
  kElementwise,
  kOther,
  kCommunication,  // The only one that is not compute.
};
inline constexpr int kNumKernelCategories = 12;

enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendReceive,
  kBroadcast,
  kReduce,
  kOther,
};
inline constexpr int kNumCollectives = 8;

// A kernel whose name contains one of `pieces`, in any case of letters, is of
// `category`. The first of these that fits decides.
struct KernelPatterns {
  absl::string_view pieces;  // Lower case, separated by spaces.
  KernelCategory category;
};

absl::Span<const KernelPatterns> AllKernelPatterns();

// kOther where no pattern fits.
KernelCategory CategorizeKernel(absl::string_view name);

// `recorded` is what the profiler noted as the kernel's "Collective name", or
// "". It decides where it is known, since an all-to-all's kernel is called
// SendRecv.
Collective CollectiveOf(absl::string_view kernel_name,
                        absl::string_view recorded);

// "GEMM", "all-gather".
absl::string_view CategoryName(KernelCategory category);
absl::string_view CollectiveName(Collective collective);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_
