// One block of 8-bit moments on a CPU (kernels/optimizer/moments.h).

#ifndef MILLRACE_KERNELS_CPU_MOMENT_BLOCKS_H_
#define MILLRACE_KERNELS_CPU_MOMENT_BLOCKS_H_

#include <cstdint>

#include "kernels/optimizer/moments.h"

namespace millrace {

void EncodeMomentBlock(Moment moment, const float* values, MomentBlock& block);
// out[i] = the block's number begin + i, up to end.
void DecodeMomentBlock(Moment moment, const MomentBlock& block, int64_t begin,
                       int64_t end, float* out);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_MOMENT_BLOCKS_H_
