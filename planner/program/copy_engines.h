// Decides which communication the copy engines of a host's GPUs do in NCCL's
// place (Layout::copy_engines). Planner and workers ask the same functions, so
// that a plan prices what is run.

#ifndef MILLRACE_PLANNER_PROGRAM_COPY_ENGINES_H_
#define MILLRACE_PLANNER_PROGRAM_COPY_ENGINES_H_

#include <cstdint>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

// Most members of a reduce-scatter by copy engines, since one kernel sums them.
inline constexpr int32_t kMaxCopyEngineSum = 8;

// The largest CopyEngineUse that a layout allows. Empty for one rank.
CopyEngineUse CopyEngineUseOf(const Layout& layout);

// Whether copy engines are to do a collective or transfer, and can, where the
// members are on one host and reach each other's memory. False for other kinds.
bool CopyEnginesCarry(const Layout& layout, OpKind kind,
                      const OpAttributes& attributes);

// Whether each group of this collective or transfer lies within one host, when
// each host has the next `ranks_per_host` ranks.
bool LiesWithinHosts(const Layout& layout, OpKind kind,
                     const OpAttributes& attributes, int32_t ranks_per_host);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_COPY_ENGINES_H_
