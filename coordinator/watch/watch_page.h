// A run on one screen of a plain terminal: lines of ASCII, no longer and no
// more than fit. docs/dashboards.md explains them.

#ifndef MILLRACE_COORDINATOR_WATCH_WATCH_PAGE_H_
#define MILLRACE_COORDINATOR_WATCH_WATCH_PAGE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "coordinator/watch/run_follower.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct WatchLook {
  size_t width = 80;
  size_t height = 24;
  bool colours = false;  // Else no escape sequences at all.
  double now_unix_s = 0;
};

// The page. Control characters of the run's files are replaced, so that none
// reaches the terminal.
std::vector<std::string> WatchLines(const WatchedRun& run,
                                    const WatchLook& look);

// The same for programs: "name", "status", "reason", "over", "plan", "step",
// "num_steps", "loss", "step_time_s", "predicted_step_time_s", "tokens_per_s",
// "silent_s", "num_deaths", "checkpoint_step", "ranks": [{"rank", "stage",
// "host"}], "slow_ranks": [{"rank", "detail"}], "slowest": {"rank", "host",
// "excess", "why"}, "events". A key whose value is not known is left out.
nlohmann::json WatchJson(const WatchedRun& run, double now_unix_s);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_WATCH_WATCH_PAGE_H_
