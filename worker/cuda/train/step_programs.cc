#include "worker/cuda/train/step_programs.h"

#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "planner/lower/lower.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<StepPrograms>> BuildStepPrograms(
    const ModelSpec& model, const Layout& layout, const MeshCoordinates& rank) {
  auto programs = std::make_unique<StepPrograms>();
  ASSIGN_OR_RETURN(programs->training,
                   BuildTrainingProgram(model, layout, rank));
  ASSIGN_OR_RETURN(programs->validation,
                   BuildValidationProgram(model, layout, rank.pipeline));
  ASSIGN_OR_RETURN(programs->publish,
                   BuildPublishProgram(model, layout, rank.pipeline));
  CHECK(programs->persistent_bytes() ==
        programs->validation.persistent_arena_bytes);
  CHECK(programs->persistent_bytes() ==
        programs->publish.persistent_arena_bytes);
  return programs;
}

absl::Status ExplainHang(const ModelSpec& model, const Layout& layout,
                         Rank rank, const RankProgress& progress,
                         RendezvousStore& store, absl::Duration patience) {
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildProgramsOfRanks(model, layout));
  std::vector<const Program*> borrowed;
  for (const Program& program : programs) borrowed.push_back(&program);
  return ExplainOverrun(borrowed, rank, progress, store, patience);
}

}  // namespace millrace
