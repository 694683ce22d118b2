// The layouts that may be planned on a cluster, whether workers can execute
// them yet or not, axis by axis: what planner/search/branch_and_bound.h walks.

#ifndef MILLRACE_PLANNER_SEARCH_ALL_AXES_SPACE_H_
#define MILLRACE_PLANNER_SEARCH_ALL_AXES_SPACE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/layout_space.h"
#include "planner/layout/layout.h"

namespace millrace {

// A layout is chosen in four steps, each of which leaves the later fields at
// their defaults: a sharding says how a layer is cut and how many sequences it
// sees at once; a mesh adds stages and replicas; an order the schedule of
// passes; a variant what is sharded over replicas and what is computed again.
// Not all combinations are possible: ask Allows() of each variant.
//
// A layout may leave devices idle, since batch, layers and heads rarely divide
// as the devices do; layout.devices forbids that.
class PlannedSpace {
 public:
  explicit PlannedSpace(LayoutSpace space);

  const LayoutSpace& space() const { return space_; }

  // tensor, context, expert, expert_tensor and micro_batch; precision and
  // format as the job says. Of equal others, smaller micro-batches first; the
  // first divides the others.
  std::vector<Layout> Shardings() const;
  // Stages that leave room for a replica at least.
  std::vector<int32_t> Pipelines(const Layout& sharding) const;
  // Replicas there is room and batch for, the most first.
  std::vector<int32_t> Replicas(const Layout& sharding, int32_t pipeline) const;
  Layout Mesh(const Layout& sharding, int32_t pipeline, int32_t data) const;
  // Whether the job asks for list scheduling: orders are then those it starts
  // from, which put nothing off.
  bool ListsPasses() const;
  // schedule and interleave.
  std::vector<Layout> Orders(const Layout& mesh) const;
  // zero and recompute, by ZeRO stage and then by what is computed again.
  std::vector<Layout> Variants(const Layout& order) const;
  bool Allows(const Layout& variant) const;

 private:
  // expert and expert_tensor.
  std::vector<Layout> WithExperts(const Layout& cut) const;

  LayoutSpace space_;
  std::vector<int32_t> batch_divisors_;  // Ascending.
};

bool HasPlannedLayout(const PlannedSpace& space);

// For a space without layouts: InvalidArgument with the keys that contradict
// each other and a change that helps.
absl::Status ExplainNoPlannedLayout(const PlannedSpace& space);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_ALL_AXES_SPACE_H_
