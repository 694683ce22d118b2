// Gives a layout the list schedule, if it can have it and fits.

#ifndef MILLRACE_PLANNER_SEARCH_LISTED_VARIANT_H_
#define MILLRACE_PLANNER_SEARCH_LISTED_VARIANT_H_

#include <cstdint>
#include <optional>
#include <stop_token>

#include "absl/status/statusor.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// Returns `layout` with Schedule::kListScheduled, the costs of its passes by
// `cost`, and the bytes that each stage may hold so that both arenas of its
// Program fit `arena_bytes`. Nothing where it cannot have that schedule (one
// stage, or ZeRO 2 or 3) or does not fit. `layout` must pass ValidateLayout; if
// it has several ranks, `cost` must have communication. Cancelled once a stop
// is requested.
absl::StatusOr<std::optional<Layout>> ListScheduledVariant(
    const ModelSpec& model, Layout layout, const CostModel& cost,
    int64_t arena_bytes, const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_LISTED_VARIANT_H_
