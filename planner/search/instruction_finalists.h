// The last stage of the search: lowers the finalists that workers can execute
// and simulates their Programs instruction by instruction.

#ifndef MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_

#include <cstdint>
#include <mutex>
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
  // Borrows all but the limit, the bytes of a device, and the threads that
  // price finalists side by side. Their number changes no result. Once a stop
  // is requested, all calls end with Cancelled.
  InstructionFinalists(const LayoutSpace& space, int64_t memory_limit,
                       const CostModel& cost, StepModel& model, int num_threads,
                       std::stop_token stop);

  // Prices the finalists that can be lowered, in their order, as many as stays
  // quick, or with `until_one_fits` up to the first whose Programs fit. Where
  // the Programs of one do not fit, it adds the same layout with the least
  // recompute in each stage with which the stage's Program fits. Errors are
  // those of lowering.
  //
  // Finalists are priced ahead of their turn where threads would be idle. A
  // price depends on its finalist alone and counts only once all before it have
  // had their turn, so the limits see the same prices in the same order on any
  // number of threads.
  absl::Status PriceAll(bool until_one_fits, std::vector<Finalist>* finalists);
  // Prices all of these, which can be lowered.
  absl::Status PriceEach(std::vector<Finalist>* finalists);
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
  // A price, which depends on the finalist alone.
  struct Priced {
    Finalist finalist;                   // With its predictions.
    absl::Status size;                   // CheckProgramSize()'s.
    int64_t num_instructions = 0;        // Lowered for it.
    std::optional<LoweredStep> lowered;  // If it fits, with all passes.
    // Where it does not fit: the layout that PriceAll() adds for it.
    std::optional<Layout> fitted;
  };
  // Prices that were made ahead of their turn, by finalist.
  using PricedAhead = std::vector<std::optional<absl::StatusOr<Priced>>>;

  // Prices finalists[next] and, side by side, as many of those behind it that
  // can be lowered as give each thread a stage and fit into this host's memory.
  // With `until_one_fits`, drops those behind the first that fits.
  struct AheadOptions {
    bool until_one_fits = false;
    bool refits = false;  // Fills in Priced::fitted.
  };
  void PriceAhead(const std::vector<Finalist>& finalists, size_t next,
                  AheadOptions options, PricedAhead* priced);
  // These are called by several threads at once.
  absl::StatusOr<Priced> PriceOne(const Finalist& finalist,
                                  const std::stop_token& stop) const;
  absl::Status LowerAll(const std::stop_token& stop, Priced* priced) const;
  absl::StatusOr<std::optional<Layout>> FitRecompute(
      const Layout& layout, const std::stop_token& stop);
  absl::StatusOr<bool> StageFits(const Layout& layout, int32_t stage,
                                 const std::stop_token& stop) const;
  Prediction MemoryOf(std::span<const Program> programs) const;
  // Takes the bytes, which are those of Programs, and whether they fit.
  void TakeMemory(const Prediction& memory, Finalist* finalist) const;

  // Takes what PriceOne() made of the finalist. Returns the layout that
  // PriceAll() adds for it.
  absl::StatusOr<std::optional<Layout>> Take(absl::StatusOr<Priced> priced,
                                             Finalist* finalist);
  // Adds a finalist with the layout, unless there is one, behind the one at
  // `idx`: its turn comes when the closed form says so.
  void Add(Layout layout, size_t idx, std::vector<Finalist>* finalists,
           PricedAhead* priced);

  const LayoutSpace& space_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  std::mutex recomputes_mutex_;  // One call of space_.recomputes at a time.
  const int num_threads_;
  const std::stop_token stop_;
  std::optional<LoweredStep> fastest_;  // Among those lowered with all passes.
  absl::Status too_large_;
  int64_t least_excess_bytes_ = 0;
  int64_t num_instructions_ = 0;  // Lowered so far.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_INSTRUCTION_FINALISTS_H_
