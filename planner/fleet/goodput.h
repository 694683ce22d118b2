// Goodput: what a training run yields over weeks, when devices fail, as against
// what its steps promise. Checkpoint interval, spare nodes, and whether to go
// on with fewer nodes while one is repaired.
//
// The model: failures of the whole cluster come as a Poisson process. Each
// throws training back to the newest checkpoint that is whole, and costs a
// recovery, which a further failure starts anew. Training stands still while a
// checkpoint is taken, and the checkpoint counts after a lag, for one that is
// written while training goes on. This is the model of Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", 2006, with
// the lag added; nothing in it is expanded in small quantities, so it holds
// where checkpoints cost as much as the time between failures too. A node that
// fails for good comes back repaired; as long as spare nodes last, nobody waits
// for it (the loss system of Erlang).

#ifndef MILLRACE_PLANNER_FLEET_GOODPUT_H_
#define MILLRACE_PLANNER_FLEET_GOODPUT_H_

#include <cstdint>
#include <vector>

#include "planner/job/job.h"

namespace millrace {

// All in seconds; positive, but for lag and recovery, which may be 0.
struct FailureModel {
  double mean_time_between_failures_s;  // Of the whole cluster.
  double checkpoint_s;                  // Training stands still.
  double checkpoint_lag_s = 0;          // From then until it counts.
  double recovery_s = 0;  // From a failure until training goes on.
};

// Shares of the time; they sum to 1.
struct TimeShares {
  double useful = 1;
  double checkpoint = 0;
  double lost_work = 0;  // Done again, or checkpoints that never counted.
  double recovery = 0;
};

// With a checkpoint after every `interval_s` seconds of training. Useful is
// interval e^(-(recovery + lag) / M) / (M (e^((interval + checkpoint) / M) -
// 1)), M the mean time between failures.
TimeShares SharesOf(const FailureModel& failures, double interval_s);

// Where SharesOf() is most useful: M (1 + W(-e^(-1 - checkpoint / M))), W
// Lambert's function; about sqrt(2 checkpoint M), Young's rule, where a
// checkpoint costs little, and never above M.
double BestCheckpointInterval(const FailureModel& failures);

// The fewest spare nodes that suffice with a probability of `confidence` at
// least, from 0 to below 1, if `mean_absent` nodes are under repair on average.
// The number under repair is Poisson, whatever the distribution of repair
// times.
int32_t SparesFor(double mean_absent, double confidence);

// Nodes under repair on average, of a job on so many devices that never waits.
double MeanAbsentNodes(const GoodputSpec& spec, int32_t num_devices);

struct GoodputInput {
  double step_time_s = 0;
  double tokens_per_step = 0;
  int32_t num_devices = 1;  // That the layout uses; spares come on top.
  int32_t devices_per_node = 1;
  // What one device writes of a checkpoint; used where the job does not say
  // how long one takes.
  double checkpoint_bytes_per_device = 0;
  // -1: as many as the job's confidence asks for or, where its objective is
  // cost, as make a token cheapest.
  int32_t num_spare_nodes = -1;
  // Throughput with 1, 2, ... nodes fewer over that of the layout, of plans
  // made beforehand; empty: there are none, so a job without a spare waits.
  std::vector<double> throughput_by_nodes_lost;
};

struct GoodputReport {
  // False where the job does not say how often devices fail: then the shares
  // are those of a run without failures or checkpoints, and fields up to them
  // are 0.
  bool considers_failures = false;
  double cluster_mean_time_between_failures_s = 0;
  double checkpoint_s = 0;
  int64_t checkpoint_interval_steps = 0;  // The best whole number.
  double checkpoint_interval_s = 0;       // The same in seconds.
  int32_t num_spare_nodes = 0;
  // Whether going on with fewer nodes, when spares are used up, beats waiting.
  bool replans = false;

  // Of the time of all the layout's devices; the shares and the goodput sum to
  // 1. missing_nodes: what training on fewer nodes loses.
  double goodput_fraction = 1;
  double checkpoint_fraction = 0;
  double lost_work_fraction = 0;
  double recovery_fraction = 0;
  double waiting_fraction = 0;
  double missing_nodes_fraction = 0;

  double tokens_per_s = 0;  // Effective, of the whole cluster.
  // Spare nodes paid too. 0 where the job gives no price.
  double tokens_per_dollar = 0;
};

// `input` is positive where it is not said to be empty; the job file has made
// sure that `spec` gives what it must.
GoodputReport PredictGoodput(const GoodputSpec& spec,
                             const GoodputInput& input);

// What the job's objective minimizes: seconds a token without failures
// ("step_time"), effective seconds a token ("goodput"), dollars a token
// ("cost").
double ObjectiveOf(const GoodputSpec& spec, const GoodputInput& input);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_GOODPUT_H_
