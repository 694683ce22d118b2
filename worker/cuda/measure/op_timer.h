// Times one op on this GPU, through the graphs and the bound ops that training
// uses, and by it chooses the algorithms of products (op_algorithms.cc).

#ifndef MILLRACE_WORKER_CUDA_MEASURE_OP_TIMER_H_
#define MILLRACE_WORKER_CUDA_MEASURE_OP_TIMER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/learn/measured_noise.h"
#include "planner/learn/profile_request.h"
#include "planner/profile/profile.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/device/timed_loop.h"
#include "worker/cuda/train/executor.h"
#include "worker/measure/single_op.h"

namespace millrace {

// The bf16 products that the op is made of, as ops; none in most.
std::vector<GemmAttributes> Bf16ProductsOf(const ProfileOp& op);

class CudaOpTimer {
 public:
  // Creates a timer on the current device. Products run with `algorithms` at
  // first. Other kernels choose by the installed table
  // (kernels/tuning/tuning.h).
  static absl::StatusOr<std::unique_ptr<CudaOpTimer>> Create(
      Precision precision, GemmAlgorithmTable algorithms);
  ~CudaOpTimer();

  // Seconds of one run among many back to back, the launch included: the median
  // of a few graphs, each of the op on operands in turn that together do not
  // fit the L2 cache and hold normal numbers, which cost the power that those
  // of training do. `budget_seconds` of the device; three graphs at least.
  // ResourceExhausted if the operands do not fit the device.
  absl::StatusOr<double> Time(const ProfileOp& op, double budget_seconds,
                              Inputs inputs = Inputs::kJustWritten);

  // Seconds that a kernel takes longer behind another op's kernel than behind
  // one of its own op, in the mean over the short ones of the ops, one after
  // the other: some tens of microseconds at most, since the time of longer ones
  // varies by more than is sought. Zero without any. The ops that were timed
  // become the surroundings.
  absl::StatusOr<double> TimeBehindOthers(std::span<const ProfileOp> ops);

  // Seconds that a kernel takes longer to start behind one of another lane than
  // behind one of its own, in a graph that notes progress as steps do.
  absl::StatusOr<double> TimeBetweenLanes();

  // Sets the bytes of operands that runs take in turn, by default several times
  // the L2 cache. With 1 every run has the operands of the run before it. For
  // benches.
  void SetWorkingSet(int64_t num_bytes) { working_set_bytes_ = num_bytes; }

  // The scatter of the graphs of each Time() since the timer was made, if they
  // ran among surroundings and were long enough for a clock.
  Scatter repeats() const { return repeats_; }

  // At its power limit a chip sets its clocks by the load of the last tens of
  // milliseconds: alone, products run slower than among the other ops of a step
  // and attention faster. After this call, Time() runs each measured graph
  // behind these ops, one after the other, again and again.
  absl::Status SetSurroundings(std::span<const ProfileOp> ops);
  // Runs the mix until it takes as long as half a second before, some seconds
  // at most: for the first second under load a chip's clocks swing, and two
  // measurements begun then were 3.4 to 5.9 % apart.
  absl::Status WarmUp();
  // Runs the mix again and again, for at least so long. Lives no longer than
  // the timer, nor than the surroundings.
  absl::StatusOr<std::unique_ptr<TimedLoop>> MakeSurroundingsLoop(
      double seconds);

  // `num_runs` of the op back to back, in one graph. Lives no longer than the
  // timer.
  absl::StatusOr<std::unique_ptr<TimedLoop>> MakeLoop(
      const ProfileOp& op, int32_t num_runs,
      Inputs inputs = Inputs::kJustWritten);

  // Measures the ways to compute a bf16 product, the most promising ones as
  // Time() does. The product runs with the fastest from then on, and the table
  // keeps it. A way that is hardly faster than cuBLASLt's first choice is not
  // chosen.
  absl::Status ChooseAlgorithm(const GemmAttributes& gemm,
                               double budget_seconds);
  bool HasAlgorithm(const GemmAttributes& gemm) const;
  // The choice that the product runs with, as a profile keeps it; nothing where
  // no table says.
  std::optional<ProductChoice> ProductChoiceOf(
      const GemmAttributes& gemm) const;
  const GemmAlgorithmTable& algorithms() const { return algorithms_; }
  // The bytes of device memory that the timer holds while it lives and nothing
  // is being measured.
  int64_t held_bytes() const;

 private:
  struct Prepared;
  class Loop;
  class SurroundingsLoop;

  CudaOpTimer(Precision precision, GemmAlgorithmTable algorithms,
              std::string chip, std::unique_ptr<CudaExecutor> executor,
              DeviceBuffer<float> normals, DeviceBuffer<uint16_t> bf16_normals,
              DeviceBuffer<uint16_t> small_normals,
              DeviceBuffer<uint8_t> float8_normals,
              DeviceBuffer<AdamWStep> step);

  absl::StatusOr<std::unique_ptr<Prepared>> Prepare(
      std::span<const ProfileOp> ops, CudaExecutor& executor,
      bool alternates_lanes, Inputs inputs);
  absl::StatusOr<std::unique_ptr<TimedLoop>> MakeLoopOn(
      CudaExecutor& executor, std::span<const ProfileOp> ops,
      bool alternates_lanes, Inputs inputs = Inputs::kCold);
  absl::Status FillOperands(const Program& program, const DeviceArenas& arenas);

  // Enqueues the mix until that much time is filled.
  absl::Status RunSurroundings(double seconds);

  const Precision precision_;
  GemmAlgorithmTable algorithms_;
  const std::string chip_;
  const TrainingSpec training_;
  const std::unique_ptr<CudaExecutor> executor_;
  // Patterns that operands are filled with.
  const DeviceBuffer<float> normals_;
  const DeviceBuffer<uint16_t> bf16_normals_;
  const DeviceBuffer<uint16_t> small_normals_;  // As weights are, in bf16.
  const DeviceBuffer<uint8_t> float8_normals_;  // e4m3.
  DeviceBuffer<AdamWStep> step_;
  // The surroundings in parts of some milliseconds, which run in turn.
  struct Part {
    std::unique_ptr<TimedLoop> loop;
    double seconds;
  };
  std::vector<Part> surroundings_;
  size_t next_part_ = 0;
  // Several times the L2 cache of any GPU we know, so that operands come from
  // where they come from in a step.
  int64_t working_set_bytes_ = int64_t{512} << 20;
  Scatter repeats_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_MEASURE_OP_TIMER_H_
