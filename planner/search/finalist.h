// A layout that the closed form ranked among the best, with its prediction by
// each model that has priced it since.

#ifndef MILLRACE_PLANNER_SEARCH_FINALIST_H_
#define MILLRACE_PLANNER_SEARCH_FINALIST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/search/plan.h"

namespace millrace {

struct Finalist {
  Layout layout;
  bool pipeline_outermost = false;  // As in Alternative.
  // Whether workers execute the layout and the profile prices its Programs.
  bool can_be_lowered = false;
  // Bytes are by the Programs once `lowered` is true, else by the closed form.
  bool fits = true;
  bool lowered = false;
  bool is_too_large = false;          // By CheckProgramSize().
  std::vector<int64_t> listed_bytes;  // As in Alternative.
  // Variants with list scheduling or copy engines have the predictions by the
  // closed form and by passes of the layout that they vary.
  Prediction closed_form;
  std::optional<Prediction> passes;
  std::optional<Prediction> instructions;

  const Prediction& finest() const {
    if (instructions.has_value()) return *instructions;
    return passes.has_value() ? *passes : closed_form;
  }
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_FINALIST_H_
