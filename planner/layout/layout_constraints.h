// The sizes and choices of a layout that the job pins.

#ifndef MILLRACE_PLANNER_LAYOUT_LAYOUT_CONSTRAINTS_H_
#define MILLRACE_PLANNER_LAYOUT_LAYOUT_CONSTRAINTS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

// Absent fields are the planner's choice.
struct LayoutConstraints {
  std::optional<int32_t> pipeline, data, tensor, micro_batch, zero;
  std::optional<int32_t> context, expert, expert_tensor, interleave;
  std::optional<int32_t> data_groups;
  std::optional<int32_t> devices;  // Devices to use, out of all there are.
  std::string recompute = "auto";  // Any key of CheckRecomputeKey().
  std::string schedule = "auto";   // Or a ScheduleName().
  friend bool operator==(const LayoutConstraints&,
                         const LayoutConstraints&) = default;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_LAYOUT_CONSTRAINTS_H_
