#include "planner/search/variants.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/status_macros.h"
#include "planner/lower/graph.h"
#include "planner/program/copy_engines.h"
#include "planner/search/listed_variant.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

// Copies of the finalists that were simulated by instructions, fastest first.
std::vector<Finalist> FastestFirst(const std::vector<Finalist>& finalists) {
  std::vector<Finalist> fastest;
  for (const Finalist& finalist : finalists) {
    if (finalist.instructions.has_value() && finalist.fits) {
      fastest.push_back(finalist);
    }
  }
  absl::c_stable_sort(fastest, [](const Finalist& a, const Finalist& b) {
    return a.instructions->step_time_s < b.instructions->step_time_s;
  });
  return fastest;
}

// `layout` in place of the layout of `finalist`, which it is a variant of.
Finalist VariantOf(Finalist finalist, Layout layout) {
  finalist.layout = std::move(layout);
  finalist.lowered = false;
  finalist.instructions.reset();
  return finalist;
}

// Whether copy engines carry any communication of the layout: groups may span
// hosts, which they do not.
bool UsesCopyEngines(const ModelSpec& model, const Layout& layout,
                     const CostModel& cost) {
  if (!layout.copy_engines.any()) return false;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    const Graph graph = BuildTrainingGraph(model, layout, stage);
    for (const auto* ops : {&graph.prologue, &graph.forward, &graph.backward}) {
      for (const GraphOp& op : *ops) {
        if (cost.IsByCopyEngines(layout, op.kind, op.attributes)) return true;
      }
    }
  }
  return false;
}

}  // namespace

CopyEngineChoice CopyEngineChoiceOf(const ResourceSpec& resources,
                                    const HardwareProfile& profile) {
  if (!resources.uses_cuda() || resources.transport == "nccl") {
    return CopyEngineChoice::kNever;
  }
  if (resources.transport == "copy_engines") return CopyEngineChoice::kAlways;
  return profile.copy_engines.empty() ? CopyEngineChoice::kNever
                                      : CopyEngineChoice::kIfFaster;
}

absl::Status AddListScheduled(const LayoutSpace& space, const CostModel& cost,
                              int64_t memory_limit, const std::stop_token& stop,
                              InstructionFinalists* pricer,
                              std::vector<Finalist>* finalists) {
  const std::string& asked_for = space.constraints.schedule;
  const bool is_asked_for = asked_for == ScheduleName(Schedule::kListScheduled);
  if (!is_asked_for && asked_for != "auto") return absl::OkStatus();
  std::vector<Layout> tried;
  // Where the job asks for list scheduling, only listed layouts compare.
  double fastest_s = std::numeric_limits<double>::infinity();
  const std::vector<Finalist> fastest = FastestFirst(*finalists);
  if (!is_asked_for && !fastest.empty()) {
    fastest_s = fastest.front().instructions->step_time_s;
  }
  for (const Finalist& finalist : fastest) {
    if (tried.size() == kSearchBudget.list_scheduled) break;
    Layout layout = finalist.layout;
    layout.schedule = Schedule::kOneForwardOneBackward;
    const Prediction& prediction = *finalist.instructions;
    const double busy_s =
        prediction.step_time_s * (1 - prediction.bubble_fraction);
    if (layout.pipeline == 1 || layout.shards_gradients() ||
        busy_s >= fastest_s || absl::c_linear_search(tried, layout)) {
      continue;
    }
    tried.push_back(layout);
    ASSIGN_OR_RETURN(
        std::optional<Layout> listed,
        ListScheduledVariant(space.model, layout, cost,
                             memory_limit - prediction.overhead_bytes, stop));
    if (!listed.has_value()) continue;
    Finalist variant = VariantOf(finalist, *std::move(listed));
    RETURN_IF_ERROR(pricer->Price(&variant));
    if (variant.instructions.has_value() && variant.fits) {
      fastest_s = std::min(fastest_s, variant.instructions->step_time_s);
    }
    finalists->push_back(std::move(variant));
  }
  return absl::OkStatus();
}

absl::Status AddCopyEngines(const ModelSpec& model, const CostModel& cost,
                            InstructionFinalists* pricer,
                            std::vector<Finalist>* finalists) {
  std::vector<Finalist> variants;
  for (Finalist& finalist : FastestFirst(*finalists)) {
    if (variants.size() == kSearchBudget.with_copy_engines) break;
    Layout layout = finalist.layout;
    layout.copy_engines = CopyEngineUseOf(layout);
    if (!UsesCopyEngines(model, layout, cost)) continue;
    variants.push_back(VariantOf(std::move(finalist), std::move(layout)));
  }
  RETURN_IF_ERROR(pricer->PriceEach(&variants));
  finalists->insert(finalists->end(), std::make_move_iterator(variants.begin()),
                    std::make_move_iterator(variants.end()));
  return absl::OkStatus();
}

}  // namespace millrace
