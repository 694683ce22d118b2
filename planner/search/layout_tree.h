// The space of layouts as a tree, axis by axis, that
// planner/search/branch_and_bound.h walks.

#ifndef MILLRACE_PLANNER_SEARCH_LAYOUT_TREE_H_
#define MILLRACE_PLANNER_SEARCH_LAYOUT_TREE_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"

namespace millrace {

// A layout is chosen in four steps, each of which leaves the later fields at
// their defaults. A sharding says how a layer is cut and how many sequences it
// sees at once. A mesh adds stages and replicas, an order the schedule of the
// passes. A variant adds what replicas shard and what is recomputed. Not all
// combinations are possible: ask Allows() of each variant.
//
// A layout may leave devices idle, since batch, layers and heads rarely divide
// as the devices do; layout.devices forbids that.
class LayoutTree {
 public:
  // Leaves out layouts whose step has more than `most_microbatches`.
  explicit LayoutTree(
      LayoutSpace space,
      int64_t most_microbatches = std::numeric_limits<int64_t>::max());

  const LayoutSpace& space() const { return space_; }

  // The values of tensor, context, expert, expert_tensor and micro_batch;
  // precision and format are the job's. Among equal others, smaller
  // micro-batches come first; the first divides the others.
  std::vector<Layout> Shardings() const;
  // Numbers of stages that leave room for at least one replica.
  std::vector<int32_t> Pipelines(const Layout& sharding) const;
  // Numbers of replicas that there are devices and sequences for, the most
  // first. Those that share the batch unevenly are more than those that share
  // it evenly, and no more than the longest share needs unless the job asks for
  // so many. Where a smaller micro-batch would make the shares even, they are
  // left out.
  std::vector<int32_t> Replicas(const Layout& sharding, int32_t pipeline) const;
  Layout Mesh(const Layout& sharding, int32_t pipeline, int32_t data) const;
  // Whether the job asks for list scheduling. Orders are then those that it
  // starts from, which defer no weight gradients.
  bool ListsPasses() const;
  // schedule and interleave.
  std::vector<Layout> Orders(const Layout& mesh) const;
  // zero, data_groups, gradient_reduction and recompute, in this order, the
  // least first. Unless the job asks for groups, they are one, or one a node
  // where the data axis spans nodes. Unless the job says in what gradients are
  // reduced, it is fp32, or bf16 for what crosses nodes alone.
  std::vector<Layout> Variants(const Layout& order) const;
  bool Allows(const Layout& variant) const;

 private:
  // The uneven part of Replicas(): more than `most_even`.
  std::vector<int32_t> UnevenReplicas(const Layout& sharding, int32_t pipeline,
                                      int64_t most_even) const;
  bool AllowsReplicas(const Layout& sharding, int32_t pipeline,
                      int64_t data) const;
  // expert and expert_tensor.
  std::vector<Layout> WithExperts(const Layout& cut) const;
  std::vector<int32_t> DataGroups(const Layout& order) const;
  std::vector<GradientReduction> Reductions(const Layout& order,
                                            int32_t groups) const;

  LayoutSpace space_;
  int64_t most_microbatches_;            // In a step.
  std::vector<int32_t> batch_divisors_;  // Ascending.
};

bool HasLayout(const LayoutTree& space);

// For a space without layouts: InvalidArgument with the keys that contradict
// each other and a change that helps.
absl::Status ExplainEmptyTree(const LayoutTree& space);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_LAYOUT_TREE_H_
