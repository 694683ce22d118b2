// The loops for every processor of the architecture; see CMakeLists.txt for the
// flags.
#define MILLRACE_LOOPS kLoopsBaseline
#include "kernels/cpu/loops_table.h"
