// Brings the inputs of a step to the device: batches a step ahead, learning
// rate, votes. A thread of its own reads the next step's batch into pinned
// memory while the device works on the current one; each step's copy to the
// device is the first thing on its stream.

#ifndef MILLRACE_WORKER_CUDA_TRAIN_STEP_INPUTS_H_
#define MILLRACE_WORKER_CUDA_TRAIN_STEP_INPUTS_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device_buffer.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/device/op.h"
#include "worker/data/batch_source.h"
#include "worker/train/trainer.h"

namespace millrace {

// Tells attention where documents begin (CudaOpContext::num_documents).
inline constexpr int64_t kWholeSequences = 0;
// Too many documents for the offsets: kernels read document_starts.
inline constexpr int64_t kReadDocumentStarts = -1;

// The documents of one micro-batch from its document_starts: writes the tokens
// at which they begin, ascending, then the number of tokens up to and with
// offsets[max_documents]. Returns how many there are; more than `max_documents`
// leave `offsets` cut short.
struct DocumentOffsetsArgs {
  const int32_t* document_starts;  // [num_sequences, sequence_length]
  int64_t num_sequences;
  int64_t sequence_length;
  int64_t max_documents;
  int32_t* offsets;  // [max_documents + 1]
};
int64_t FillDocumentOffsets(const DocumentOffsetsArgs& args);

// The value of CudaOpContext::num_documents for a step: the documents of its
// fullest micro-batch, rounded up to a power of two so that few Programs serve
// all steps.
int64_t DocumentVariant(int64_t num_documents, int64_t num_sequences,
                        int64_t max_documents);

struct StepInputOptions {
  JobSpec job;
  Layout layout;
  MeshCoordinates coordinates;
  BatchSource* batches;  // Borrowed for the lifetime.
};

class StepInputFeed {
 public:
  // Allocates on the current device and pinned on the host. At most one thread
  // calls it, and no two calls of `batches` overlap.
  static absl::StatusOr<std::unique_ptr<StepInputFeed>> Create(
      const StepInputOptions& options);
  ~StepInputFeed();
  StepInputFeed(const StepInputFeed&) = delete;
  StepInputFeed& operator=(const StepInputFeed&) = delete;

  // Returns the fixed addresses at which steps find their inputs.
  const CudaStepInputs& inputs() const { return inputs_; }

  // Begins to read training step `step`, unless the source does not read ahead:
  // then EnqueueTrainingStep() reads it. The copies of step - 2 must be done.
  void Prefetch(int64_t step);

  // Enqueues the copies of a training step: inputs, and the vote to the step's
  // scalars at `scalars`, on the device. Waits for the batch if it is not there
  // yet. Returns the variant of the Program that the step needs.
  // InvalidArgument if no token of the global batch is trained.
  absl::StatusOr<int64_t> EnqueueTrainingStep(int64_t step,
                                              const StepRequest& request,
                                              double* scalars,
                                              cudaStream_t stream);
  // The same for validation pass `batch` (the first is 1), read here and now.
  // The copies of the one before must be done.
  absl::StatusOr<int64_t> EnqueueValidationPass(int64_t batch, bool vote,
                                                double* scalars,
                                                cudaStream_t stream);

  // Enqueues that steps change weights again, after one whose loss or gradient
  // was not a number (CudaStepInputs::updates_held).
  absl::Status EnqueueRelease(cudaStream_t stream) const;

  // BatchSource::TrainedShare() of what was enqueued last.
  double trained_share() const { return trained_share_; }

 private:
  // One block, alike on host and device.
  struct Views {
    int32_t* tokens;
    int32_t* targets;
    int32_t* document_starts;
    int32_t* pair_starts;  // Null where no preferences are trained.
    float* references;     // Likewise.
    int32_t* document_offsets;
    AdamWStep* optimizer;
    double* token_scale;
    double* votes;  // The scalars from kStopVoteScalar on.
  };
  struct Slot {
    PinnedMemory memory;
    Views views;
    int64_t step = 0;          // The step that it holds; 0: none.
    int32_t sample_shift = 0;  // StepRequest's.
    absl::Status status;
    int64_t num_documents = 0;  // In the fullest micro-batch.
    double trained_share = 1;
  };

  explicit StepInputFeed(const StepInputOptions& options);
  int64_t NumTokenArrays() const;
  Views ViewsOf(std::byte* block) const;
  int64_t BlockBytes() const;
  void Fill(DataSplit split, int64_t step, Slot& slot,
            int32_t sample_shift = 0) const;
  absl::Status FillMicrobatch(DataSplit split, int64_t step,
                              int64_t microbatch_idx, Slot& slot) const;
  absl::StatusOr<int64_t> EnqueueCopies(const Slot& slot, double* scalars,
                                        cudaStream_t stream) const;
  void WaitUntilIdle();
  void LoadLoop();

  const StepInputOptions options_;
  const int64_t num_microbatches_;
  const int64_t num_tokens_;  // In a micro-batch.
  const int64_t max_documents_;
  const int64_t num_votes_;  // Scalars from kStopVoteScalar on.
  std::unique_ptr<DeviceBuffer<std::byte>> device_;  // And updates_held.
  CudaStepInputs inputs_{};
  std::vector<Slot> training_;    // Step k in slot k % 2.
  std::vector<Slot> validation_;  // One.
  double trained_share_ = 1;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  int64_t wanted_step_ = 0;  // Being loaded; 0: idle.
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_TRAIN_STEP_INPUTS_H_
