// The last stage of the search: lowers the finalists that workers can execute
// and simulates their Programs instruction by instruction.

#ifndef MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/job/layout_space.h"
#include "planner/program/program.h"
#include "planner/search/finalist.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// A layout with its Programs and their simulation.
struct LoweredStep {
  Layout layout;
  Timeline timeline = {};
  std::vector<Program> programs = {};  // By stage.
};

class InstructionFinalists {
 public:
  // Borrows all but the limit, the bytes of a device. Once a stop is requested,
  // all calls end with Cancelled.
  InstructionFinalists(const LayoutSpace& space, int64_t memory_limit,
                       const CostModel& cost, StepModel& model,
                       std::stop_token stop);

  // Prices the finalists that can be lowered, in their order, as many as stays
  // quick, or with `until_one_fits` up to the first whose Programs fit. Where
  // the Programs of one do not fit, it adds the same layout with the least
  // recompute in each stage with which the stage's Program fits. Errors are
  // those of lowering.
  absl::Status PriceAll(bool until_one_fits, std::vector<Finalist>* finalists);
  // Prices one finalist that can be lowered. Steps of many micro-batches are
  // predicted from few (planner/search/short_step.h).
  absl::Status Price(Finalist* finalist);
  // All Programs of a finalist that has been priced, and their simulation,
  // which becomes the finalist's prediction. If they turn out not to fit,
  // `fits` is then false and there is no timeline.
  absl::StatusOr<LoweredStep> Lower(Finalist* finalist);

  // The first status of CheckProgramSize() that was not OK.
  const absl::Status& too_large() const { return too_large_; }
  // The least bytes by which a lowered finalist exceeds the limit; 0 if all of
  // them fit.
  int64_t least_excess_bytes() const { return least_excess_bytes_; }

 private:
  Prediction MemoryOf(std::span<const Program> programs) const;
  // Takes the bytes, which are those of Programs, and whether they fit.
  void TakeMemory(const Prediction& memory, Finalist* finalist);
  // The variant that PriceAll() adds for a layout that does not fit; nothing
  // where no allowed recompute helps.
  absl::StatusOr<std::optional<Finalist>> FitRecompute(
      const Finalist& finalist);
  absl::StatusOr<bool> StageFits(const Layout& layout, int32_t stage) const;
  absl::StatusOr<LoweredStep> LowerAll(Finalist* finalist);

  const LayoutSpace& space_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  const std::stop_token stop_;
  std::optional<LoweredStep> fastest_;  // Among those lowered with all passes.
  absl::Status too_large_;
  int64_t least_excess_bytes_ = 0;
  int64_t num_instructions_ = 0;  // Lowered so far.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
