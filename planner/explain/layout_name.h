// The short name of a layout, for tables.

#ifndef MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_
#define MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_

#include <string>

#include "planner/layout/layout.h"
#include "planner/search/search.h"

namespace millrace {

// Returns a name such as "pp16 dp4 tp8 mb1 zero1 zb". Sizes that are 1 and
// choices that are none are left out, except the micro-batch's size. Sizes have
// the short names and the order of planner/layout/mesh.cc. The words, in this
// order:
//   pp      pipeline stages
//   vp      chunks of a stage
//   dp, tp, cp, ep, etp
//           data, tensor, context, expert and expert tensor ranks
//   mb      sequences of a micro-batch
//   zero    ZeRO stage
//   rc-     ops that are recomputed: "rc-full", "rc-norm+act"; "rc-act@62" if
//           62 stages recompute at most these and the others less or nothing
//   fp8, fp8_blockwise, fp4
//   gr-bf16, gr-across
//           gradients reduced in bf16: all, or between data groups alone
//   zb (zero bubble), list (list-scheduled)
//   ce      copy engines
//
// The name leaves out what all layouts of a job share: the number of
// micro-batches, and fp32 or bf16.
//
// `passes_listed` says that list scheduling orders the passes although the
// layout names another schedule. The name then says list.
std::string LayoutName(const Layout& layout, bool passes_listed = false);

// Returns the name of the plan's layout.
std::string NameOf(const Plan& plan);

// Returns a row that ends with `name`, without \n. The name gets its own line
// if it does not fit the page beside `cells`.
std::string RowWithName(const std::string& cells, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_
