#include "worker/cuda/step_programs.h"

#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "planner/lower.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<StepPrograms>> BuildStepPrograms(
    const ModelSpec& model, const Layout& layout, int32_t stage) {
  auto programs = std::make_unique<StepPrograms>();
  ASSIGN_OR_RETURN(programs->training,
                   BuildTrainingProgram(model, layout, stage));
  ASSIGN_OR_RETURN(programs->validation,
                   BuildValidationProgram(model, layout, stage));
  ASSIGN_OR_RETURN(programs->publish,
                   BuildPublishProgram(model, layout, stage));
  CHECK(programs->persistent_bytes() ==
        programs->validation.persistent_arena_bytes);
  CHECK(programs->persistent_bytes() ==
        programs->publish.persistent_arena_bytes);
  return programs;
}

absl::Status ExplainHang(const ModelSpec& model, const Layout& layout,
                         Rank rank, const RankProgress& progress,
                         RendezvousStore& store, absl::Duration patience) {
  std::vector<Program> programs(layout.pipeline);
  std::vector<const Program*> borrowed;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    ASSIGN_OR_RETURN(programs[stage],
                     BuildTrainingProgram(model, layout, stage));
    borrowed.push_back(&programs[stage]);
  }
  return ExplainOverrun(borrowed, rank, progress, store, patience);
}

}  // namespace millrace
