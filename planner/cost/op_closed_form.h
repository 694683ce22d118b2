// Estimates a step in closed form from the prices of its ops. The search uses
// it for profiles without data-sheet figures; elsewhere closed_form.h
// estimates. List scheduling takes the costs of passes from EstimatePasses().

#ifndef MILLRACE_PLANNER_COST_OP_CLOSED_FORM_H_
#define MILLRACE_PLANNER_COST_OP_CLOSED_FORM_H_

#include <cstdint>

#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

struct StepEstimate {
  double step_time_s = 0;
  double bubble_fraction = 0;
  double exposed_communication_fraction = 0;
};

// From one micro-batch's op times by stage and the 1F1B law: all stages once,
// then the slowest for each further micro-batch. Tensor communication hides
// under weight gradients and what is computed again, data reductions under the
// last backward pass, or under each where ZeRO-2 reduces after each
// micro-batch, gathers of parameters under the pass that needs them. `layout`
// must pass ValidateLayout; a layout of several ranks needs
// cost.HasCommunication().
StepEstimate EstimateStep(const ModelSpec& model, const Layout& layout,
                          const CostModel& cost);

// Seconds of one micro-batch's passes through a stage where both gradients are
// passes of their own, exposed tensor communication and what is computed again
// included, and of its longer transfer.
struct PassSeconds {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double transfer = 0;
};
// The passes of one stage, under the same conditions on `layout` and `cost` as
// EstimateStep().
PassSeconds EstimatePasses(const ModelSpec& model, const Layout& layout,
                           int32_t stage, const CostModel& cost);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_OP_CLOSED_FORM_H_
