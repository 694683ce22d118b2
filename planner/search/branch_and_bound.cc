#include "planner/search/branch_and_bound.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace millrace {
namespace {

// Floors and predictions add the same terms in different orders, so rounding
// may put a floor above a prediction.
constexpr double kRounding = 1e-9;

enum class SearchStep : uint8_t { kSharding, kMesh, kOrder };

// All layouts that share the choices made up to `step`. A mesh stands for
// meshes with fewer replicas too.
struct Node {
  double floor_s;
  int64_t serial;        // In the order of creation.
  size_t layout_idx;     // In OpenNodes: the queue moves nodes often.
  int32_t replicas_idx;  // A mesh's index in LayoutTree::Replicas().
  SearchStep step;
};

// The lowest floor first. Among equals, nodes nearer to a layout go first, then
// older ones.
struct LaterNode {
  bool operator()(const Node& a, const Node& b) const {
    const auto key = [](const Node& node) {
      return std::make_tuple(node.floor_s, -static_cast<int>(node.step),
                             node.serial);
    };
    return key(a) > key(b);
  }
};

// Nodes to be looked at, the first of LaterNode's order next.
class OpenNodes {
 public:
  bool empty() const { return queue_.empty(); }
  double least_floor_s() const { return queue_.top().floor_s; }

  void Push(double floor_s, SearchStep step, const Layout& layout,
            int32_t replicas_idx) {
    size_t idx = layouts_.size();
    if (free_.empty()) {
      layouts_.push_back(layout);
    } else {
      idx = free_.back();
      free_.pop_back();
      layouts_[idx] = layout;
    }
    queue_.push({.floor_s = floor_s,
                 .serial = ++num_pushed_,
                 .layout_idx = idx,
                 .replicas_idx = replicas_idx,
                 .step = step});
  }

  Node Pop(Layout* layout) {
    const Node node = queue_.top();
    queue_.pop();
    *layout = layouts_[node.layout_idx];
    free_.push_back(node.layout_idx);
    return node;
  }

 private:
  std::priority_queue<Node, std::vector<Node>, LaterNode> queue_;
  std::vector<Layout> layouts_;
  std::vector<size_t> free_;  // Unused indices of layouts_.
  int64_t num_pushed_ = 0;
};

auto SimplicityKey(const Layout& layout) {
  return std::make_tuple(layout.num_ranks(), layout.tensor, layout.context,
                         layout.expert, layout.expert_tensor, layout.pipeline,
                         layout.interleave, layout.zero, layout.data_groups,
                         layout.recompute, layout.recompute_by_stage,
                         layout.schedule, layout.most_microbatches(),
                         layout.extra_microbatches, layout.gradient_reduction);
}

bool IsFasterLayout(const RankedLayout& a, const RankedLayout& b) {
  const double a_s = a.prediction.time.step_time_s();
  const double b_s = b.prediction.time.step_time_s();
  if (a_s != b_s) return a_s < b_s;
  return SimplicityKey(a.layout) < SimplicityKey(b.layout);
}

// Whether two shardings cut layers alike.
bool DifferInMicroBatch(Layout a, const Layout& b) {
  a.micro_batch = b.micro_batch;
  a.num_microbatches = b.num_microbatches;
  a.extra_microbatches = b.extra_microbatches;
  return a == b;
}

class BranchAndBound {
 public:
  BranchAndBound(const LayoutTree& tree, int64_t memory_limit,
                 const SearchLimits& limits, LayoutEvaluator& evaluator)
      : tree_(tree),
        memory_limit_(memory_limit),
        limits_(limits),
        evaluator_(evaluator),
        slowest_kept_s_(limits.slowest_s) {}

  FastestLayouts Run() {
    PushShardings();
    Layout layout;
    while (!open_.empty() && !IsTooSlow(open_.least_floor_s())) {
      if (result_.layouts_considered >= limits_.num_predictions ||
          limits_.stop.stop_requested()) {
        result_.exhausted = true;
        break;
      }
      const Node node = open_.Pop(&layout);
      switch (node.step) {
        case SearchStep::kSharding:
          PushMeshes(layout);
          break;
        case SearchStep::kMesh:
          PushOrders(node, layout);
          break;
        case SearchStep::kOrder:
          PriceVariants(layout);
          break;
      }
    }
    if (result_.exhausted) result_.floor_s = open_.least_floor_s();
    if (!result_.best.empty()) {
      const double best_s = result_.best.front().prediction.time.step_time_s();
      result_.floor_s = std::min(result_.floor_s, best_s);
      result_.optimality_gap = best_s / result_.floor_s - 1;
    }
    return std::move(result_);
  }

 private:
  // Whether nothing above `floor_s` is wanted.
  bool IsTooSlow(double floor_s) const {
    return floor_s * (1 - kRounding) > slowest_kept_s_;
  }

  void Push(double floor_s, SearchStep step, const Layout& layout,
            int32_t replicas_idx = 0) {
    if (!IsTooSlow(floor_s)) open_.Push(floor_s, step, layout, replicas_idx);
  }

  void PushShardings() {
    const std::vector<Layout> shardings = tree_.Shardings();
    for (auto cut = shardings.begin(); cut != shardings.end();) {
      const auto next = std::find_if(
          cut, shardings.end(),
          [&](const Layout& s) { return !DifferInMicroBatch(*cut, s); });
      // Larger micro-batches of the same cut need no less.
      const auto too_large =
          std::partition_point(cut, next, [&](const Layout& sharding) {
            return evaluator_.ShardingMemoryFloor(sharding) <= memory_limit_;
          });
      for (; cut != too_large; ++cut) {
        // As if all devices were always busy.
        const double groups = static_cast<double>(tree_.space().num_devices /
                                                  (cut->tensor * cut->context));
        Push(PassesPerStep(*cut) * evaluator_.PassFloor(*cut) / groups,
             SearchStep::kSharding, *cut);
      }
      cut = next;
    }
  }

  // Passes of a step over all replicas.
  double PassesPerStep(const Layout& layout) const {
    return static_cast<double>(tree_.space().global_batch) / layout.micro_batch;
  }

  void PushMeshes(const Layout& sharding) {
    const double pass_s = evaluator_.PassFloor(sharding);
    for (const int32_t pipeline : tree_.Pipelines(sharding)) {
      const std::vector<int32_t> replicas = tree_.Replicas(sharding, pipeline);
      if (replicas.empty()) continue;
      const Layout mesh = tree_.Mesh(sharding, pipeline, replicas.front());
      // The slowest stage takes the mean at least.
      Push(mesh.most_microbatches() * pass_s / pipeline, SearchStep::kMesh,
           mesh);
    }
  }

  void PushOrders(const Node& node, const Layout& mesh) {
    const bool is_too_slow = IsTooSlow(evaluator_.MeshFloor(mesh));
    // Fewer replicas need no less.
    if (!is_too_slow && evaluator_.MeshMemoryFloor(mesh) > memory_limit_) {
      return;
    }
    const std::vector<int32_t> replicas = tree_.Replicas(mesh, mesh.pipeline);
    const auto next = static_cast<size_t>(node.replicas_idx) + 1;
    if (next < replicas.size()) {
      const Layout fewer = tree_.Mesh(mesh, mesh.pipeline, replicas[next]);
      Push(fewer.most_microbatches() * evaluator_.PassFloor(mesh) /
               mesh.pipeline,
           SearchStep::kMesh, fewer, static_cast<int32_t>(next));
    }
    if (is_too_slow) return;
    for (const Layout& order : tree_.Orders(mesh)) {
      Push(std::max(node.floor_s, evaluator_.OrderFloor(order)),
           SearchStep::kOrder, order);
    }
  }

  void PriceVariants(const Layout& order) {
    if (evaluator_.OrderMemoryFloor(order) > memory_limit_) return;
    // The fastest of those variants of one sharding of the state that fit, and
    // the ops that the first of them recomputes.
    double fitting_s = std::numeric_limits<double>::infinity();
    bool fits = false;
    Recompute fitting = Recompute::kNone;  // Where it fits.
    int32_t zero = -1, data_groups = -1;
    auto reduction = GradientReduction::kFloat32;
    for (const Layout& variant : tree_.Variants(order)) {
      const bool is_first = variant.zero != zero ||
                            variant.data_groups != data_groups ||
                            variant.gradient_reduction != reduction;
      if (is_first) {
        zero = variant.zero;
        data_groups = variant.data_groups;
        reduction = variant.gradient_reduction;
        fitting_s = std::numeric_limits<double>::infinity();
        fits = false;
      }
      // Recomputing more is dominated by recomputing less, if that fits and is
      // no slower. With zero bubble, recomputing more may make another stage
      // the slowest, and the step faster.
      if (fits && Has(variant.recompute, fitting) &&
          variant.recompute_by_stage.empty() &&
          variant.schedule != Schedule::kZeroBubble) {
        continue;
      }
      const double floor_s = evaluator_.VariantFloor(variant);
      if (floor_s >= fitting_s || IsTooSlow(floor_s)) continue;
      if (Price(variant, &fitting_s)) {
        if (!fits && variant.recompute_by_stage.empty()) {
          fits = true;
          fitting = variant.recompute;
        }
        continue;
      }
      if (!is_first) continue;
      // A variant that does not fit may fit if some stages recompute more.
      const std::optional<Layout> fitted =
          evaluator_.FitRecompute(variant, memory_limit_);
      if (fitted.has_value()) Price(*fitted, &fitting_s);
    }
  }

  // Whether it fits; `fitting_s` is then no more than its step time.
  bool Price(const Layout& variant, double* fitting_s) {
    ++result_.layouts_considered;
    // Most do not fit, and memory is told sooner than time.
    if (evaluator_.PredictMemory(variant) > memory_limit_) return false;
    const StepPrediction prediction = evaluator_.Predict(variant);
    *fitting_s = std::min(*fitting_s, prediction.time.step_time_s());
    Keep({.layout = variant, .prediction = prediction});
    return true;
  }

  void Keep(const RankedLayout& ranked) {
    if (ranked.prediction.time.step_time_s() > slowest_kept_s_) return;
    std::vector<RankedLayout>& best = result_.best;
    best.insert(
        std::upper_bound(best.begin(), best.end(), ranked, IsFasterLayout),
        ranked);
    if (best.size() > static_cast<size_t>(limits_.num_kept)) best.pop_back();
    if (best.size() == static_cast<size_t>(limits_.num_kept)) {
      slowest_kept_s_ = best.back().prediction.time.step_time_s();
    }
  }

  const LayoutTree& tree_;
  const int64_t memory_limit_;
  const SearchLimits limits_;
  LayoutEvaluator& evaluator_;
  OpenNodes open_;
  double slowest_kept_s_;  // Slower layouts are not wanted.
  FastestLayouts result_;
};

}  // namespace

FastestLayouts FindFastestLayouts(const LayoutTree& tree, int64_t memory_limit,
                                  const SearchLimits& limits,
                                  LayoutEvaluator& evaluator) {
  return BranchAndBound(tree, memory_limit, limits, evaluator).Run();
}

namespace {

// Calls `visit`, until it returns false, with the meshes that can need the
// least memory: those of the smallest micro-batch of each cut. Cuts with the
// lowest floor come first. Skips meshes whose floor exceeds `most()` bytes.
// Ends early once a stop is requested.
template <typename Most, typename Visit>
void VisitSmallMeshes(const LayoutTree& tree, LayoutEvaluator& evaluator,
                      const std::stop_token& stop, const Most& most,
                      const Visit& visit) {
  // A cut with its stages and the most replicas: fewer need no less.
  struct Start {
    int64_t floor;
    Layout mesh;
  };
  std::vector<Start> starts;
  const std::vector<Layout> shardings = tree.Shardings();
  for (size_t i = 0; i < shardings.size(); ++i) {
    if (stop.stop_requested()) return;
    const Layout& sharding = shardings[i];
    // Larger micro-batches of the same cut need no less.
    if ((i > 0 && DifferInMicroBatch(shardings[i - 1], sharding)) ||
        evaluator.ShardingMemoryFloor(sharding) > most()) {
      continue;
    }
    for (const int32_t pipeline : tree.Pipelines(sharding)) {
      const std::vector<int32_t> replicas = tree.Replicas(sharding, pipeline);
      if (replicas.empty()) continue;
      const Layout mesh = tree.Mesh(sharding, pipeline, replicas.front());
      const int64_t floor = evaluator.MeshMemoryFloor(mesh);
      if (floor <= most()) starts.push_back({floor, mesh});
    }
  }
  std::stable_sort(
      starts.begin(), starts.end(),
      [](const Start& a, const Start& b) { return a.floor < b.floor; });
  for (const auto& [floor, mesh] : starts) {
    if (floor > most()) return;
    for (const int32_t data : tree.Replicas(mesh, mesh.pipeline)) {
      if (stop.stop_requested()) return;
      const Layout fewer = tree.Mesh(mesh, mesh.pipeline, data);
      if (evaluator.MeshMemoryFloor(fewer) > most()) break;
      if (!visit(fewer)) return;
    }
  }
}

}  // namespace

std::optional<RankedLayout> FindSmallestLayout(const LayoutTree& tree,
                                               LayoutEvaluator& evaluator,
                                               const std::stop_token& stop) {
  std::optional<RankedLayout> smallest;
  const auto most = [&] {
    return smallest.has_value() ? smallest->prediction.memory.total()
                                : std::numeric_limits<int64_t>::max();
  };
  VisitSmallMeshes(tree, evaluator, stop, most, [&](const Layout& mesh) {
    for (const Layout& order : tree.Orders(mesh)) {
      for (const Layout& variant : tree.Variants(order)) {
        if (evaluator.PredictMemory(variant) > most()) continue;
        const RankedLayout ranked = {.layout = variant,
                                     .prediction = evaluator.Predict(variant)};
        const int64_t bytes = ranked.prediction.memory.total();
        if (!smallest.has_value() || bytes < most() ||
            (bytes == most() && IsFasterLayout(ranked, *smallest))) {
          smallest = ranked;
        }
      }
    }
    return true;
  });
  return smallest;
}

bool AnyLayoutFits(const LayoutTree& tree, int64_t memory_limit,
                   LayoutEvaluator& evaluator, const std::stop_token& stop) {
  bool fits = false;
  const auto most = [&] { return memory_limit; };
  VisitSmallMeshes(tree, evaluator, stop, most, [&](const Layout& mesh) {
    for (const Layout& order : tree.Orders(mesh)) {
      for (const Layout& variant : tree.Variants(order)) {
        fits |= evaluator.PredictMemory(variant) <= memory_limit;
      }
    }
    return !fits;
  });
  return fits;
}

}  // namespace millrace
