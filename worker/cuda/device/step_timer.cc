#include "worker/cuda/device/step_timer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace millrace {

StepTimer::StepTimer(const Program* program, bool in_graph, CudaEvent launch)
    : program_(program),
      in_graph_(in_graph),
      launch_(std::move(launch)),
      start_(program->instructions.size()),
      end_(program->instructions.size()),
      has_own_start_(program->instructions.size()) {}

absl::StatusOr<StepTimer> StepTimer::Create(const Program* program,
                                            bool in_graph) {
  ASSIGN_OR_RETURN(CudaEvent launch,
                   CudaEvent::Create(CudaEvent::Kind::kTimed));
  StepTimer timer(program, in_graph, std::move(launch));
  auto add = [&timer]() -> absl::StatusOr<size_t> {
    ASSIGN_OR_RETURN(CudaEvent event,
                     CudaEvent::Create(CudaEvent::Kind::kTimed));
    timer.events_.push_back(std::move(event));
    return timer.events_.size() - 1;
  };
  for (const std::vector<InstructionId>& lane : program->lanes) {
    for (size_t i = 0; i < lane.size(); ++i) {
      const InstructionId id = lane[i];
      timer.has_own_start_[id] =
          i == 0 || !program->instructions[id].waits.empty();
      if (timer.has_own_start_[id]) {
        ASSIGN_OR_RETURN(timer.start_[id], add());
      } else {
        timer.start_[id] = timer.end_[lane[i - 1]];
      }
      ASSIGN_OR_RETURN(timer.end_[id], add());
    }
  }
  return timer;
}

absl::Status StepTimer::Record(const CudaEvent& event,
                               cudaStream_t stream) const {
  return in_graph_ ? event.RecordInGraph(stream) : event.Record(stream);
}

absl::Status StepTimer::Begin(cudaStream_t stream) {
  return Record(launch_, stream);
}

absl::Status StepTimer::Before(InstructionId id, cudaStream_t stream) {
  if (!has_own_start_[id]) return absl::OkStatus();
  return Record(events_[start_[id]], stream);
}

absl::Status StepTimer::After(InstructionId id, cudaStream_t stream) {
  return Record(events_[end_[id]], stream);
}

absl::StatusOr<RankTimeline> StepTimer::Read() const {
  RankTimeline timeline{.stage = program_->stage};
  timeline.events.reserve(program_->instructions.size());
  for (size_t id = 0; id < program_->instructions.size(); ++id) {
    TimelineEvent event{.instruction = static_cast<InstructionId>(id)};
    ASSIGN_OR_RETURN(event.start_s, events_[start_[id]].SecondsSince(launch_));
    ASSIGN_OR_RETURN(event.end_s, events_[end_[id]].SecondsSince(launch_));
    timeline.events.push_back(event);
  }
  std::sort(timeline.events.begin(), timeline.events.end(),
            [](const TimelineEvent& a, const TimelineEvent& b) {
              return a.start_s != b.start_s ? a.start_s < b.start_s
                                            : a.instruction < b.instruction;
            });
  return timeline;
}

}  // namespace millrace
