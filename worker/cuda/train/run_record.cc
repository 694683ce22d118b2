#include "worker/cuda/train/run_record.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/store_word.h"
#include "worker/train/trained_tokens.h"

namespace millrace {
namespace {

// How long the host sleeps between two looks at the device, and at its
// communicators. It waits for a step only while the next one is queued.
constexpr absl::Duration kPollInterval = absl::Microseconds(50);
constexpr int kPollsPerHealthCheck = 20;

}  // namespace

absl::StatusOr<RunRecord> RunRecord::Create(int64_t num_scalars) {
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(PinnedMemory scalars,
                   PinnedMemory::Allocate(static_cast<size_t>(num_scalars) *
                                          sizeof(double)));
  return RunRecord{.start = std::move(start),
                   .end = std::move(end),
                   .scalars = std::move(scalars),
                   .num_scalars = num_scalars};
}

absl::Status RunRecord::EnqueueEnd(const double* device_scalars,
                                   cudaStream_t stream) {
  // Not by a copy engine, which may be downloading a snapshot of the state.
  RETURN_IF_ERROR(LaunchStoreOnHost(reinterpret_cast<double*>(scalars.data()),
                                    device_scalars, num_scalars, stream));
  return end.Record(stream);
}

StepResult ResultOf(const RunRecord& record) {
  const double* scalars = record.values();
  const double norm =
      std::sqrt(scalars[kSquaredNormScalar]) * record.token_scale;
  std::optional<PreferenceMetrics> preference;
  if (record.num_scalars > kNumStepScalars) {
    preference = PreferenceMetricsOf(scalars, record.token_scale);
  }
  return {.step = record.step,
          .loss = scalars[kLossScalar] * record.token_scale,
          .gradient_norm = norm,
          .learning_rate = record.learning_rate,
          .stop = scalars[kStopVoteScalar] > 0,
          // As the device decides whether to update weights
          // (kernels/optimizer/gradient_norm_bf16.h).
          .finite = std::isfinite(scalars[kLossScalar]) &&
                    std::isfinite(static_cast<float>(norm)),
          .preference = preference};
}

absl::Status WaitForEnd(const RunRecord& record, absl::Duration timeout,
                        const std::atomic<bool>& aborted,
                        RankCommunication* communication) {
  const absl::Time deadline = MonotonicNow() + timeout;
  for (int polls = 0;; ++polls) {
    // Asked first: a host that was stopped for a while must still see that the
    // device was not.
    const bool late = MonotonicNow() > deadline;
    const cudaError_t state = cudaEventQuery(record.end.get());
    if (state == cudaSuccess) {
      return communication == nullptr ? absl::OkStatus()
                                      : communication->CheckMark();
    }
    if (state != cudaErrorNotReady) {
      return CudaStatus(state, "finish what the device was given");
    }
    if (aborted) return absl::AbortedError("aborted");
    if (communication != nullptr && polls % kPollsPerHealthCheck == 0) {
      RETURN_IF_ERROR(communication->Health());
    }
    if (late) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the device is not done after ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace millrace
