#include "planner/search/chunk_choice.h"

#include <optional>

#include "base/status_macros.h"
#include "planner/search/variant_choice.h"

namespace millrace {
namespace {

std::vector<Layout> WithChunks(const ModelSpec& model, Layout layout,
                               const std::vector<int32_t>& counts) {
  std::vector<Layout> variants;
  if (layout.tensor_chunks > 1) return variants;
  for (const int32_t count : counts) {
    layout.tensor_chunks = count;
    if (count > 1 &&
        ValidateLayout(model, layout, layout.global_batch()).ok()) {
      variants.push_back(layout);
    }
  }
  return variants;
}

}  // namespace

std::vector<Layout> ChunkedVariants(const ModelSpec& model,
                                    const Layout& layout) {
  return WithChunks(model, layout, {2, 4});
}

bool MayChooseChunks(const JobSpec& job) {
  return job.resources.uses_cuda() && !job.layout.tensor_chunks.has_value();
}

absl::Status ChooseTensorChunks(const JobSpec& job, const CostModel& cost,
                                Plan* plan) {
  const std::optional<int32_t> pinned = job.layout.tensor_chunks;
  std::vector<Layout> variants;
  if (pinned.has_value()) {
    variants = WithChunks(job.model, plan->layout, {*pinned});
  } else if (MayChooseChunks(job)) {
    variants = ChunkedVariants(job.model, plan->layout);
  }
  for (const Layout& layout : variants) {
    RETURN_IF_ERROR(
        TakeVariant(job.model, layout, cost, pinned.has_value(), plan));
  }
  return absl::OkStatus();
}

}  // namespace millrace
