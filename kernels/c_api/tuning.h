/* Choices tuned by measuring; kernels/tuning/tuning_families.h says what they
 * are. */

#ifndef MILLRACE_KERNELS_C_API_TUNING_H_
#define MILLRACE_KERNELS_C_API_TUNING_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on the kernels of this process choose by `table`, the text that
   tune_kernels writes; "" means the table that is shipped for the current
   device, if there is one, and null none at all, which is how a process starts.
   Refused if it was measured on another device. Call it while nothing else
   calls this library; graphs captured before keep their choices. */
MILLRACE_API int millrace_install_tuning(const char* table);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_TUNING_H_ */
