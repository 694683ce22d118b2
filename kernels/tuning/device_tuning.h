// Tuned choices for the device at hand.

#ifndef MILLRACE_KERNELS_TUNING_DEVICE_TUNING_H_
#define MILLRACE_KERNELS_TUNING_DEVICE_TUNING_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace millrace {

// InstallKernelTuning() of tuning_families.h with the name of the current
// device: an empty text installs what is shipped for it, or nothing.
absl::Status InstallKernelTuningOfDevice(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_TUNING_DEVICE_TUNING_H_
