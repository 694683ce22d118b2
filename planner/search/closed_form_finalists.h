// The first stage of the search: the layouts that the closed form ranks best.

#ifndef MILLRACE_PLANNER_SEARCH_CLOSED_FORM_FINALISTS_H_
#define MILLRACE_PLANNER_SEARCH_CLOSED_FORM_FINALISTS_H_

#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/finalist.h"
#include "planner/search/layout_tree.h"

namespace millrace {

// The layouts that the search may choose, and how it prices them.
struct SearchScope {
  // All layouts that may be chosen.
  LayoutTree all;
  // Those of them that workers can execute; nothing where the job's model,
  // format or a pinned key stands against that.
  std::optional<LayoutTree> executable;
  // Whether `all` has layouts that workers cannot execute.
  bool has_plan_only = false;
  bool simulates = true;  // As in SearchInput.
  // Whether Programs have the last word.
  bool lowers = false;
  std::stop_token stop = {};  // As in SearchInput.
};

class ClosedFormFinalists {
 public:
  // Borrows all but the limit, the bytes of a device. `outermost` prices
  // pipelines whose stages are outermost on the network
  // (Alternative::pipeline_outermost). Once a stop is requested, finds what has
  // been found so far.
  ClosedFormFinalists(const SearchScope& scope, int64_t memory_limit,
                      const CostModel& cost, StepModel& model,
                      StepModel& outermost);

  // The fastest layouts that fit by the closed form, fastest first. Where
  // Programs have the last word, the fastest executable ones are among them;
  // elsewhere at least one is, for users who want to start today. Empty if none
  // fits.
  //
  // `lowered_share`: the share of the memory limit that executable layouts may
  // take by the closed form, where their Programs decide what fits.
  std::vector<Finalist> Find(double lowered_share);
  // Adds layouts that Find() did not keep and that are faster by the closed
  // form than `fastest_s`, the time by passes of the fastest one in
  // `finalists`. Returns whether there are any. The closed form does not see
  // how uneven chunks hold each other up, which may put the layouts without
  // such chunks behind.
  bool AddCloseBehind(double fastest_s, std::vector<Finalist>* finalists);
  // The layouts that do not fit and would be faster than `chosen_s` seconds by
  // the closed form, fastest first. Empty for a large space, which it would
  // take long to search again.
  std::vector<Finalist> FasterWithMoreMemory(double chosen_s);

  Finalist FinalistOf(const RankedLayout& ranked,
                      bool pipeline_outermost) const;

  int64_t layouts_considered() const { return layouts_considered_; }
  // The optimality gap of the last Find(), as in Plan.
  double optimality_gap() const { return optimality_gap_; }

 private:
  FastestLayouts FindIn(const LayoutTree& tree, int64_t memory_limit,
                        SearchLimits limits, StepModel& model);
  void AddOutermost(const FastestLayouts& inner,
                    std::vector<Finalist>* finalists);
  void AddExecutable(int64_t memory_limit, std::vector<Finalist>* finalists);
  bool AddUnlessKnown(const RankedLayout& ranked,
                      std::vector<Finalist>* finalists) const;

  const SearchScope& scope_;
  const int64_t memory_limit_;
  const CostModel& cost_;
  StepModel& model_;
  StepModel& outermost_;
  int64_t layouts_considered_ = 0;
  double optimality_gap_ = 0;
  double slowest_kept_s_ = 0;  // Infinity: nothing was left out.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CLOSED_FORM_FINALISTS_H_
