#include "worker/cuda/nccl/nccl_version.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Since 2.9 a code is major * 10000 + minor * 100 + patch; before that a major
// counted 1000, which still sorts below.
constexpr int Code(int minor, int patch) { return 20000 + minor * 100 + patch; }

constexpr int kOldestUsable = Code(18, 1);
// Advised against for abort and shrink.
constexpr int kFirstUnsafe = Code(28, 3);
constexpr int kLastUnsafe = Code(28, 8);

}  // namespace

std::string NcclVersionName(int version_code) {
  const int major_unit = version_code < 10000 ? 1000 : 10000;
  return absl::StrCat(version_code / major_unit, ".",
                      version_code % major_unit / 100, ".", version_code % 100);
}

absl::StatusOr<std::string> CheckNcclVersion(int version_code) {
  const std::string name = NcclVersionName(version_code);
  if (version_code < kOldestUsable) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL ", name,
                     " is too old: communicators could neither be given up "
                     "when a rank is lost nor limited in the multiprocessors "
                     "they take. Use ",
                     NcclVersionName(kOldestUsable), " at least, better ",
                     NcclVersionName(kLastUnsafe + 1), " or later"));
  }
  if (version_code >= kFirstUnsafe && version_code <= kLastUnsafe) {
    return absl::StrCat(
        "NCCL ", name, " is advised against (", NcclVersionName(kFirstUnsafe),
        " to ", NcclVersionName(kLastUnsafe),
        " are) for aborting communicators, which recovery does when a rank is "
        "lost: a survivor may hang and have to be replaced. Use ",
        NcclVersionName(kLastUnsafe + 1), " or later, or one before ",
        NcclVersionName(kFirstUnsafe));
  }
  return std::string();
}

}  // namespace millrace
