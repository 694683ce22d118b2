// How much work a search may do. Budgets count layouts, passes or instructions,
// never seconds, so that equal inputs give equal plans. The times in the
// comments are those of one core.

#ifndef MILLRACE_PLANNER_SEARCH_SEARCH_BUDGET_H_
#define MILLRACE_PLANNER_SEARCH_SEARCH_BUDGET_H_

#include <cstddef>
#include <cstdint>

namespace millrace {

struct SearchBudget {
  // --- Layouts found by the closed form. ---

  // Layouts that branch and bound returns and passes then simulate.
  int32_t kept = 8;
  // Layouts that it returns if passes say that the closed form misjudged the
  // kept ones.
  int32_t kept_at_second_look = 32;
  // Executable layouts that it returns where they can be lowered.
  // `instructions` bounds how many of them are.
  int32_t executable_finalists = 64;
  // Layouts that it prices in closed form: about a microsecond each, once the
  // costs of their layers are known.
  int64_t priced = 30'000'000;
  // By what share of the memory the closed form may exceed what Programs hold
  // (tests/planner/cost/step_memory_test.cc).
  double memory_error = 0.04;
  // Where the Programs of layouts hold more than the closed form says, the
  // search leaves them room until the closed form may count this share alone.
  double least_memory_share = 0.5;

  // --- Layouts lowered and simulated by instructions. ---

  // At least this many are.
  size_t least_lowered = 2;
  // More are until they have this many instructions together, which takes a
  // second.
  int64_t instructions = 400'000;
  // More of those that are so close to the fastest one by the closed form that
  // it may have them in the wrong order, until they have this many: ten
  // seconds.
  double closed_form_error = 0.02;
  int64_t most_instructions = 4'000'000;

  // --- Variants of the fastest layouts. Each is lowered and simulated. ---

  // Layouts that list scheduling is tried on, by instructions and by passes.
  size_t list_scheduled = 3;
  // Layouts that copy engines are tried on.
  size_t with_copy_engines = 3;
  // List scheduling runs before arenas are planned. A stage that turns out too
  // large by some bytes is scheduled again with less memory, this many times.
  int32_t list_schedule_tries = 4;

  // --- Steps of many micro-batches, predicted from two shorter ones. ---

  // Micro-batches of the two shorter steps, for each stage. With 6 a pipeline
  // has been full for a while, and whatever alternates on it has come round.
  int32_t shorter_microbatches_per_stage = 6;
  int32_t longer_microbatches_per_stage = 10;
  // A step is shortened if it has this many times the micro-batches of both
  // shorter ones together. With fewer, little time is saved.
  int32_t least_shortening = 3;

  // --- Layouts simulated by passes. ---

  // Layouts that passes simulate at least.
  size_t least_simulated_by_passes = 2;
  // More are simulated within this many passes: a third of a second.
  int64_t passes = 300'000;
  // A layout of more passes is never simulated. A million passes take a second
  // and half a GiB; in a step so long the bubble and whatever else simulation
  // tells of the step's ends hardly counts.
  int64_t most_passes = 2'000'000;
  // Passes that list scheduling orders: a tenth of a second.
  int64_t list_scheduled_passes = 60'000;

  // --- Where nothing fits: the changes that a message may propose. ---

  // How many times the devices are tried, doubling each time.
  int64_t most_times_the_devices = 1024;
  // How far from the job's own value others are tried.
  int64_t reach_of_changes = 64;

  // --- Questions about a plan that take further searches. ---

  // About fifteen searches price the neighbours of the chosen layout. They are
  // left out if the first search priced more layouts than this, since they
  // would take seconds.
  int64_t most_priced_for_neighbours = 50'000;
  // The same limit, on passes, if the job asks for list scheduling.
  int64_t most_listed_for_neighbours = 6'000;
  // Nodes lost at once that goodput plans for. More are rarely lost at once,
  // and each number takes a search.
  int32_t most_lost_nodes = 4;

  // --- Steps drawn with noise. ---

  // Runs of ops over all drawn steps: about a second.
  double drawn_ops = 2e8;
  // At least and at most this many steps, whatever they take.
  double fewest_drawn_steps = 20;
  double most_drawn_steps = 200;
};

inline constexpr SearchBudget kSearchBudget;

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_SEARCH_BUDGET_H_
