#include "planner/learn/step_mix.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "base/check.h"
#include "planner/lower/graph.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

// Each mix takes a second or two to warm up.
constexpr size_t kMaxMixes = 6;
// About three milliseconds. A mix of longer ops would take most of the time
// that there is to measure, and draws no more power.
constexpr double kShortLoad = 2e12;
// About ten milliseconds.
constexpr double kMixLoad = 6e12;

bool CutsLess(const Layout& a, const Layout& b) {
  return std::tuple(a.tensor, a.pipeline, a.zero) <
         std::tuple(b.tensor, b.pipeline, b.zero);
}

// The ops of both passes of a model with so many layers, and the share of the
// optimizer's work that falls on one micro-batch of the layout.
StepMix MixOf(ModelSpec model, const Layout& layout, int64_t num_layers) {
  const bool is_whole = num_layers == model.num_layers;
  model.num_layers = num_layers;
  const Layout alone = {.micro_batch = layout.micro_batch,
                        .precision = layout.precision,
                        .moments = layout.moments,
                        .gemm_format = layout.gemm_format};
  const Graph graph = BuildTrainingGraph(model, alone, /*stage=*/0);
  StepMix mix = {.micro_batch = layout.micro_batch, .ops = {}};
  for (const auto* pass : {&graph.forward, &graph.backward}) {
    for (const GraphOp& op : *pass) {
      if (Describe(op.kind).profile == ProfileTable::kCommunication ||
          op.kind == OpKind::kLoadBatch) {
        continue;
      }
      if (!is_whole && std::holds_alternative<VocabAttributes>(op.attributes)) {
        continue;
      }
      mix.ops.push_back(AsMeasured(op.kind, op.attributes, layout.micro_batch));
    }
  }
  for (const GraphOp& op : graph.epilogue) {
    if (!std::holds_alternative<OptimizerAttributes>(op.attributes)) continue;
    auto attributes = std::get<OptimizerAttributes>(op.attributes);
    attributes.num_elements /= layout.most_microbatches();
    if (attributes.num_elements == 0) continue;
    mix.ops.push_back({op.kind, attributes, layout.micro_batch});
  }
  return mix;
}

double LoadOf(const StepMix& mix) {
  double load = 0;
  for (const ProfileOp& op : mix.ops) load += LoadOf(op);
  return load;
}

bool IsShort(const StepMix& mix) {
  return std::all_of(mix.ops.begin(), mix.ops.end(), [](const ProfileOp& op) {
    return LoadOf(op) <= kShortLoad;
  });
}

}  // namespace

double LoadOf(const ProfileOp& op) {
  constexpr double kFlopsPerByte = 150;  // 600 TFLOP/s, 4 TB/s.
  const OpWork work =
      WorkOf(Layout{.precision = Precision::kBfloat16}, op.kind, op.attributes);
  return std::max(work.flops, kFlopsPerByte * work.bytes);
}

ProfileOp AsMeasured(OpKind kind, const OpAttributes& attributes,
                     int32_t micro_batch) {
  ProfileOp op = {kind, attributes, micro_batch};
  if (auto* gemm = std::get_if<GemmAttributes>(&op.attributes)) {
    gemm->accumulate = false;
  }
  if (auto* vocabulary = std::get_if<VocabAttributes>(&op.attributes)) {
    vocabulary->keeps_logits = false;
  }
  if (auto* attention = std::get_if<AttentionAttributes>(&op.attributes)) {
    attention->finds_amax = false;  // Hidden under the products.
  }
  return op;
}

std::vector<StepMix> MixesOf(const ModelSpec& model,
                             const std::vector<Layout>& layouts) {
  std::map<int32_t, const Layout*> least_cut;
  for (const Layout& layout : layouts) {
    const Layout*& chosen = least_cut[layout.micro_batch];
    if (chosen == nullptr || CutsLess(layout, *chosen)) chosen = &layout;
  }
  std::vector<StepMix> all;
  for (const auto& [micro_batch, chosen] : least_cut) {
    const Layout& layout = *chosen;
    const double load_of_one = LoadOf(MixOf(model, layout, 1));
    const auto num_layers = static_cast<int64_t>(kMixLoad / load_of_one);
    StepMix mix = MixOf(model, layout,
                        std::clamp<int64_t>(num_layers, 1, model.num_layers));
    if (!all.empty() && !IsShort(mix)) break;
    all.push_back(std::move(mix));
  }
  if (all.size() <= kMaxMixes) return all;
  std::vector<StepMix> spread;
  for (size_t i = 0; i < kMaxMixes; ++i) {
    spread.push_back(std::move(all[i * (all.size() - 1) / (kMaxMixes - 1)]));
  }
  return spread;
}

size_t ClosestMix(std::span<const StepMix> mixes, int32_t micro_batch) {
  CHECK(!mixes.empty());
  const auto distance = [&](const StepMix& mix) {
    return std::abs(
        std::log(static_cast<double>(mix.micro_batch) / micro_batch));
  };
  size_t closest = 0;
  for (size_t i = 1; i < mixes.size(); ++i) {
    if (distance(mixes[i]) < distance(mixes[closest])) closest = i;
  }
  return closest;
}

}  // namespace millrace
