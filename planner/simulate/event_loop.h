// The discrete-event loop under both grains of simulation. It runs the ops of
// one step in virtual time: an op starts when all that it waits for has ended,
// and goes on as fast as what runs beside it allows.
// planner/simulate/simulate_instructions.h makes an op of each instruction,
// planner/simulate/pass_ops.h of each pass, transfer and bucket.

#ifndef MILLRACE_PLANNER_SIMULATE_EVENT_LOOP_H_
#define MILLRACE_PLANNER_SIMULATE_EVENT_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "planner/profile/profile.h"
#include "planner/program/program.h"

namespace millrace {

// The hardware that an op runs on. It decides which ops slow each other down.
enum class OpResource : uint8_t {
  kCompute,      // The stage's processors, which do one op at a time.
  kNetwork,      // Kernels that communicate.
  kCopyEngines,  // Communication that takes no processors.
  kHost,         // Nothing slows it down.
};

struct StepOp {
  double seconds = 0;     // Run alone; of communication, from the last arrival.
  double latecomers = 0;  // Standard deviations by which ranks that do alike
                          // come late to it (LoopRules::arrival_spread).
  int32_t stage = 0;
  int32_t receiver = -1;  // The other stage of a transfer that is one op.
  // The op of the sender whose result such a transfer carries. Kernels of one
  // stage wait for the other's: at the receiver once only this op is missing,
  // at the sender once this op alone has ended. -1: neither takes processors
  // while it waits.
  int32_t carries = -1;
  // Index into StepOps::meetings: ops that run together from the moment when
  // the last of them has started. -1: the op runs by itself.
  int32_t meeting = -1;
  Lane lane = Lane::kCompute;
  OpResource resource = OpResource::kCompute;
  // For compute: it holds every processor until it ends
  // (OverlapFactors::waits).
  bool fills_device = false;
  // For copy engines: its last part is a kernel, which waits for processors.
  bool ends_by_kernel = false;
  // For compute: how many times as long it takes beside communication by
  // kernels; 0: OverlapFactors::compute.
  float slowdown = 0;
  // For compute: how many times as long it takes beside kernels that wait for
  // their peer; 0: one kernel, which gets longer by a wave at most.
  float waiting_slowdown = 0;
  // For compute of many kernels: for how long a kernel that communicates has to
  // wait for one that holds every processor, if it starts with the op, and in
  // the mean if it starts later. Where overlap.waits is set.
  float first_hold_s = 0;
  float mean_hold_s = 0;
  // For compute: the share of its time in which it slows communication. A pass
  // communicates itself for the rest.
  float busy_share = 1;
};

// Lanes are in order because each op waits for the one before on its lane.
// Where several ops can start at the same instant, those of the compute lanes
// start first; otherwise they start in the order of their indices.
struct StepOps {
  int32_t num_stages = 0;
  std::vector<StepOp> ops;
  // Op i waits for waits[wait_begin[i]] up to waits[wait_begin[i + 1]].
  std::vector<int32_t> wait_begin;
  std::vector<int32_t> waits;
  std::vector<std::vector<int32_t>> meetings;

  std::span<const int32_t> WaitsOf(size_t op) const {
    return std::span(waits).subspan(wait_begin[op],
                                    wait_begin[op + 1] - wait_begin[op]);
  }
};

// How ops slow each other down.
struct LoopRules {
  // While a stage computes and communicates by kernels, each goes on so much
  // slower. A transfer meets what both of its stages compute.
  OverlapFactors overlap;
  // The same factors for copy engines, which never wait to begin.
  OverlapFactors copy_engine_overlap;
  // Ranks that share the cores of one host (HardwareProfile), and how many
  // ranks of each stage are on the host of a stage's representative; both empty
  // if cores are not shared.
  std::vector<double> compute_contention;
  std::vector<std::vector<int32_t>> neighbours;
  // How far ranks that do alike are apart when they meet (StepWaits).
  double arrival_spread = 0;
};

// Seconds from the start of the step, by op.
struct OpTimes {
  static constexpr double kNever = -1;  // The end of an op that never ended.
  std::vector<double> start_s;
  std::vector<double> end_s;
  double step_time_s = 0;  // When the last op ends.
};

// Ops that wait for each other never end, nor do those under way when a stop is
// requested. `started` gets the ops in the order in which they started, unless
// it is null.
OpTimes RunOps(const StepOps& ops, const LoopRules& rules,
               std::vector<int32_t>* started = nullptr,
               const std::stop_token& stop = {});

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SIMULATE_EVENT_LOOP_H_
