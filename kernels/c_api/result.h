// absl::Status on its way to C.

#ifndef MILLRACE_KERNELS_C_API_RESULT_H_
#define MILLRACE_KERNELS_C_API_RESULT_H_

#include "absl/status/status.h"

namespace millrace {

// The code for the caller; keeps the message for millrace_last_error().
int CResult(const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_C_API_RESULT_H_
