#include "coordinator/cli/plan_timeline.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/report/report.h"
#include "planner/cost/closed_form.h"
#include "planner/lower/lower.h"
#include "planner/program/program.h"
#include "planner/search/listed_order.h"
#include "planner/simulate/perfetto_trace.h"
#include "planner/simulate/simulate_passes.h"
#include "planner/simulate/timeline.h"

namespace millrace {
namespace {

// A step, and what its instructions are.
struct Step {
  Timeline timeline;
  std::vector<std::string> program_texts;  // By stage.
  std::string trace;                       // For Perfetto.
};

// Returns the step by instructions, as workers would execute it.
absl::StatusOr<Step> ExecutableStep(const PlanningCase& planned,
                                    const Plan& plan) {
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(planned.job.model, plan.layout));
  Step step{.timeline = plan.timeline};
  std::vector<const Program*> by_stage;
  for (const Program& program : programs) {
    by_stage.push_back(&program);
    step.program_texts.push_back(ProgramToString(program));
  }
  step.trace = TimelineToTrace(by_stage, plan.timeline);
  return step;
}

Step StepOf(const PassTimeline& timeline, int32_t num_stages) {
  Step step{.timeline = ToTimeline(timeline)};
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    step.program_texts.push_back(PassProgramText(timeline, stage));
  }
  step.trace = PassTimelineToTrace(timeline);
  return step;
}

// Returns the step by passes, for layouts that cannot be lowered.
absl::StatusOr<Step> PlannedStep(const PlanningCase& planned,
                                 const Plan& plan) {
  const Implementation implementation = {.pipeline_outermost =
                                             plan.pipeline_outermost};
  ASSIGN_OR_RETURN(
      StepModel model,
      StepModel::Create(planned.job.model, planned.profile, implementation));
  ASSIGN_OR_RETURN(PassStep step,
                   PassStepOf(plan.layout, implementation, model));
  if (!plan.listed_bytes.empty()) {
    RETURN_IF_ERROR(ListPasses(plan.listed_bytes, &step));
  }
  ASSIGN_OR_RETURN(const PassSimulation simulated,
                   SimulatePasses(step, {.overlap = planned.profile.overlap}));
  return StepOf(simulated.timeline, plan.layout.pipeline);
}

}  // namespace

absl::Status CheckTimelinePath(const std::string& path) {
  if (path.empty() || absl::EndsWith(path, ".html") ||
      absl::EndsWith(path, ".json")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--timeline ", path,
      ": expected NAME.html for a page, NAME.perfetto.json for a trace or "
      "NAME.json for the bare timeline"));
}

absl::Status WritePlanTimeline(const std::string& path,
                               const PlanningCase& planned, const Plan& plan) {
  ASSIGN_OR_RETURN(const Step step, plan.timeline.ranks.empty()
                                        ? PlannedStep(planned, plan)
                                        : ExecutableStep(planned, plan));
  if (absl::EndsWith(path, ".perfetto.json")) {
    return WriteFileAtomically(path, step.trace);
  }
  if (!absl::EndsWith(path, ".html")) {
    return WriteFileAtomically(path, TimelineToJson(step.timeline));
  }
  ASSIGN_OR_RETURN(const std::string page,
                   PlanPage(planned.job, planned.profile, plan, step.timeline,
                            step.program_texts));
  return WriteFileAtomically(path, page);
}

}  // namespace millrace
