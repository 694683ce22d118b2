// Everything that an instruction needs when it is bound: the rank's memory, its
// planned kernels, the step's inputs and its communicators.

#ifndef MILLRACE_WORKER_TRAIN_OP_CONTEXT_H_
#define MILLRACE_WORKER_TRAIN_OP_CONTEXT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/communicate/communicator_set.h"
#include "worker/data/batch_source.h"
#include "worker/train/arena.h"
#include "worker/train/rope_frequencies.h"

namespace millrace {

// The inputs that change from step to step. Written between steps only.
struct StepInputs {
  int64_t step = 0;  // The first is 1.
  double learning_rate = 0;
  double token_scale = 1;  // TokenScaleOf(), in trained_tokens.h.
  int32_t sample_shift = 0;  // StepRequest's.
};

// The objects that ops of one rank share beside the arenas: kernels planned for
// a shape, tables, and the compute lane's scratch memory. Their size is the
// kernel library's choice, so it is no part of the plan; counted apart.
class KernelCache {
 public:
  // `rope_factors`: those of the model.
  explicit KernelCache(int num_threads, std::vector<double> rope_factors = {})
      : num_threads_(num_threads), rope_factors_(std::move(rope_factors)) {}
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  int num_threads() const { return num_threads_; }

  absl::StatusOr<GemmPlan*> Gemm(const GemmAttributes& attributes);
  absl::StatusOr<CrossEntropyPlan*> CrossEntropy(
      const VocabAttributes& attributes, int64_t vocab_begin);
  absl::StatusOr<const float*> RopeTable(const AttentionAttributes& attributes);

  // Makes the scratch memory at least so large.
  void ReserveScratch(int64_t bytes);
  // Call when everything is bound, before anything runs.
  absl::Status AllocateScratch();
  // 64-byte aligned; null before AllocateScratch().
  std::byte* scratch() const { return scratch_ ? scratch_->data() : nullptr; }
  // Bytes of scratch memory and tables.
  int64_t bytes() const;

 private:
  using GemmKey = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool>;
  using CrossEntropyKey = std::tuple<int64_t, int64_t, int64_t, int64_t,
                                     int64_t, double, double, bool, double>;

  const int num_threads_;
  const std::vector<double> rope_factors_;
  std::map<GemmKey, GemmPlan> gemms_;
  std::map<CrossEntropyKey, CrossEntropyPlan> cross_entropies_;
  std::map<RopeKey, MemoryBlock> rope_tables_;
  int64_t scratch_bytes_ = 0;
  std::unique_ptr<MemoryBlock> scratch_;
};

// All borrowed for the lifetime of the ops bound with it.
struct OpContext {
  const Program* program;
  Layout layout;
  MeshCoordinates coordinates;
  const Arenas* arenas;
  KernelCache* kernels;
  const StepInputs* inputs;
  const TrainingSpec* training;
  BatchSource* batches;  // May be null if the Program loads none.
  const CommunicatorSet* communicators;

  // Operand `i` of the instruction, as its kernel sees it.
  template <typename T>
  T* Input(const Instruction& instruction, size_t i) const {
    return reinterpret_cast<T*>(
        arenas->At(program->buffers[instruction.inputs.at(i)]));
  }
  template <typename T>
  T* Output(const Instruction& instruction, size_t i) const {
    return reinterpret_cast<T*>(
        arenas->At(program->buffers[instruction.outputs.at(i)]));
  }
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_OP_CONTEXT_H_
