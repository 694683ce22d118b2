#include "planner/cost/op_closed_form.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "planner/lower/graph.h"

namespace millrace {
namespace {

// Seconds of one stage, compute uncontended.
struct StageSeconds {
  double forward = 0;
  double recompute = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double forward_comm = 0;   // Over the tensor axis.
  double backward_comm = 0;  // Over the tensor axis.
  double transfer = 0;       // Sends of one micro-batch.
  double longest_transfer = 0;
  double forward_gather = 0;   // Of parameters, under ZeRO-3.
  double backward_gather = 0;  // Likewise.
  double reduce = 0;           // All buckets.
  double longest_reduce = 0;
  double accumulate = 0;    // Gradients of a further micro-batch, ZeRO-2 and 3.
  double gather = 0;        // Of parameters, all buckets, once a step.
  double first_gather = 0;  // What the forward pass cannot start without.
  double step_compute = 0;  // Prologue and epilogue.
  double step_comm = 0;
};

void AddPassOp(const Layout& layout, const GraphOp& op, const CostModel& cost,
               bool is_forward, StageSeconds* stage) {
  // The host lane loads ahead, and a receive is the other end of a send.
  if (op.kind == OpKind::kLoadBatch || op.kind == OpKind::kReceive) return;
  const double seconds = cost.Seconds(layout, op.kind, op.attributes);
  if (op.kind == OpKind::kSend) {
    stage->transfer += seconds;
    stage->longest_transfer = std::max(stage->longest_transfer, seconds);
  } else if (op.phase == Phase::kParameterGather) {
    (is_forward ? stage->forward_gather : stage->backward_gather) += seconds;
  } else if (IsCollective(op.kind)) {
    (is_forward ? stage->forward_comm : stage->backward_comm) += seconds;
  } else if (op.phase == Phase::kForward) {
    stage->forward += seconds;
  } else if (op.phase == Phase::kRecompute) {
    stage->recompute += seconds;
  } else if (op.phase == Phase::kInputGradient) {
    stage->input_gradient += seconds;
  } else {
    stage->weight_gradient += seconds;
  }
}

StageSeconds SumStage(const ModelSpec& model, const Layout& layout,
                      int32_t stage_idx, const CostModel& cost) {
  const Graph graph = BuildTrainingGraph(model, layout, stage_idx);
  StageSeconds stage;
  for (const GraphOp& op : graph.forward) {
    AddPassOp(layout, op, cost, /*is_forward=*/true, &stage);
  }
  for (const GraphOp& op : graph.backward) {
    AddPassOp(layout, op, cost, /*is_forward=*/false, &stage);
  }
  for (const std::vector<GraphOp>& bucket : graph.reduce_by_bucket) {
    double seconds = 0;
    for (const GraphOp& op : bucket) {
      (IsCollective(op.kind) ? seconds : stage.accumulate) +=
          cost.Seconds(layout, op.kind, op.attributes);
    }
    stage.reduce += seconds;
    stage.longest_reduce = std::max(stage.longest_reduce, seconds);
  }
  for (const auto* ops : {&graph.prologue, &graph.epilogue}) {
    for (const GraphOp& op : *ops) {
      const double seconds = cost.Seconds(layout, op.kind, op.attributes);
      if (op.phase == Phase::kParameterGather) {
        if (stage.gather == 0) stage.first_gather = seconds;
        stage.gather += seconds;
      } else {
        (IsCollective(op.kind) ? stage.step_comm : stage.step_compute) +=
            seconds;
      }
    }
  }
  return stage;
}

// The contention factor at a fractional number of computing ranks.
double ContentionAt(const std::vector<double>& factors, double num_computing) {
  if (factors.empty() || num_computing <= 1) return 1;
  const double position =
      std::min(num_computing, static_cast<double>(factors.size())) - 1;
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, factors.size() - 1);
  const double share = position - static_cast<double>(below);
  return factors[below] * (1 - share) + factors[above] * share;
}

}  // namespace

StepEstimate EstimateStep(const ModelSpec& model, const Layout& layout,
                          const CostModel& cost) {
  const double num_microbatches = layout.num_microbatches;
  const double busy_share =
      num_microbatches / (num_microbatches + layout.pipeline - 1);
  const double num_computing =
      busy_share * std::min(layout.num_ranks(), cost.profile().ranks_per_host);
  const double contention =
      ContentionAt(cost.profile().compute_contention, num_computing);

  double all_passes = 0, slowest_pass = 0, transfers = 0;
  double tail = 0, tail_comm = 0, pass_comm = 0, weight_gradients = 0;
  for (int32_t stage_idx = 0; stage_idx < layout.pipeline; ++stage_idx) {
    const StageSeconds stage = SumStage(model, layout, stage_idx, cost);
    const double forward = contention * stage.forward;
    const double backward =
        contention *
        (stage.recompute + stage.input_gradient + stage.weight_gradient);
    const double hidden_by =
        contention * (stage.recompute + stage.weight_gradient);
    double comm = stage.forward_comm +
                  std::max(0.0, stage.backward_comm - hidden_by) +
                  std::max(0.0, stage.forward_gather - forward) +
                  std::max(0.0, stage.backward_gather - backward);
    double pass = forward + backward + comm;
    if (layout.shards_gradients()) {
      // After every micro-batch but the last, which the tail counts.
      const double further = (num_microbatches - 1) / num_microbatches;
      const double exposed =
          further * std::max(0.0, stage.reduce - forward - backward);
      comm += exposed;
      pass += exposed + further * contention * stage.accumulate;
    }
    all_passes += pass;
    slowest_pass = std::max(slowest_pass, pass);
    pass_comm += comm;
    transfers += stage.transfer;
    weight_gradients += contention * stage.weight_gradient;
    const double exposed_reduce =
        std::max(stage.longest_reduce, stage.reduce - backward);
    // Buckets are gathered under the first forward pass, all but the first.
    const double exposed_gather =
        std::max(stage.first_gather, stage.gather - forward);
    const double stage_tail_comm =
        exposed_reduce + exposed_gather + stage.step_comm;
    const double stage_tail = contention * stage.step_compute + stage_tail_comm;
    if (stage_tail > tail) {
      tail = stage_tail;
      tail_comm = stage_tail_comm;
    }
  }
  double pipeline_time =
      all_passes + (num_microbatches - 1) * slowest_pass + transfers;
  if (layout.schedule != Schedule::kOneForwardOneBackward) {
    // No stage waits for the weight gradients of another: of the stages after
    // it when the first gradients come, and, put off, at the end once more.
    const double put_off =
        layout.pipeline - 1 +
        std::max(0.0, std::min<double>(layout.pipeline, num_microbatches) - 2);
    pipeline_time -= put_off * weight_gradients / layout.pipeline;
  }
  const double mean_pass = all_passes / layout.pipeline;
  StepEstimate estimate;
  estimate.step_time_s = pipeline_time + tail;
  estimate.bubble_fraction =
      (pipeline_time - num_microbatches * mean_pass) / estimate.step_time_s;
  estimate.exposed_communication_fraction =
      (num_microbatches * pass_comm / layout.pipeline + tail_comm) /
      estimate.step_time_s;
  return estimate;
}

PassSeconds EstimatePasses(const ModelSpec& model, const Layout& layout,
                           int32_t stage_idx, const CostModel& cost) {
  const StageSeconds stage = SumStage(model, layout, stage_idx, cost);
  return {.forward = stage.forward + stage.forward_comm,
          .input_gradient = stage.input_gradient +
                            std::max(stage.recompute, stage.backward_comm),
          .weight_gradient = stage.weight_gradient,
          .transfer = stage.longest_transfer};
}

}  // namespace millrace
