// Goodput: the yield of a training run over weeks with failures. It gives the
// best checkpoint interval and number of spare nodes, and whether to go on with
// fewer nodes while one is repaired.
//
// The model: failures of the whole cluster are a Poisson process. Each failure
// throws training back to the newest whole checkpoint and costs a recovery,
// which a further failure starts again. Training stands still while a
// checkpoint is taken. A checkpoint that is written while training goes on
// counts only after a lag. This is the model of Daly, "A higher order estimate
// of the optimum checkpoint interval for restart dumps", 2006, with the lag
// added. Nothing in it is expanded in small quantities, so it also holds if
// checkpoints take as long as the time between failures.
//
// A node that fails for good comes back repaired. As long as there are spare
// nodes, training does not wait for it (Erlang's loss system).

#ifndef MILLRACE_PLANNER_FLEET_GOODPUT_H_
#define MILLRACE_PLANNER_FLEET_GOODPUT_H_

#include <cstdint>
#include <vector>

#include "planner/job/job.h"

namespace millrace {

// All are in seconds and positive, except that lag and recovery may be 0.
struct FailureModel {
  double mean_time_between_failures_s;  // For the whole cluster.
  double checkpoint_s;                  // Training stands still so long.
  double checkpoint_lag_s = 0;  // From then until the checkpoint counts.
  double recovery_s = 0;        // From a failure until training goes on.
};

// Shares of the time; they sum to 1.
struct TimeShares {
  double useful = 1;
  double checkpoint = 0;
  // Work that is repeated, and checkpoints that never counted.
  double lost_work = 0;
  double recovery = 0;
};

// Returns the shares with a checkpoint after every `interval_s` seconds of
// training. The useful share is interval e^(-(recovery + lag) / M) / (M
// (e^((interval + checkpoint) / M) - 1)), where M is the mean time between
// failures.
TimeShares SharesOf(const FailureModel& failures, double interval_s);

// Returns the interval with the largest useful share, M (1 + W(-e^(-1 -
// checkpoint / M))), where W is Lambert's function. It is about sqrt(2
// checkpoint M), Young's rule, if a checkpoint costs little, and never above M.
double BestCheckpointInterval(const FailureModel& failures);

// Returns the fewest spare nodes that suffice with probability `confidence`,
// from 0 to below 1, if `mean_absent` nodes are under repair on average. The
// number under repair has a Poisson distribution for any distribution of repair
// times.
int32_t SparesFor(double mean_absent, double confidence);

// Returns the mean number of nodes under repair for a job on so many devices
// that never waits.
double MeanAbsentNodes(const GoodputSpec& spec, int32_t num_devices);

struct GoodputInput {
  double step_time_s = 0;
  double tokens_per_step = 0;
  int32_t num_devices = 1;  // The layout's; spares are extra.
  int32_t devices_per_node = 1;
  // Bytes of a checkpoint that one device writes. Used if the job does not say
  // how long a checkpoint takes.
  double checkpoint_bytes_per_device = 0;
  // -1 lets the job decide: as many as its confidence asks for, or, if its
  // objective is cost, as many as make a token cheapest.
  int32_t num_spare_nodes = -1;
  // Throughput with 1, 2, ... nodes fewer over that of the layout, by plans
  // made beforehand. If empty, there are none, and a job without a spare waits.
  std::vector<double> throughput_by_nodes_lost;
};

struct GoodputReport {
  // False if the job does not say how often devices fail. The shares are then
  // those of a run without failures or checkpoints, and the fields before them
  // are 0.
  bool considers_failures = false;
  double cluster_mean_time_between_failures_s = 0;
  double checkpoint_s = 0;
  int64_t checkpoint_interval_steps = 0;  // The best whole number.
  double checkpoint_interval_s = 0;       // The same in seconds.
  int32_t num_spare_nodes = 0;
  // Whether going on with fewer nodes, when spares are used up, beats waiting.
  bool replans = false;

  // Shares of the time of all the layout's devices. They and the goodput sum to
  // 1. missing_nodes is what training on fewer nodes loses.
  double goodput_fraction = 1;
  double checkpoint_fraction = 0;
  double lost_work_fraction = 0;
  double recovery_fraction = 0;
  double waiting_fraction = 0;
  double missing_nodes_fraction = 0;

  double tokens_per_s = 0;  // Effective, of the whole cluster.
  // Spare nodes are paid too. 0 if the job gives no price.
  double tokens_per_dollar = 0;
};

// The fields of `input` are positive unless their comments say otherwise. The
// job file has been checked, so `spec` gives what is needed.
GoodputReport PredictGoodput(const GoodputSpec& spec,
                             const GoodputInput& input);

// Returns what the job's objective minimizes: seconds a token without failures
// ("step_time"), effective seconds a token ("goodput"), or dollars a token
// ("cost").
double ObjectiveOf(const GoodputSpec& spec, const GoodputInput& input);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_GOODPUT_H_
