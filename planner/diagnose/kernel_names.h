// The table of name patterns that tells what a GPU kernel does.

#ifndef MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_
#define MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// If kernels of several categories run at once, the category that stands first
// here gets the time.
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

// Returns kOther if no pattern fits.
KernelCategory CategorizeKernel(absl::string_view name);

// `recorded` is the kernel's "Collective name" by the profiler, or "". It
// decides if it is known, since the kernel of an all-to-all is called SendRecv.
Collective CollectiveOf(absl::string_view kernel_name,
                        absl::string_view recorded);

// Returns a name such as "GEMM" or "all-gather".
absl::string_view CategoryName(KernelCategory category);
absl::string_view CollectiveName(Collective collective);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_KERNEL_NAMES_H_
