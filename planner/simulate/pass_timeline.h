// The timeline of a step simulated by passes, with one entry for each class of
// ranks that behave alike. planner/simulate/simulate_passes.h yields it,
// planner/simulate/perfetto_trace.h writes it for Perfetto, and the report page
// shows it as a Timeline and Programs.

#ifndef MILLRACE_PLANNER_SIMULATE_PASS_TIMELINE_H_
#define MILLRACE_PLANNER_SIMULATE_PASS_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

enum class PassEventKind : uint8_t {
  kForward,
  kBackward,
  kInputGradient,
  kWeightGradient,
  kActivationTransfer,  // To the stage of the next chunk.
  kGradientTransfer,    // To the stage of the chunk before.
  kParameterGather,
  kGradientReduction,
  kOptimizer,
};
const char* PassEventKindName(PassEventKind kind);  // "forward", ...

struct PassEvent {
  PassEventKind kind;
  // kCompute, kSendNext, kSendPrevious or kDataComm; a lane of receives while
  // the receiver's tensor ranks gather what the stage has sent.
  Lane lane;
  int32_t chunk_idx = -1;
  int32_t microbatch_idx = -1;
  // The bucket of an event that is cut into buckets: a gather or reduction, or
  // the part of a pass that waits for a gather or feeds a reduction.
  int32_t bucket_idx = -1;
  double start_s = 0;
  double end_s = 0;
};
// "forward of chunk 3, bucket 1".
std::string PassEventToString(const PassEvent& event);

// Ranks that do alike.
struct RankClass {
  int32_t stage;
  int32_t replica;    // One of the class: the one whose events these are.
  int64_t num_ranks;  // Ranks that the class stands for.
  // All classes of a stage have the same ones in the same places; they need not
  // be in the order of time.
  std::vector<PassEvent> events;
};

struct PassTimeline {
  double step_time_s = 0;
  std::vector<RankClass> classes;  // By stage.
};

// As a Timeline whose ranks are the classes, numbered in their order, and whose
// instructions are the places of events.
Timeline ToTimeline(const PassTimeline& timeline);

// The instructions that ToTimeline() means of one stage, a line each as
// ProgramToString prints them: "id lane phase micro-batch name operation".
std::string PassProgramText(const PassTimeline& timeline, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_PASS_TIMELINE_H_
