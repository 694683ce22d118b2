// Times list scheduling and holds it to the known orders. Every order is
// checked first: whole, within its memory, and no later than they.
//
//   list_schedule_bench
//
// Passes take a second a stage and micro-batch, a third each, the memory of a
// stage is that of 1F1B's first. Prints makespans and bubbles (of the whole
// step) and processor seconds of one thread.

#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "planner/pipeline/list_schedule.h"
#include "planner/pipeline/pass_order.h"
#include "tests/planner/pipeline/order_testing.h"

namespace millrace {
namespace {

std::string BubbleText(double makespan_s, double busy_s) {
  return absl::StrFormat("%.2f s, %.2f %%", makespan_s - busy_s,
                         100 * (1 - busy_s / makespan_s));
}

void Measure(const std::string& name, const PipelineCosts& costs,
             double memory_of_1f1b) {
  int64_t bytes = 0;
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    bytes += costs.chunks[c].activation_bytes;
  }
  const auto limit =
      static_cast<int64_t>(memory_of_1f1b * static_cast<double>(bytes));
  const ListLimits limits{
      .memory_bytes = std::vector<int64_t>(costs.num_stages, limit),
      .transfer_buffers = 0};
  const std::clock_t start = std::clock();
  const ListedSchedule listed = *ListSchedule(costs, limits);
  const double seconds =
      static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(CheckOrder(costs, listed.order).ok()) << name;
  CHECK(*std::max_element(listed.times.peak_bytes.begin(),
                          listed.times.peak_bytes.end()) <= limit)
      << name;
  const double busy_s = 3.0 * costs.num_microbatches;
  std::string known;
  for (const Schedule schedule :
       {Schedule::kOneForwardOneBackward, Schedule::kInterleaved,
        Schedule::kZeroBubble}) {
    const absl::StatusOr<PassOrder> order = OrderOf(schedule, costs);
    const bool has_turns =
        costs.chunks.size() > static_cast<size_t>(costs.num_stages);
    if (!order.ok() || has_turns != (schedule == Schedule::kInterleaved)) {
      continue;
    }
    const OrderTimes times = *TimeOrder(costs, *order);
    bool fits = true;
    for (const int64_t peak : times.peak_bytes) fits &= peak <= limit;
    CHECK(!fits || listed.times.makespan_s <= times.makespan_s * (1 + 1e-9))
        << name << " " << ScheduleName(schedule);
    absl::StrAppendFormat(&known, "; %s %s%s", ScheduleName(schedule),
                          BubbleText(times.makespan_s, busy_s),
                          fits ? "" : " (more memory)");
  }
  std::cout << absl::StrFormat(
      "%s: bubble %s, least possible %.2f s%s; scheduled in %.3f s\n", name,
      BubbleText(listed.times.makespan_s, busy_s),
      listed.lower_bound_s - busy_s, known, seconds);
}

}  // namespace
}  // namespace millrace

int main() {
  using millrace::AlikePipeline;
  using millrace::Measure;
  using millrace::Placement;
  Measure("4 stages, 8 micro-batches", AlikePipeline(4, 1, 8), 1);
  Measure("the same, 2 chunks in turns", AlikePipeline(4, 2, 8), 1);
  Measure("the same, 2 chunks in a V", AlikePipeline(4, 2, 8, Placement::kV),
          1);
  Measure("8 stages, 32 micro-batches", AlikePipeline(8, 1, 32), 1);
  Measure("the same, 2 chunks in a V", AlikePipeline(8, 2, 32, Placement::kV),
          1);
  Measure("16 stages of 8 chunks, 256 micro-batches", AlikePipeline(16, 8, 256),
          1.5);
  Measure("the same, 4 times the memory", AlikePipeline(16, 8, 256), 6);
  return 0;
}
