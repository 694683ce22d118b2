// The loops for AVX-512; see CMakeLists.txt for the flags.
#define MILLRACE_LOOPS kLoopsV4
#include "kernels/cpu/loops_table.h"
