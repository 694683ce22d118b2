// A model of steps that is nothing but random, within what bounds promise.

#ifndef MILLRACE_TESTS_PLANNER_RANDOM_EVALUATOR_H_
#define MILLRACE_TESTS_PLANNER_RANDOM_EVALUATOR_H_

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "planner/search/branch_and_bound.h"

namespace millrace {

class RandomEvaluator : public LayoutEvaluator {
 public:
  explicit RandomEvaluator(uint64_t seed) : seed_(seed) {}

  StepPrediction Predict(const Layout& layout) override {
    StepPrediction prediction;
    StepTime& time = prediction.time;
    time.compute_s = MeshFloor(layout);
    time.bubble_s = BubbleSeconds(layout);
    time.recompute_s = time.compute_s * RecomputeShare(layout);
    time.exposed_data_s = time.compute_s * 0.1 *
                          Random({4, layout.pipeline, layout.data,
                                  layout.tensor, layout.context, layout.zero});
    StepMemory& memory = prediction.memory;
    const double states = StateBytes(layout);
    memory.parameters =
        static_cast<int64_t>(layout.zero >= 3 ? states / layout.data : states);
    memory.gradients = static_cast<int64_t>(
        layout.zero >= 2 ? 2 * states / layout.data : 2 * states);
    memory.optimizer = static_cast<int64_t>(
        layout.zero >= 1 ? 6 * states / layout.data : 6 * states);
    const double kept = layout.recompute == Recompute::kNone    ? 1.0
                        : layout.recompute == Recompute::kCheap ? 0.7
                                                                : 0.2;
    memory.activations = static_cast<int64_t>(
        kept * MicroBatchBytes(layout) *
        (1 + Random({5, layout.pipeline, layout.interleave})));
    return prediction;
  }

  std::optional<Layout> FitRecompute(const Layout&, int64_t) override {
    return std::nullopt;  // Knows no stages.
  }
  double PassFloor(const Layout& sharding) override {
    return sharding.micro_batch *
           (1 + Random({1, sharding.tensor, sharding.context, sharding.expert,
                        sharding.expert_tensor, sharding.micro_batch})) /
           (sharding.tensor * sharding.context);
  }
  double MeshFloor(const Layout& mesh) override {
    return mesh.most_microbatches() * PassFloor(mesh) / mesh.pipeline *
           (1 + 0.2 * Random({2, mesh.pipeline, mesh.data, mesh.tensor,
                              mesh.context}));
  }
  double OrderFloor(const Layout& order) override {
    return MeshFloor(order) + BubbleSeconds(order);
  }
  double VariantFloor(const Layout& variant) override {
    return OrderFloor(variant) + MeshFloor(variant) * RecomputeShare(variant);
  }
  int64_t ShardingMemoryFloor(const Layout& sharding) override {
    return static_cast<int64_t>(0.2 * MicroBatchBytes(sharding));
  }
  int64_t MeshMemoryFloor(const Layout& mesh) override {
    return static_cast<int64_t>(9 * StateBytes(mesh) / mesh.data) - 3 +
           ShardingMemoryFloor(mesh);
  }

 private:
  // In [0, 1), the same for the same numbers.
  double Random(std::initializer_list<int64_t> numbers) const {
    uint64_t state = seed_ * 0x9E3779B97F4A7C15u + 1;
    for (const int64_t number : numbers) {
      state ^= static_cast<uint64_t>(number) + 0x9E3779B97F4A7C15u;
      // splitmix64 (Steele et al., 2014).
      state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
      state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
      state ^= state >> 31;
    }
    return static_cast<double>(state >> 11) * 0x1.0p-53;
  }

  double BubbleSeconds(const Layout& order) const {
    const double stage_s = order.micro_batch / 1.0 /
                           (order.tensor * order.context * order.pipeline);
    return (order.pipeline - 1) * stage_s / order.interleave *
           (order.schedule == Schedule::kZeroBubble ? 0.4 : 1.0) *
           (1 + 0.1 * Random({3, order.pipeline, order.interleave,
                              static_cast<int64_t>(order.schedule)}));
  }

  static double RecomputeShare(const Layout& layout) {
    return layout.recompute == Recompute::kNone    ? 0.0
           : layout.recompute == Recompute::kCheap ? 0.03
                                                   : 0.3;
  }

  static double StateBytes(const Layout& layout) {
    return 1e6 / (layout.pipeline * layout.tensor);
  }
  double MicroBatchBytes(const Layout& layout) const {
    return 1e6 * layout.micro_batch / (layout.tensor * layout.context) *
           (1 + 0.3 * Random({6, layout.tensor, layout.context}));
  }

  const uint64_t seed_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_RANDOM_EVALUATOR_H_
