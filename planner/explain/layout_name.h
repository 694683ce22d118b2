// The short name of a layout, for tables.

#ifndef MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_
#define MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_

#include <string>

#include "planner/layout/layout.h"
#include "planner/search/search.h"

namespace millrace {

// "pp16 dp4 tp8 mb1 zero1 zb". Sizes and choices that are 1 or none are left
// out, all but the micro-batch's size. In this order: pp (pipeline), vp (chunks
// of a stage), dp (data), tp (tensor), cp (context), ep (expert), etp (expert
// tensor), mb (sequences of a micro-batch), zero, rc- with the ops that are
// recomputed ("rc-full", "rc-norm+act"; "rc-act@62" where 62 stages recompute
// at most this and the others less or nothing), fp8 or fp4, zb (zero bubble) or
// list (list-scheduled), ce (copy engines). What all layouts of a job share is
// left out: the number of micro-batches, fp32 or bf16, and how gradients are
// reduced.
//
// `passes_listed`: list scheduling orders the passes of a layout that names
// another schedule; it then says list.
std::string LayoutName(const Layout& layout, bool passes_listed = false);

// The name of the plan's layout.
std::string NameOf(const Plan& plan);

// A row that ends with `name`, without \n. The name has a line of its own if
// the page is too narrow for it beside `cells`.
std::string RowWithName(const std::string& cells, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_LAYOUT_NAME_H_
