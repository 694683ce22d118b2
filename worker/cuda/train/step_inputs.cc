#include "worker/cuda/train/step_inputs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/store_word.h"
#include "planner/program/ops.h"
#include "worker/train/trained_tokens.h"

namespace millrace {
namespace {

// Room for documents of this many tokens on average, beside a sequence each.
constexpr int64_t kTokensPerDocument = 128;
constexpr int64_t kNumTrainingSlots = 2;
constexpr int64_t kAlignment = 256;  // Bytes, for each array in a block.

int64_t ArrayBytes(int64_t count) {
  return RoundUp(count * static_cast<int64_t>(sizeof(int32_t)), kAlignment);
}

}  // namespace

int64_t FillDocumentOffsets(const DocumentOffsetsArgs& args) {
  int64_t count = 0;
  for (int64_t sequence = 0; sequence < args.num_sequences; ++sequence) {
    const int64_t begin = sequence * args.sequence_length;
    for (int64_t t = 0; t < args.sequence_length; ++t) {
      // A sequence begins a document too: the part of it that lies here.
      if (t != 0 && args.document_starts[begin + t] != t) continue;
      if (count < args.max_documents) {
        args.offsets[count] = static_cast<int32_t>(begin + t);
      }
      ++count;
    }
  }
  std::fill(args.offsets + std::min(count, args.max_documents),
            args.offsets + args.max_documents + 1,
            static_cast<int32_t>(args.num_sequences * args.sequence_length));
  return count;
}

int64_t DocumentVariant(int64_t num_documents, int64_t num_sequences,
                        int64_t max_documents) {
  CHECK(num_documents >= num_sequences);
  if (num_documents == num_sequences) return kWholeSequences;
  if (num_documents > max_documents) return kReadDocumentStarts;
  return std::min(max_documents, static_cast<int64_t>(std::bit_ceil(
                                     static_cast<uint64_t>(num_documents))));
}

StepInputFeed::StepInputFeed(const StepInputOptions& options)
    : options_(options),
      num_microbatches_(
          options.layout.num_microbatches_of(options.coordinates.data)),
      num_tokens_(options.layout.micro_batch *
                  options.job.model.sequence_length),
      max_documents_(options.layout.micro_batch +
                     num_tokens_ / kTokensPerDocument),
      num_votes_(NumStepScalars(options.layout) - kStopVoteScalar) {}

absl::StatusOr<std::unique_ptr<StepInputFeed>> StepInputFeed::Create(
    const StepInputOptions& options) {
  std::unique_ptr<StepInputFeed> feed(new StepInputFeed(options));
  const auto block_bytes = static_cast<size_t>(feed->BlockBytes());
  ASSIGN_OR_RETURN(auto device, DeviceBuffer<std::byte>::Allocate(
                                    block_bytes + sizeof(int32_t)));
  auto* const updates_held =
      reinterpret_cast<int32_t*>(device.data() + block_bytes);
  RETURN_IF_ERROR(CudaStatus(cudaMemset(updates_held, 0, sizeof(int32_t)),
                             "let steps change weights"));
  // The default stream's work is not ordered with that of the lanes.
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(cudaStreamLegacy),
                             "let steps change weights"));
  feed->device_ = std::make_unique<DeviceBuffer<std::byte>>(std::move(device));
  const Views views = feed->ViewsOf(feed->device_->data());
  feed->inputs_ = {.tokens = views.tokens,
                   .targets = views.targets,
                   .document_starts = views.document_starts,
                   .pair_starts = views.pair_starts,
                   .references = views.references,
                   .document_offsets = views.document_offsets,
                   .max_documents = feed->max_documents_,
                   .optimizer = views.optimizer,
                   .token_scale = views.token_scale,
                   .updates_held = updates_held};
  for (int64_t i = 0; i < kNumTrainingSlots + 1; ++i) {
    ASSIGN_OR_RETURN(PinnedMemory memory, PinnedMemory::Allocate(block_bytes));
    const Views host = feed->ViewsOf(memory.data());
    (i < kNumTrainingSlots ? feed->training_ : feed->validation_)
        .push_back({.memory = std::move(memory), .views = host});
  }
  feed->thread_ = std::thread([raw = feed.get()] { raw->LoadLoop(); });
  return feed;
}

StepInputFeed::~StepInputFeed() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t StepInputFeed::NumTokenArrays() const {
  return options_.layout.trains_preferences() ? 5 : 3;
}

StepInputFeed::Views StepInputFeed::ViewsOf(std::byte* block) const {
  const int64_t tokens_bytes = ArrayBytes(num_microbatches_ * num_tokens_);
  const int64_t offsets_bytes =
      ArrayBytes(num_microbatches_ * (max_documents_ + 1));
  const bool has_pairs = options_.layout.trains_preferences();
  std::byte* const offsets = block + NumTokenArrays() * tokens_bytes;
  std::byte* const end = offsets + offsets_bytes;
  const auto of_tokens = [&]<typename T>(int64_t i) {
    return reinterpret_cast<T*>(block + i * tokens_bytes);
  };
  return {.tokens = of_tokens.operator()<int32_t>(0),
          .targets = of_tokens.operator()<int32_t>(1),
          .document_starts = of_tokens.operator()<int32_t>(2),
          .pair_starts = has_pairs ? of_tokens.operator()<int32_t>(3) : nullptr,
          .references = has_pairs ? of_tokens.operator()<float>(4) : nullptr,
          .document_offsets = reinterpret_cast<int32_t*>(offsets),
          .optimizer = reinterpret_cast<AdamWStep*>(end),
          .token_scale = reinterpret_cast<double*>(end + kAlignment),
          .votes = reinterpret_cast<double*>(end + 2 * kAlignment)};
}

int64_t StepInputFeed::BlockBytes() const {
  return NumTokenArrays() * ArrayBytes(num_microbatches_ * num_tokens_) +
         ArrayBytes(num_microbatches_ * (max_documents_ + 1)) + 3 * kAlignment;
}

void StepInputFeed::Prefetch(int64_t step) {
  if (!options_.batches->ReadsAhead()) return;
  WaitUntilIdle();
  {
    std::lock_guard lock(mutex_);
    wanted_step_ = step;
  }
  changed_.notify_all();
}

void StepInputFeed::WaitUntilIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return wanted_step_ == 0; });
}

void StepInputFeed::LoadLoop() {
  while (true) {
    int64_t step = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || wanted_step_ != 0; });
      if (closing_) return;
      step = wanted_step_;
    }
    Fill(DataSplit::kTraining, step, training_[step % kNumTrainingSlots]);
    {
      std::lock_guard lock(mutex_);
      wanted_step_ = 0;
    }
    changed_.notify_all();
  }
}

void StepInputFeed::Fill(DataSplit split, int64_t step, Slot& slot,
                         int32_t sample_shift) const {
  slot.step = step;
  slot.sample_shift = sample_shift;
  slot.num_documents = 0;
  const int64_t num_microbatches =
      split == DataSplit::kTraining ? num_microbatches_ : 1;
  for (int64_t m = 0; m < num_microbatches; ++m) {
    slot.status = FillMicrobatch(split, step, m, slot);
    if (!slot.status.ok()) return;
  }
  const BatchRequest request =
      RequestOf(options_.layout, split, options_.coordinates.data,
                /*microbatch_idx=*/0);
  const absl::StatusOr<double> share =
      options_.batches->TrainedShare(split, step, request.global_batch);
  slot.status = share.status();
  slot.trained_share = share.value_or(0);
}

absl::Status StepInputFeed::FillMicrobatch(DataSplit split, int64_t step,
                                           int64_t microbatch_idx,
                                           Slot& slot) const {
  const Layout& layout = options_.layout;
  BatchRequest request =
      RequestOf(layout, split,
                (options_.coordinates.data + slot.sample_shift) % layout.data,
                microbatch_idx);
  request.step = step;
  const int64_t at = microbatch_idx * num_tokens_;
  BatchPointers out = {.tokens = slot.views.tokens + at,
                       .targets = slot.views.targets + at,
                       .document_starts = slot.views.document_starts + at};
  if (layout.trains_preferences()) {
    out.pair_starts = slot.views.pair_starts + at;
    out.references = slot.views.references + at;
    std::fill_n(out.pair_starts, num_tokens_, -1);
    std::fill_n(out.references, num_tokens_, 0.0f);
  }
  RETURN_IF_ERROR(options_.batches->Fill(request, out));
  const int64_t num_documents = FillDocumentOffsets(
      {.document_starts = out.document_starts,
       .num_sequences = layout.micro_batch,
       .sequence_length = options_.job.model.sequence_length,
       .max_documents = max_documents_,
       .offsets = slot.views.document_offsets +
                  microbatch_idx * (max_documents_ + 1)});
  slot.num_documents = std::max(slot.num_documents, num_documents);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StepInputFeed::EnqueueTrainingStep(
    int64_t step, const StepRequest& request, double* scalars,
    cudaStream_t stream) {
  WaitUntilIdle();
  Slot& slot = training_[step % kNumTrainingSlots];
  // Nobody knew the first step, or one after a checkpoint was loaded.
  if (slot.step != step || slot.sample_shift != request.sample_shift) {
    Fill(DataSplit::kTraining, step, slot, request.sample_shift);
  }
  *slot.views.optimizer = {
      .learning_rate = LearningRateAt(options_.job.training, step),
      .step = step};
  if (slot.status.ok()) {
    ASSIGN_OR_RETURN(*slot.views.token_scale,
                     TokenScaleOf(slot.trained_share, step,
                                  options_.job.training.global_batch));
  }
  trained_share_ = slot.trained_share;
  std::fill_n(slot.views.votes, num_votes_, 0.0);
  if (request.vote_to_stop) slot.views.votes[0] = 1;
  return EnqueueCopies(slot, scalars, stream);
}

absl::StatusOr<int64_t> StepInputFeed::EnqueueValidationPass(
    int64_t batch, bool vote, double* scalars, cudaStream_t stream) {
  WaitUntilIdle();
  Slot& slot = validation_[0];
  Fill(DataSplit::kValidation, batch, slot);
  *slot.views.optimizer = {.learning_rate = 0, .step = 1};
  *slot.views.token_scale = 1;
  trained_share_ = slot.trained_share;
  std::fill_n(slot.views.votes, num_votes_, 0.0);
  if (vote) slot.views.votes[0] = 1;
  return EnqueueCopies(slot, scalars, stream);
}

absl::Status StepInputFeed::EnqueueRelease(cudaStream_t stream) const {
  return LaunchStoreWord(inputs_.updates_held, 0, stream);
}

absl::StatusOr<int64_t> StepInputFeed::EnqueueCopies(
    const Slot& slot, double* scalars, cudaStream_t stream) const {
  if (!slot.status.ok()) {
    return absl::Status(slot.status.code(),
                        absl::StrCat("load_batch: ", slot.status.message()));
  }
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(device_->data(), slot.memory.data(),
                                 static_cast<size_t>(BlockBytes()),
                                 cudaMemcpyHostToDevice, stream),
                 "copy a batch to the device"));
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(scalars + kStopVoteScalar, slot.views.votes,
                      static_cast<size_t>(num_votes_) * sizeof(double),
                      cudaMemcpyHostToDevice, stream),
      "copy votes to the device"));
  return DocumentVariant(slot.num_documents, options_.layout.micro_batch,
                         max_documents_);
}

}  // namespace millrace
