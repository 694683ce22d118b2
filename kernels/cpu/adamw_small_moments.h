// AdamW on a CPU whose moments are stored in fewer bits than fp32.

#ifndef MILLRACE_KERNELS_CPU_ADAMW_SMALL_MOMENTS_H_
#define MILLRACE_KERNELS_CPU_ADAMW_SMALL_MOMENTS_H_

#include <cstdint>

#include "kernels/optimizer/adamw.h"

namespace millrace {

// Elements [begin, end) of checked args whose moments are not in fp32. `begin`
// is a multiple of kMomentBlockSize; in blocks, `end` is one too.
void AdamWSmallMoments(const AdamWArgs& args, int64_t begin, int64_t end);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_ADAMW_SMALL_MOMENTS_H_
