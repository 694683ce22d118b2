#include "python/native/given_batches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/data/open_batches.h"

namespace millrace {

absl::Status GivenBatches::Check(const millrace_batch& batch) const {
  if (batch.tokens == nullptr || batch.targets == nullptr) {
    return absl::InvalidArgumentError(
        "a batch needs tokens and targets; give both, or no batch for the "
        "job's "
        "own data");
  }
  const int64_t length = job_.model.sequence_length;
  const int64_t num_tokens = job_.training.global_batch * length;
  const int64_t vocab_size = job_.model.vocab_size;
  const auto error = [length](const char* name, int64_t i, int64_t value,
                              const std::string& expected) {
    return absl::InvalidArgumentError(absl::StrCat(name, "[", i / length, "][",
                                                   i % length, "] is ", value,
                                                   ", expected ", expected));
  };
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab_size) {
      return error("tokens", i, batch.tokens[i],
                   absl::StrCat("a token from 0 to ", vocab_size - 1));
    }
    if (batch.targets[i] < -1 || batch.targets[i] >= vocab_size) {
      return error("targets", i, batch.targets[i],
                   absl::StrCat("a token from 0 to ", vocab_size - 1,
                                ", or -1 where none is trained"));
    }
    if (batch.document_starts == nullptr) continue;
    const int64_t start = batch.document_starts[i];
    const int64_t position = i % length;
    // A token either begins a document or belongs to that of the one before it.
    const int64_t before = position == 0 ? 0 : batch.document_starts[i - 1];
    if (start == position || (position > 0 && start == before)) continue;
    return error(
        "document_starts", i, start,
        absl::StrCat(position,
                     position == 0 ? "" : absl::StrCat(" or ", before)));
  }
  return absl::OkStatus();
}

absl::Status GivenBatches::Give(int64_t step, int64_t oldest_step,
                                const millrace_batch& batch) {
  RETURN_IF_ERROR(Check(batch));
  const int64_t num_tokens =
      job_.training.global_batch * job_.model.sequence_length;
  Batch copy = {.tokens = {batch.tokens, batch.tokens + num_tokens},
                .targets = {batch.targets, batch.targets + num_tokens}};
  if (batch.document_starts == nullptr) {
    copy.document_starts.assign(num_tokens, 0);
  } else {
    copy.document_starts = {batch.document_starts,
                            batch.document_starts + num_tokens};
  }
  copy.trained_share = static_cast<double>(std::count_if(
                           copy.targets.begin(), copy.targets.end(),
                           [](int32_t t) { return t >= 0; })) /
                       static_cast<double>(num_tokens);
  std::lock_guard<std::mutex> lock(mutex_);
  given_.erase(given_.begin(), given_.lower_bound(oldest_step));
  given_.insert_or_assign(step, std::move(copy));
  return absl::OkStatus();
}

absl::Status GivenBatches::OpenOwn() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (own_ != nullptr) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<BatchSource> own,
                   PrepareAndOpenBatches(job_, num_threads_));
  std::lock_guard<std::mutex> lock(mutex_);
  own_ = std::move(own);
  return absl::OkStatus();
}

absl::Status GivenBatches::Fill(const BatchRequest& request,
                                const BatchPointers& out) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = given_.find(request.step);
  if (request.split == DataSplit::kValidation || found == given_.end()) {
    CHECK(own_ != nullptr) << "step " << request.step << " has no data";
    lock.unlock();  // The job's data takes care of itself.
    return own_->Fill(request, out);
  }
  const int64_t length = job_.model.sequence_length;
  const int64_t begin = request.first_sequence_idx * length;
  const int64_t count = request.num_sequences * length;
  const Batch& batch = found->second;
  std::copy_n(batch.tokens.begin() + begin, count, out.tokens);
  std::copy_n(batch.targets.begin() + begin, count, out.targets);
  std::copy_n(batch.document_starts.begin() + begin, count,
              out.document_starts);
  return absl::OkStatus();
}

absl::StatusOr<double> GivenBatches::TrainedShare(DataSplit split, int64_t step,
                                                  int64_t global_batch) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = given_.find(step);
    if (split == DataSplit::kTraining && found != given_.end()) {
      return found->second.trained_share;
    }
  }
  return own_->TrainedShare(split, step, global_batch);
}

}  // namespace millrace
