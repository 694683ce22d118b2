// A plan: the chosen layout of a job, its predicted step, and the layouts that
// lost with the reasons why.

#ifndef MILLRACE_PLANNER_SEARCH_PLAN_H_
#define MILLRACE_PLANNER_SEARCH_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/cost/closed_form.h"
#include "planner/layout/layout.h"
#include "planner/layout/recompute.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// The models that price a layout, the coarsest first. Only prices by the same
// model compare.
enum class PriceModel : uint8_t {
  kClosedForm,    // planner/cost/closed_form.h
  kPasses,        // planner/simulate/simulate_passes.h
  kInstructions,  // planner/simulate/simulate_instructions.h
};
// "the closed form", "passes", "instructions".
const char* PriceModelName(PriceModel model);

// The predicted cost of a layout. Fractions are shares of the mean rank's step;
// bytes are those of the most loaded rank.
struct Prediction {
  PriceModel model = PriceModel::kClosedForm;  // For the step time and shares.
  double step_time_s = 0;
  double tokens_per_s = 0;  // Over all devices.
  // Model FLOPs of the step over what each rank's best measured GEMM would do
  // in that time; attention counted in full, or its causal half.
  double mfu_full = 0;
  double mfu_causal = 0;
  // From the rank's Program where the layout was lowered, else from
  // `closed_form`.
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;
  // Device memory outside both arenas (HardwareProfile::memory_overhead).
  int64_t overhead_bytes = 0;
  // Device memory for snapshots of the training state
  // (planner/search/snapshot_plan.h). The chosen layout alone has some.
  int64_t staged_bytes = 0;
  // The parts of persistent_bytes.
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;  // Moments and master weights.
  double bubble_fraction = 0;
  double exposed_communication_fraction = 0;
  double recompute_fraction = 0;
  // The parts of time and memory by the closed form, whichever model `model`
  // is. It knows no list scheduling and no copy engines: it prices the layout
  // without them.
  std::optional<StepPrediction> closed_form;
  // Bounds of the step time, where its spread is known.
  std::optional<double> step_time_low_s;
  std::optional<double> step_time_high_s;
  int64_t memory_bytes() const {
    return persistent_bytes + step_bytes + overhead_bytes + staged_bytes;
  }
};

// A layout that the search priced.
struct Alternative {
  Layout layout;
  // The order of the mesh axes on the network, innermost first. True: tensor,
  // context, data, pipeline, which no worker can execute yet. False: tensor,
  // context, pipeline, data.
  bool pipeline_outermost = false;
  bool fits = true;
  // Where list scheduling (planner/search/listed_order.h) makes a faster order
  // of the passes than the one that layout.schedule names: the bytes that each
  // stage's passes may hold in it, by stage. Else empty.
  std::vector<int64_t> listed_bytes;
  // By the finest model that has priced the chosen layout too, so that the two
  // compare: see PredictionBy().
  Prediction prediction;
  std::string reason;  // Why it lost: "1.23x slower: bubble 43 %", "needs ...".
  // The reason in a few words, for a table's cell: "1.23x slower: bubble 43 %".
  std::string brief_reason;
};

// How GPUs copy their training state to host memory while training goes on
// (planner/search/snapshot_plan.h).
struct SnapshotPlan {
  // Device memory of each rank for the part of its state that is staged.
  int64_t staged_bytes = 0;
  // Predicted seconds that training loses for one snapshot.
  double stall_s = 0;
  friend bool operator==(const SnapshotPlan&, const SnapshotPlan&) = default;
};

struct Plan {
  Layout layout;
  // Workers cannot execute the layout or the model yet: no timeline and no
  // hashes.
  bool plan_only = false;
  bool pipeline_outermost = false;    // As in Alternative.
  int32_t num_idle_devices = 0;       // Devices that the layout leaves idle.
  std::vector<int64_t> listed_bytes;  // As in Alternative.
  Prediction prediction;              // By the finest model that priced it.
  // The prediction by passes, if passes priced the layout or, without its list
  // scheduling and copy engines, the layout that it is a variant of.
  std::optional<Prediction> by_passes;
  Timeline timeline;  // Simulated, of the chosen layout.
  // The hashes of all ranks' training Programs, by ProgramIdx().
  std::vector<uint64_t> program_hashes;
  // The training Programs that `timeline` is of, by stage: those of the data
  // replicas with the most micro-batches. Null where
  // `program_hashes` is empty.
  std::shared_ptr<const std::vector<Program>> programs;
  // Nothing where no snapshots are taken or their cost is not known.
  std::optional<SnapshotPlan> snapshots;
  bool keeps_standbys = false;            // KeepsStandbys() (standby_plan.h).
  std::vector<Alternative> alternatives;  // Best first; without the chosen.
  int64_t layouts_considered = 0;
  // The share by which any layout could at most be faster, by the closed form,
  // than the fastest that the search found by it. 0: none is. Absent: not
  // known.
  std::optional<double> optimality_gap;
  double search_seconds = 0;
  // If the layout recomputes anything: what each op that can be recomputed
  // saves and takes in a layer, for one micro-batch, the best first.
  std::vector<RecomputeCandidate> recompute_prices;
  // For example a foreign or stale profile, or one without rows of an op.
  std::vector<std::string> warnings;
};

// The prediction of the chosen layout by `model`; nothing if that model has not
// priced it.
std::optional<Prediction> PredictionBy(PriceModel model, const Plan& plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PLAN_H_
