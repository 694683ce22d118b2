// The search among layouts that workers can execute: it estimates all of them
// in closed form, then lowers and simulates the best.

#ifndef MILLRACE_PLANNER_SEARCH_CANDIDATES_H_
#define MILLRACE_PLANNER_SEARCH_CANDIDATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "planner/search/search.h"
#include "planner/search/short_step.h"

namespace millrace {

// One layout on its way through the search.
struct Candidate {
  Layout layout;
  Prediction prediction;  // The estimate, until it is simulated.
  bool fits = true;
  bool simulated = false;
  bool is_too_large = false;         // By CheckProgramSize().
  std::vector<int64_t> stage_bytes;  // Of what was lowered.
};

class Candidates {
 public:
  // Borrows `input` and `cost`.
  Candidates(const SearchInput& input, const CostModel& cost,
             int64_t memory_limit);
  Candidates(const Candidates&) = delete;  // The space refers to it.
  Candidates& operator=(const Candidates&) = delete;

  const LayoutSpace& space() const { return space_; }
  int64_t memory_limit() const { return memory_limit_; }
  // In the order in which they were considered.
  const std::vector<Candidate>& all() const { return candidates_; }
  // The first of what CheckProgramSize() said.
  const absl::Status& too_large() const { return too_large_; }

  // Estimates all of `layouts`, of equals the simpler first, and lowers and
  // simulates the best. Errors as CheckProfile's and those of lowering.
  absl::Status Consider(const std::vector<Layout>& layouts);
  // Forgets all but too_large().
  void Clear() { candidates_.clear(); }

  // The simulated candidates.
  std::vector<Candidate> FastestFirst() const;
  const Candidate* Fastest() const;  // Null: nothing was.

  // Time and shares in closed form.
  Prediction Estimated(const Layout& layout);

 private:
  // By the times that the profile has of ops.
  const std::vector<Recompute>& Recomputes(const Layout& layout);
  absl::Status SimulateBest(const std::vector<size_t>& order);
  // The prediction from few micro-batches, if that is enough to know that the
  // layout is slower than the fastest so far.
  absl::StatusOr<std::optional<ShortStep>> IfSlower(const Layout& layout) const;
  void TakeMemory(std::span<const Program> programs,
                  Candidate* candidate) const;

  const CostModel& cost_;
  const int64_t memory_limit_;
  LayoutSpace space_;
  absl::StatusOr<StepModel> step_model_;  // An error for most CPUs' profiles.
  // What Recomputes() knows, by tensor and micro-batch.
  std::map<std::pair<int32_t, int32_t>, std::vector<Recompute>> recomputes_;
  std::vector<Candidate> candidates_;
  absl::Status too_large_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CANDIDATES_H_
