// The kernels with choices to be tuned, for tables of them (tuning.h).

#ifndef MILLRACE_KERNELS_TUNING_TUNING_FAMILIES_H_
#define MILLRACE_KERNELS_TUNING_TUNING_FAMILIES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tuning/tuned_choice.h"
#include "kernels/tuning/tuning.h"

namespace millrace {

// In the order of TunedKernel.
absl::Span<const TuningFamily> KernelTuningFamilies();
const TuningFamily& FamilyOf(TunedKernel kernel);

// The table that is shipped for a device of this name ("NVIDIA H200"), as
// text; empty if there is none. kernels/tuning/tuned_h200.txt is the one for
// it.
absl::string_view ShippedTuningTable(absl::string_view chip);

// Installs `text`, of FormatTuningTable(), if it was measured on `chip`; an
// empty text installs the shipped table of `chip`, or nothing. InvalidArgument
// names a bad line or the other chip.
absl::Status InstallKernelTuning(absl::string_view text,
                                 absl::string_view chip);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_TUNING_TUNING_FAMILIES_H_
