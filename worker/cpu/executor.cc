#include "worker/cpu/executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// Set in every pending count when a run fails, so that whoever sleeps on one
// wakes up. The count itself never gets that high.
constexpr uint32_t kPoison = uint32_t{1} << 31;

}  // namespace

PreparedProgram::PreparedProgram(const Program* program,
                                 std::vector<BoundOp> ops)
    : program_(program),
      ops_(std::move(ops)),
      dependents_(program->instructions.size()),
      pending_(program->instructions.size()),
      events_(program->instructions.size()),
      done_(program->instructions.size()) {
  CHECK(ops_.size() == program->instructions.size());
  for (size_t id = 0; id < ops_.size(); ++id) {
    events_[id].instruction = static_cast<InstructionId>(id);
    for (const InstructionId earlier : program->instructions[id].waits) {
      dependents_[earlier].push_back(static_cast<InstructionId>(id));
    }
  }
}

void PreparedProgram::FillTimeline(RankTimeline* timeline) const {
  timeline->stage = program_->stage;
  timeline->events = events_;
  std::sort(timeline->events.begin(), timeline->events.end(),
            [](const TimelineEvent& a, const TimelineEvent& b) {
              return a.start_s != b.start_s ? a.start_s < b.start_s
                                            : a.instruction < b.instruction;
            });
}

Executor::Executor(Options options) : options_(std::move(options)) {}

Executor::~Executor() {
  closing_ = true;
  for (LaneState& lane : lanes_) {
    if (!lane.thread.joinable()) continue;
    lane.num_starts.fetch_add(1, std::memory_order_release);
    lane.num_starts.notify_one();
    lane.thread.join();
  }
}

absl::Status Executor::Run(PreparedProgram& prepared, int64_t step,
                           RunObserver* observer) {
  const Program& program = prepared.program();
  {
    std::lock_guard lock(mutex_);
    // Also where the run fails at once: it has done nothing.
    std::fill(prepared.done_.begin(), prepared.done_.end(), 0);
    RETURN_IF_ERROR(failure_);
    for (size_t id = 0; id < program.instructions.size(); ++id) {
      prepared.pending_[id].store(
          static_cast<uint32_t>(program.instructions[id].waits.size()),
          std::memory_order_relaxed);
    }
    current_ = &prepared;
    observer_ = observer;
    step_ = step;
    start_s_ = MonotonicSeconds();
  }
  if (options_.progress != nullptr) options_.progress->BeginStep(step);
  uint32_t num_lanes = 0;
  for (const auto& instructions : program.lanes) {
    if (!instructions.empty()) ++num_lanes;
  }
  num_running_.store(num_lanes, std::memory_order_relaxed);
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (program.lanes[lane].empty()) continue;
    LaneState& state = lanes_[lane];
    if (!state.thread.joinable()) {
      state.thread =
          std::thread([this, lane] { LaneLoop(static_cast<Lane>(lane)); });
    }
    state.num_starts.fetch_add(1, std::memory_order_release);
    state.num_starts.notify_one();
  }
  uint32_t running = num_running_.load(std::memory_order_acquire);
  while (running != 0) {
    num_running_.wait(running, std::memory_order_acquire);
    running = num_running_.load(std::memory_order_acquire);
  }
  std::lock_guard lock(mutex_);
  current_ = nullptr;
  return failure_;
}

void Executor::Abort() {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) {
    failure_ = absl::AbortedError(absl::StrCat(options_.name, ": aborted"));
  }
  failed_ = true;
  if (current_ != nullptr) Poison(*current_);
}

void Executor::LaneLoop(Lane lane) {
  // Tools such as top then tell the lanes apart. Linux keeps 15 characters.
  pthread_setname_np(pthread_self(),
                     std::string(LaneName(lane)).substr(0, 15).c_str());
  LaneState& state = lanes_[static_cast<int>(lane)];
  uint32_t seen = 0;
  while (true) {
    state.num_starts.wait(seen, std::memory_order_acquire);
    if (state.num_starts.load(std::memory_order_acquire) == seen) continue;
    ++seen;
    if (closing_) return;
    RunLane(lane);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      num_running_.notify_one();
    }
  }
}

void Executor::RunLane(Lane lane) {
  int32_t num_completed = 0;
  for (const InstructionId id :
       current_->program().lanes[static_cast<int>(lane)]) {
    if (!WaitUntilReady(id)) return;
    TimelineEvent& event = current_->events_[id];
    event.start_s = MonotonicSeconds() - start_s_;
    if (observer_ != nullptr) observer_->Before(id);
    absl::Status status = current_->ops_[id]();
    event.end_s = MonotonicSeconds() - start_s_;
    if (!status.ok()) {
      const Instruction& instruction = current_->program().instructions[id];
      Fail(absl::Status(
          status.code(),
          absl::StrCat(options_.name, ", step ", step_, ", ", instruction.name,
                       " (", OpKindName(instruction.kind),
                       "): ", status.message())));
      return;
    }
    current_->done_[id] = 1;
    if (observer_ != nullptr) observer_->After(id);
    if (options_.progress != nullptr) {
      options_.progress->completed[static_cast<size_t>(lane)].store(
          ++num_completed, std::memory_order_relaxed);
    }
    Complete(id);
  }
}

void Executor::Complete(InstructionId id) {
  for (const InstructionId dependent : current_->dependents_[id]) {
    std::atomic<uint32_t>& pending = current_->pending_[dependent];
    // Only the last one wakes the lane that may be asleep on it.
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      pending.notify_one();
    }
  }
}

bool Executor::WaitUntilReady(InstructionId id) {
  std::atomic<uint32_t>& pending = current_->pending_[id];
  uint32_t value = pending.load(std::memory_order_acquire);
  while (value != 0) {
    if ((value & kPoison) != 0) return false;
    pending.wait(value, std::memory_order_acquire);
    value = pending.load(std::memory_order_acquire);
  }
  return !failed_.load(std::memory_order_relaxed);
}

void Executor::Fail(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    failed_ = true;
    if (!failure_.ok()) return;
    failure_ = std::move(status);
    Poison(*current_);
  }
  if (options_.on_failure) options_.on_failure();
}

void Executor::Poison(PreparedProgram& prepared) {
  for (std::atomic<uint32_t>& pending : prepared.pending_) {
    pending.fetch_or(kPoison, std::memory_order_acq_rel);
    pending.notify_all();
  }
}

}  // namespace millrace
