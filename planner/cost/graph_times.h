// Sums the measured times of the ops that workers run for one layer and for the
// ends of the model. StepModel prices layers by it where a profile has measured
// tables and no data sheet.

#ifndef MILLRACE_PLANNER_COST_GRAPH_TIMES_H_
#define MILLRACE_PLANNER_COST_GRAPH_TIMES_H_

#include "planner/cost/layer_time.h"
#include "planner/cost/op_cost.h"
#include "planner/cost/stage_time.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/profile/profile.h"

namespace millrace {

// Seconds of one micro-batch on a rank that computes alone, before
// communication is hidden.
struct GraphSeconds {
  double forward = 0;
  double recompute = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double forward_comm = 0;   // Over the tensor axis.
  double backward_comm = 0;  // Over the tensor axis.
};
struct GraphCut {
  GraphSeconds layer;
  GraphSeconds embedding;
  GraphSeconds head;
};

// Whether workers have ops for such layers, so that they can be summed.
bool HasGraph(const ModelSpec& model, const Layout& layout);
// `layout` must pass ValidateLayout() and HasGraph(). All stages recompute
// `recompute`, whatever the layout says. A layout with tensor ranks needs
// cost.HasCommunication().
GraphCut SumGraph(const ModelSpec& model, const Layout& layout,
                  Recompute recompute, const CostModel& cost);

// The passes when other ranks of the host make computing take `contention`
// times as long. Communication of the backward pass hides under weight
// gradients and recompute, that of the forward pass under nothing.
CutTimes TimesOf(const GraphCut& cut, double contention,
                 const OverlapFactors& overlap);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_GRAPH_TIMES_H_
