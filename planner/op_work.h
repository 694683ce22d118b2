// What an op has to do: arithmetic and bytes, from its shape alone.

#ifndef MILLRACE_PLANNER_OP_WORK_H_
#define MILLRACE_PLANNER_OP_WORK_H_

#include "planner/layout.h"
#include "planner/ops.h"

namespace millrace {

// Floating-point operations and bytes moved by one instruction, from its kind
// and attributes alone.
struct OpWork {
  double flops;
  double bytes;
};
OpWork WorkOf(const Layout& layout, OpKind kind,
              const OpAttributes& attributes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_OP_WORK_H_
