#include "worker/measure/op_timer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

// Beyond a core's own caches, so that operands come from where they come from
// in a step; small enough to be filled in milliseconds.
constexpr int64_t kWorkingSetBytes = 16 * kMiB;
constexpr int32_t kMaxRepetitions = 40;

// Stands for the dataset: ids copied from memory.
class ProfileBatches : public BatchSource {
 public:
  explicit ProfileBatches(int64_t num_tokens) : ids_(num_tokens) {}

  absl::Status Fill(const BatchRequest&, const BatchPointers& out) override {
    for (int32_t* ids : {out.tokens, out.targets, out.document_starts}) {
      std::copy(ids_.begin(), ids_.end(), ids);
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<int32_t> ids_;
};

int64_t NumTokensOf(const ProfileOp& op) {
  const auto* batch = std::get_if<ElementwiseAttributes>(&op.attributes);
  return batch == nullptr ? 0 : batch->rows * batch->cols;
}

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A third of them is long beside a clock, and about as long as passes are.
Scatter RepeatsOf(const std::vector<double>& times) {
  constexpr size_t kNumParts = 3;
  constexpr double kLongEnough = 1e-3;
  std::vector<double> logs;
  for (size_t part = 0; part < kNumParts; ++part) {
    const size_t begin = part * times.size() / kNumParts;
    const size_t end = (part + 1) * times.size() / kNumParts;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += times[i];
    if (sum < kLongEnough) return {};
    logs.push_back(std::log(sum / static_cast<double>(end - begin)));
  }
  return ScatterOf(std::move(logs));
}

}  // namespace

struct OpTimer::Prepared {
  Program program;
  std::unique_ptr<Arenas> arenas;
  std::unique_ptr<ProfileBatches> batches;
  CommunicatorSet communicators;
  std::unique_ptr<PreparedProgram> ops;
};

OpTimer::OpTimer(int num_threads)
    : kernels_(num_threads), executor_({.name = "profiling"}) {
  inputs_ = {.step = 1, .learning_rate = 1e-6};
}

absl::StatusOr<std::unique_ptr<OpTimer::Prepared>> OpTimer::Prepare(
    const ProfileOp& op, int32_t num_repetitions) {
  auto prepared = std::make_unique<Prepared>();
  prepared->program =
      SingleOpProgram(Precision::kFloat32, op.kind, op.attributes,
                      num_repetitions, kWorkingSetBytes);
  ASSIGN_OR_RETURN(MemoryBlock persistent, MemoryBlock::Allocate(0));
  ASSIGN_OR_RETURN(MemoryBlock step,
                   MemoryBlock::Allocate(prepared->program.step_arena_bytes));
  prepared->arenas = std::make_unique<Arenas>(
      Arenas{.persistent = std::move(persistent), .step = std::move(step)});
  prepared->batches = std::make_unique<ProfileBatches>(NumTokensOf(op));
  FillOperands(prepared->program, *prepared->arenas);
  ASSIGN_OR_RETURN(prepared->ops,
                   PrepareProgram({.program = &prepared->program,
                                   .arenas = prepared->arenas.get(),
                                   .kernels = &kernels_,
                                   .inputs = &inputs_,
                                   .training = &training_,
                                   .batches = prepared->batches.get(),
                                   .communicators = &prepared->communicators}));
  RETURN_IF_ERROR(kernels_.AllocateScratch());
  return prepared;
}

absl::StatusOr<OpTimer::Timing> OpTimer::Time(const ProfileOp& op,
                                              double budget_seconds) {
  // The first run makes code and pages ready; the second says how often the
  // budget allows.
  ASSIGN_OR_RETURN(std::unique_ptr<Prepared> trial, Prepare(op, 2));
  RETURN_IF_ERROR(executor_.Run(*trial->ops, 0));
  RankTimeline timeline;
  trial->ops->FillTimeline(&timeline);
  const double once = timeline.events[1].end_s - timeline.events[1].start_s;
  const double affordable = budget_seconds / std::max(once, 1e-7);
  const auto repetitions = static_cast<int32_t>(
      std::clamp(affordable, 3.0, double{kMaxRepetitions}));
  ASSIGN_OR_RETURN(std::unique_ptr<Prepared> prepared,
                   Prepare(op, repetitions));
  RETURN_IF_ERROR(executor_.Run(*prepared->ops, 0));
  prepared->ops->FillTimeline(&timeline);
  std::vector<double> times, gaps;
  for (size_t i = 1; i < timeline.events.size(); ++i) {
    const TimelineEvent& event = timeline.events[i];
    times.push_back(event.end_s - event.start_s);
    gaps.push_back(event.start_s - timeline.events[i - 1].end_s);
  }
  return Timing{.seconds = Median(times),
                .overhead_seconds = Median(gaps),
                .repeats = RepeatsOf(times)};
}

absl::StatusOr<double> OpTimer::MeanOver(const ProfileOp& op, double seconds) {
  constexpr int32_t kBatch = 8;
  ASSIGN_OR_RETURN(std::unique_ptr<Prepared> prepared, Prepare(op, kBatch));
  RETURN_IF_ERROR(executor_.Run(*prepared->ops, 0));
  const double start = MonotonicSeconds();
  int64_t num_runs = 0;
  double elapsed = 0;
  do {
    RETURN_IF_ERROR(executor_.Run(*prepared->ops, 0));
    num_runs += kBatch;
    elapsed = MonotonicSeconds() - start;
  } while (elapsed < seconds);
  return elapsed / static_cast<double>(num_runs);
}

}  // namespace millrace
