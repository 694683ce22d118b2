#include "planner/search/nothing_fits.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "planner/lower/program_size.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/search/layout_tree.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// The least power-of-two multiple of the devices on which some layout fits.
std::optional<int32_t> DevicesThatFit(const LayoutSpace& space,
                                      int64_t memory_limit, StepModel& model,
                                      const std::stop_token& stop) {
  LayoutSpace more = space;
  for (int64_t factor = 2; factor <= kSearchBudget.most_times_the_devices;
       factor *= 2) {
    const int64_t devices = factor * space.num_devices;
    if (devices > std::numeric_limits<int32_t>::max()) return std::nullopt;
    more.num_devices = static_cast<int32_t>(devices);
    // A layout that has to use all devices uses all of these.
    if (space.constraints.devices == space.num_devices) {
      more.constraints.devices = more.num_devices;
    }
    const LayoutTree tree(more);
    StepEvaluator evaluator(tree, model);
    if (AnyLayoutFits(tree, memory_limit, evaluator, stop)) {
      return more.num_devices;
    }
    if (stop.stop_requested()) return std::nullopt;
  }
  return std::nullopt;
}

// The largest micro-batch whose layer inputs fit, at least 1: whether a single
// sequence fits is for its Programs to say. Layer inputs are kept from the
// forward to the backward pass even where everything else is recomputed.
int64_t LargestMicroBatch(const ModelSpec& model, const Layout& layout,
                          int64_t memory_limit) {
  const int64_t layers_of_stage =
      (model.num_layers + layout.pipeline - 1) / layout.pipeline;
  const int64_t bytes = layout.precision == Precision::kBfloat16 ? 2 : 4;
  // A layer's input is cut into the shards of the tensor axis.
  const int64_t sequence_bytes =
      std::max<int64_t>(1, layers_of_stage * model.sequence_length *
                               model.hidden * bytes / layout.tensor);
  return std::max<int64_t>(1, memory_limit / sequence_bytes);
}

}  // namespace

absl::Status ExplainNothingFits(const LayoutSpace& space,
                                const Layout& smallest, int64_t need_bytes,
                                int64_t memory_limit, bool memory_is_the_jobs,
                                StepModel& model, const std::stop_token& stop) {
  std::string change;
  if (memory_is_the_jobs) {
    change = absl::StrCat("raise resources.memory_per_device to ",
                          (need_bytes + kMiB - 1) / kMiB, " MiB");
  }
  if (const std::optional<int32_t> devices =
          DevicesThatFit(space, memory_limit, model, stop)) {
    absl::StrAppend(&change, change.empty() ? "" : ", or ", "use ", *devices,
                    " devices");
  }
  if (change.empty()) change = "train a smaller model";
  return absl::InvalidArgumentError(absl::StrCat(
      "no layout on ", space.num_devices, " devices fits into ",
      FormatBytes(memory_limit), " a device: the smallest, ",
      LayoutToString(smallest), ", needs ", FormatBytes(need_bytes), ", ",
      FormatBytes(need_bytes - memory_limit),
      " more; smallest change: ", change));
}

absl::Status ExplainLargeBatch(const LayoutSpace& space, int64_t memory_limit) {
  const ModelSpec& model = space.model;
  const LayoutTree tree(space);
  int64_t largest_batch = 0;
  Layout largest;
  for (const Layout& sharding : tree.Shardings()) {
    for (const int32_t pipeline : tree.Pipelines(sharding)) {
      for (const int32_t data : tree.Replicas(sharding, pipeline)) {
        const Layout mesh = tree.Mesh(sharding, pipeline, data);
        const int64_t batch = LargestMicroBatch(model, mesh, memory_limit) *
                              MicrobatchBoundsOf(model, mesh).too_many * data;
        if (batch <= largest_batch) continue;
        largest_batch = batch;
        largest = mesh;
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "training.global_batch is ", space.global_batch, ", which no layout on ",
      space.num_devices, " devices can train: ", FormatBytes(memory_limit),
      " of a device hold micro-batches of at most ",
      LargestMicroBatch(model, largest, memory_limit),
      " sequences, and a step of more than ",
      MicrobatchBoundsOf(model, largest).too_many,
      " micro-batches has Programs of more than ", kMostInstructions,
      " instructions, which take too much memory and time to make; set "
      "training.global_batch to ",
      std::min(largest_batch, space.global_batch - 1),
      " or less, or use more devices"));
}

}  // namespace millrace
