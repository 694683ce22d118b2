// The loops for AVX2 and FMA; see CMakeLists.txt for the flags.
#define MILLRACE_LOOPS kLoopsV3
#include "kernels/cpu/loops_table.h"
