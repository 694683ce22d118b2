// Times one op on this rank, through the executor and the bound ops that
// training uses.

#ifndef MILLRACE_WORKER_MEASURE_OP_TIMER_H_
#define MILLRACE_WORKER_MEASURE_OP_TIMER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/learn/measured_noise.h"
#include "planner/learn/profile_request.h"
#include "worker/cpu/executor.h"
#include "worker/cpu/ops.h"

namespace millrace {

class OpTimer {
 public:
  explicit OpTimer(int num_threads);

  struct Timing {
    double seconds;           // Median of one run.
    double overhead_seconds;  // Between one run's end and the next one's start.
    Scatter repeats;          // Scatter of the means of thirds of all runs.
  };
  // Runs the op once to warm up, then for about `budget_seconds`, twice at
  // least.
  absl::StatusOr<Timing> Time(const ProfileOp& op, double budget_seconds);

  // Runs the op again and again until `seconds` have passed; returns the mean
  // of one run, whatever else had the cores meanwhile.
  absl::StatusOr<double> MeanOver(const ProfileOp& op, double seconds);

 private:
  struct Prepared;
  absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const ProfileOp& op,
                                                    int32_t num_repetitions);

  KernelCache kernels_;
  Executor executor_;
  TrainingSpec training_;
  StepInputs inputs_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_OP_TIMER_H_
