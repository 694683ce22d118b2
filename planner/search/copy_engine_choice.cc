#include "planner/search/copy_engine_choice.h"

#include "planner/program/copy_engines.h"
#include "planner/search/variant_choice.h"

namespace millrace {

CopyEngineChoice CopyEngineChoiceOf(const ResourceSpec& resources,
                                    const HardwareProfile& profile) {
  if (!resources.uses_cuda() || resources.transport == "nccl") {
    return CopyEngineChoice::kNever;
  }
  if (resources.transport == "copy_engines") return CopyEngineChoice::kAlways;
  return profile.copy_engines.empty() ? CopyEngineChoice::kNever
                                      : CopyEngineChoice::kIfFaster;
}

void UseCopyEngines(std::vector<Layout>* layouts) {
  for (Layout& layout : *layouts) {
    layout.copy_engines = CopyEngineUseOf(layout);
  }
}

absl::Status ChooseCopyEngines(const JobSpec& job, const CostModel& cost,
                               Plan* plan) {
  const CopyEngineChoice choice =
      CopyEngineChoiceOf(job.resources, cost.profile());
  Layout layout = plan->layout;
  layout.copy_engines = CopyEngineUseOf(layout);
  if (choice == CopyEngineChoice::kNever || !layout.copy_engines.any()) {
    return absl::OkStatus();
  }
  return TakeVariant(job.model, layout, cost,
                     choice == CopyEngineChoice::kAlways, plan);
}

}  // namespace millrace
