#include "planner/search/large_batch.h"

#include <algorithm>
#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "planner/lower/program_size.h"

namespace millrace {
namespace {

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

absl::Status DropHopelessLayouts(const LayoutSpace& space, int64_t memory_limit,
                                 std::vector<Layout>* layouts) {
  const ModelSpec& model = space.model;
  const bool is_usual = absl::c_all_of(*layouts, [&](const Layout& layout) {
    return layout.num_microbatches <=
           MicrobatchBoundsOf(model, layout).always_few_enough;
  });
  if (is_usual) return absl::OkStatus();
  int64_t largest_batch = 0;
  Layout largest;
  for (const Layout& layout : *layouts) {
    const int64_t batch = LargestMicroBatch(model, layout, memory_limit) *
                          MicrobatchBoundsOf(model, layout).too_many *
                          layout.data;
    if (batch <= largest_batch) continue;
    largest_batch = batch;
    largest = layout;
  }
  std::erase_if(*layouts, [&](const Layout& layout) {
    return layout.num_microbatches >
               MicrobatchBoundsOf(model, layout).too_many ||
           layout.micro_batch > LargestMicroBatch(model, layout, memory_limit);
  });
  if (!layouts->empty()) return absl::OkStatus();
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
