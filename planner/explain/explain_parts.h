// Splits a layout's step time and memory into named parts. The parts have the
// same names for simulated layouts and for those that only the closed form
// priced.

#ifndef MILLRACE_PLANNER_EXPLAIN_EXPLAIN_PARTS_H_
#define MILLRACE_PLANNER_EXPLAIN_EXPLAIN_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/model.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// The seconds of the step, or the bytes of a rank, that one cause takes.
template <typename Value>
struct Part {
  std::string name;  // "compute", "exposed tensor communication".
  Value value;
};

struct LayoutParts {
  // The times of the rank that computes longest; they sum to the step time.
  std::vector<Part<double>> time;
  // The memory of the most loaded rank; the parts sum to it.
  std::vector<Part<int64_t>> memory;
  // The compute time by kind of op, most first; empty for layouts that were not
  // simulated.
  std::vector<Part<double>> ops;
};

// The names in LayoutParts::time.
inline constexpr char kComputePart[] = "compute";
inline constexpr char kRecomputePart[] = "recompute";
inline constexpr char kOptimizerPart[] = "optimizer";
inline constexpr char kBubblePart[] = "bubble";
inline constexpr char kTensorPart[] = "exposed tensor communication";
inline constexpr char kContextPart[] = "exposed context communication";
inline constexpr char kExpertPart[] = "exposed expert communication";
inline constexpr char kDataPart[] = "exposed data communication";
inline constexpr char kTransferPart[] = "exposed transfers";
inline constexpr char kOtherPart[] = "other";

// Returns the parts of a simulated step. Waiting for transfers counts as bubble
// (planner/simulate/timeline.h). `programs` are those of the timeline, by
// stage.
LayoutParts PartsOfTimeline(std::span<const Program> programs,
                            const Timeline& timeline,
                            const Prediction& prediction);

// Returns the parts of a plan's layout, by its Programs and their timeline if
// it has them, else by its closed form. Returns Internal for a plan that has
// neither.
absl::StatusOr<LayoutParts> PartsOf(const Plan& plan);

// Returns the parts of at least a hundredth, largest first: "compute 78 %,
// bubble 12 %, exposed data communication over fabric 5 %". Communication names
// the network level that its axis spans, if the profile states levels.
std::string BindingText(const LayoutParts& parts, const Plan& plan,
                        const HardwareProfile& profile);

// Returns the largest parts in one line of at most `columns`: "compute 78.0 %
// of the step, bubble 12.0 %, data communication over fabric 5.0 %".
std::string BriefBindingText(const LayoutParts& parts, const Plan& plan,
                             const HardwareProfile& profile, size_t columns);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EXPLAIN_EXPLAIN_PARTS_H_
