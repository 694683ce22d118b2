// The passes of one stage's Program, for planner/simulate/passes_of_programs.h.
// Instructions of the data axis and transfers are kept: they remain ops of
// their own. All others belong to passes, which are cut where they wait for a
// kept instruction or where one can begin.

#ifndef MILLRACE_PLANNER_SIMULATE_STAGE_PASSES_H_
#define MILLRACE_PLANNER_SIMULATE_STAGE_PASSES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "planner/pipeline/passes.h"
#include "planner/program/program.h"
#include "planner/simulate/pass_ops.h"
#include "planner/simulate/simulate_instructions.h"

namespace millrace {

// Whether instructions of the lane are kept.
bool IsKept(Lane lane);

class StagePasses {
 public:
  // Borrows all but `order`, the order of the stage's passes.
  StagePasses(const StageSimulation& stage, const SimulationOptions& options,
              const std::vector<ChunkPass>& order);

  // Adds the ops of the compute lane. The methods below need their indices.
  void AddTo(PassOpList* list);

  // The op at whose end a kept instruction can start, and by how much later it
  // does. -1: it waits for no pass.
  struct OpBefore {
    int32_t op = -1;
    double delay_s = 0;
  };
  OpBefore OpBeforeKept(InstructionId id) const;
  // An op that waits for a kept instruction, and by how much later than its end
  // it can start.
  struct OpAfter {
    int32_t op;
    double delay_s;
  };
  std::vector<OpAfter> OpsAfterKept(InstructionId id) const;

 private:
  // When the instructions of a pass run by themselves.
  struct PassTimes;
  // The start or the end of an instruction of a pass.
  struct Moment {
    int32_t pass = 0;
    int32_t place = kPassStart;  // The instruction's place in the pass.
    bool is_end = false;

    static constexpr int32_t kPassStart = -1;
    double TimeIn(const PartTimes& times) const;
  };
  struct Pass {
    PassEventKind kind;
    int32_t microbatch_idx = -1;
    std::vector<InstructionId> instructions;  // Lane by lane.
    std::shared_ptr<const PassTimes> times;
    // Where it is cut, by the time alone. The first is its start.
    std::vector<Moment> cuts;
    int32_t first_op = 0;
  };
  // When a kept instruction is needed: so much before the moment.
  struct Need {
    Moment at;
    double ahead_s = 0;
  };

  const std::vector<InstructionId>& LaneOf(Lane lane) const {
    return program_.lanes[static_cast<size_t>(lane)];
  }

  // Finds the pass of each instruction. On the compute lane one pass follows
  // the other. Instructions before the first pass belong to it. The optimizer
  // is like a pass after the last one.
  void Divide(const std::vector<ChunkPass>& order);
  void DivideComputeLane(const std::vector<ChunkPass>& order);
  void DivideTensorLane(const std::vector<ChunkPass>& order);
  void AddToPass(InstructionId id, int32_t pass);
  // Passes that do alike, as most of a kind do, run once.
  std::shared_ptr<const PassTimes> TimesOf(const Pass& pass);
  // Finds the first computation that waits for an instruction of the tensor
  // lane or for a later one of that lane.
  void FindFirstUsers();
  // Finds where passes meet the kept instructions, and cuts them there.
  void FindMeetings();
  void FindReady(InstructionId id);
  Need NeedOf(InstructionId id) const;
  void MergeCuts(Pass* pass) const;
  // The number of parts of the pass that end at this moment or before.
  int32_t NumPartsBefore(const Moment& moment) const;
  StepOp OpOf(const Pass& pass, size_t part) const;
  void SetHolds(const Pass& pass, double from_s, double to_s, StepOp* op) const;

  const StageSimulation& stage_;
  const Program& program_;
  const SimulationOptions& options_;
  std::vector<Pass> passes_;
  // By instruction: its pass, its place there, and that on the compute lane;
  // -1: none.
  std::vector<int32_t> pass_of_;
  std::vector<int32_t> place_;
  std::vector<int32_t> computed_place_;
  std::vector<InstructionId> first_user_;  // By instruction; -1: none.
  std::map<std::pair<PassEventKind, std::vector<double>>,
           std::shared_ptr<const PassTimes>>
      times_;
  // By kept instruction.
  std::map<InstructionId, Moment> ready_;
  std::map<InstructionId, std::vector<Need>> needed_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_STAGE_PASSES_H_
