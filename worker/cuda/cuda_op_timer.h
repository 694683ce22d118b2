// Times one op on this GPU, through the graphs and the bound ops that training
// uses.

#ifndef MILLRACE_WORKER_CUDA_CUDA_OP_TIMER_H_
#define MILLRACE_WORKER_CUDA_CUDA_OP_TIMER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/gemm_algorithm_table.h"
#include "kernels/gemm_bf16.h"
#include "planner/job.h"
#include "planner/layout.h"
#include "planner/profile_request.h"
#include "worker/cuda/cuda_executor.h"
#include "worker/cuda/cuda_op.h"
#include "worker/cuda/timed_loop.h"

namespace millrace {

// The bf16 products that the op is made of; none in most.
std::vector<GemmBf16Shape> Bf16ProductsOf(const ProfileOp& op);

class CudaOpTimer {
 public:
  // On the current device. `algorithms`: what products run with at first.
  static absl::StatusOr<std::unique_ptr<CudaOpTimer>> Create(
      Precision precision, GemmAlgorithmTable algorithms);
  ~CudaOpTimer();

  // Seconds of one run among many back to back, the launch included: the median
  // of a few graphs, each of the op on operands in turn that together do not
  // fit the L2 cache and hold normal numbers, which cost the power that those
  // of training do. `budget_seconds` of the device; three graphs at least.
  // ResourceExhausted if the operands do not fit the device.
  absl::StatusOr<double> Time(const ProfileOp& op, double budget_seconds);

  // `num_runs` of the op back to back, in one graph. Lives no longer than the
  // timer.
  absl::StatusOr<std::unique_ptr<TimedLoop>> MakeLoop(const ProfileOp& op,
                                                      int32_t num_runs);

  // Measures the ways to compute a bf16 product and runs it with the fastest
  // from then on, which the table keeps.
  absl::Status ChooseAlgorithm(const GemmBf16Shape& shape);
  bool HasAlgorithm(const GemmBf16Shape& shape) const;
  const GemmAlgorithmTable& algorithms() const { return algorithms_; }

 private:
  struct Prepared;
  class Loop;

  CudaOpTimer(Precision precision, GemmAlgorithmTable algorithms,
              std::string chip, std::unique_ptr<CudaExecutor> executor,
              DeviceBuffer<float> normals, DeviceBuffer<uint16_t> bf16_normals,
              DeviceBuffer<AdamWStep> step);

  absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const ProfileOp& op,
                                                    int32_t num_runs);
  absl::Status FillOperands(const Program& program, const DeviceArenas& arenas);
  absl::StatusOr<DeviceBuffer<uint16_t>> Bf16Normals(int64_t num_elements);

  const Precision precision_;
  GemmAlgorithmTable algorithms_;
  const std::string chip_;
  const TrainingSpec training_;
  const std::unique_ptr<CudaExecutor> executor_;
  // Patterns that operands are filled with.
  const DeviceBuffer<float> normals_;
  const DeviceBuffer<uint16_t> bf16_normals_;
  DeviceBuffer<AdamWStep> step_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_CUDA_OP_TIMER_H_
