// The work of an op: arithmetic and bytes, from its shape alone.

#ifndef MILLRACE_PLANNER_PROGRAM_OP_WORK_H_
#define MILLRACE_PLANNER_PROGRAM_OP_WORK_H_

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

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

#endif  // MILLRACE_PLANNER_PROGRAM_OP_WORK_H_
