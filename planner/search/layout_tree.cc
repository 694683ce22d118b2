#include "planner/search/layout_tree.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "planner/cost/layer_work.h"

namespace millrace {
namespace {

bool Permits(const std::optional<int32_t>& pinned, int64_t value) {
  return !pinned.has_value() || *pinned == value;
}

int64_t CeilingOf(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

Layout WithMicroBatch(Layout layout, int32_t micro_batch) {
  layout.micro_batch = micro_batch;
  return layout;
}

int64_t RanksOfReplica(const Layout& sharding, int32_t pipeline) {
  return int64_t{sharding.tensor} * sharding.context * pipeline;
}

// Ranks of a stage that share the experts of each layer, given the replicas.
int64_t RanksForExperts(const Layout& layout, int32_t data) {
  return int64_t{data} * layout.context * layout.tensor / layout.expert_tensor;
}

}  // namespace

LayoutTree::LayoutTree(LayoutSpace space, int64_t most_microbatches)
    : space_(std::move(space)),
      most_microbatches_(most_microbatches),
      batch_divisors_(DivisorsOf(space_.global_batch)) {}

std::vector<Layout> LayoutTree::Shardings() const {
  const ModelSpec& model = space_.model;
  const LayoutConstraints& pinned = space_.constraints;
  const auto allows = [&](const Layout& layout) {
    return ValidatePlannedLayout(model, layout, space_.global_batch).ok();
  };
  // Whether the model can be cut so at all shows at the largest micro-batch,
  // which divides best.
  Layout base{.precision = space_.precision,
              .gradient_reduction = space_.gradient_reduction.value_or(
                  GradientReduction::kFloat32),
              .moments = space_.moments,
              .objective = space_.objective,
              .document_length = space_.document_length,
              .gemm_format = space_.gemm_format};
  base.micro_batch = static_cast<int32_t>(space_.global_batch);

  std::vector<Layout> shardings;
  const int64_t most_tensor =
      std::min<int64_t>(space_.num_devices, model.num_heads);
  for (int32_t tensor = 1; tensor <= most_tensor; ++tensor) {
    const int64_t room = space_.num_devices / tensor;
    if (!Permits(pinned.tensor, tensor) || room < 1) continue;
    Layout cut = base;
    cut.tensor = tensor;
    if (!allows(cut)) continue;
    for (int32_t context = 1; context <= std::min(room, model.sequence_length);
         ++context) {
      if (!Permits(pinned.context, context) ||
          model.sequence_length % context != 0) {
        continue;
      }
      cut.context = context;
      if (!allows(cut)) continue;
      std::vector<int32_t> micro_batches;
      for (const int32_t micro_batch : batch_divisors_) {
        if (!Permits(pinned.micro_batch, micro_batch)) continue;
        // Tensor ranks may be unable to share the tokens of a small one.
        const Layout plain = Mesh(WithMicroBatch(cut, micro_batch), 1, 1);
        if (allows(plain)) micro_batches.push_back(micro_batch);
      }
      for (const Layout& experts : WithExperts(cut)) {
        for (const int32_t micro_batch : micro_batches) {
          shardings.push_back(Mesh(WithMicroBatch(experts, micro_batch), 1, 1));
        }
      }
    }
  }
  return shardings;
}

std::vector<Layout> LayoutTree::WithExperts(const Layout& cut) const {
  const LayoutConstraints& pinned = space_.constraints;
  if (space_.model.moe.num_experts == 0) {
    // A pinned size is then a mistake, which no layout answers.
    if (!Permits(pinned.expert, 1) || !Permits(pinned.expert_tensor, 1)) {
      return {};
    }
    return {cut};
  }
  const int64_t devices = space_.num_devices;
  std::vector<Layout> layouts;
  for (const int32_t expert : DivisorsOf(space_.model.moe.num_experts)) {
    if (!Permits(pinned.expert, expert)) continue;
    for (const int32_t expert_tensor : {1, cut.tensor}) {
      if (!Permits(pinned.expert_tensor, expert_tensor)) continue;
      // One stage of all devices could not hold a replica of the experts.
      if (int64_t{expert} * expert_tensor > devices) continue;
      Layout layout = cut;
      layout.expert = expert;
      layout.expert_tensor = expert_tensor;
      layouts.push_back(layout);
      if (cut.tensor == 1) break;
    }
  }
  return layouts;
}

bool LayoutTree::ListsPasses() const {
  return space_.constraints.schedule == ScheduleName(Schedule::kListScheduled);
}

std::vector<int32_t> LayoutTree::Pipelines(const Layout& sharding) const {
  const int64_t room =
      space_.num_devices / (int64_t{sharding.tensor} * sharding.context);
  std::vector<int32_t> pipelines;
  for (int32_t pipeline = 1;
       pipeline <= std::min(room, space_.model.num_layers); ++pipeline) {
    if (Permits(space_.constraints.pipeline, pipeline)) {
      pipelines.push_back(pipeline);
    }
  }
  return pipelines;
}

std::vector<int32_t> LayoutTree::Replicas(const Layout& sharding,
                                          int32_t pipeline) const {
  const int64_t sequences = space_.global_batch / sharding.micro_batch;
  const int64_t room = space_.num_devices / RanksOfReplica(sharding, pipeline);
  std::vector<int32_t> even;
  for (auto data = batch_divisors_.rbegin(); data != batch_divisors_.rend();
       ++data) {
    if (*data <= room && sequences % *data == 0 &&
        AllowsReplicas(sharding, pipeline, *data)) {
      even.push_back(*data);
    }
  }
  std::vector<int32_t> replicas =
      UnevenReplicas(sharding, pipeline, even.empty() ? 0 : even.front());
  replicas.insert(replicas.end(), even.begin(), even.end());
  return replicas;
}

std::vector<int32_t> LayoutTree::UnevenReplicas(const Layout& sharding,
                                                int32_t pipeline,
                                                int64_t most_even) const {
  std::vector<int32_t> replicas;
  const LayoutConstraints& pinned = space_.constraints;
  if (sharding.expert > 1 || pinned.zero.value_or(0) > kMostUnevenZero) {
    return replicas;
  }
  const int64_t ranks = RanksOfReplica(sharding, pipeline);
  const int64_t sequences = space_.global_batch / sharding.micro_batch;
  // The job may ask for a number, or for so many at least.
  const int64_t exactly = std::max<int64_t>(pinned.data.value_or(0),
                                            pinned.devices.value_or(0) / ranks);
  const int64_t asked_for =
      std::max(exactly, CeilingOf(space_.least_devices, ranks));
  int64_t data = std::min(sequences, space_.num_devices / ranks);
  if (exactly > 0) data = std::min(data, exactly);
  for (; data >= std::max(asked_for, most_even + 1); --data) {
    // The fewest that leave the longest share as it is.
    data =
        std::max(asked_for, CeilingOf(sequences, CeilingOf(sequences, data)));
    if (data <= most_even) break;
    const bool has_even_cut =
        space_.global_batch % data == 0 && !pinned.micro_batch.has_value();
    if (sequences % data != 0 && !has_even_cut &&
        AllowsReplicas(sharding, pipeline, data)) {
      replicas.push_back(static_cast<int32_t>(data));
    }
  }
  return replicas;
}

bool LayoutTree::AllowsReplicas(const Layout& sharding, int32_t pipeline,
                                int64_t data) const {
  const int64_t ranks = RanksOfReplica(sharding, pipeline) * data;
  const int64_t sequences = space_.global_batch / sharding.micro_batch;
  return CeilingOf(sequences, data) <= most_microbatches_ &&
         Permits(space_.constraints.data, data) &&
         Permits(space_.constraints.devices, ranks) &&
         ranks >= space_.least_devices &&
         RanksForExperts(sharding, static_cast<int32_t>(data)) %
                 sharding.expert ==
             0;
}

Layout LayoutTree::Mesh(const Layout& sharding, int32_t pipeline,
                        int32_t data) const {
  Layout mesh = sharding;
  mesh.pipeline = pipeline;
  mesh.data = data;
  mesh.ShareBatch(space_.global_batch);
  return mesh;
}

std::vector<Layout> LayoutTree::Orders(const Layout& mesh) const {
  const LayoutConstraints& pinned = space_.constraints;
  std::vector<Layout> orders;
  if (ListsPasses() && mesh.pipeline == 1) return orders;
  const auto add = [&](Schedule schedule, int32_t interleave) {
    const bool is_allowed = ListsPasses()
                                ? schedule != Schedule::kZeroBubble
                                : pinned.schedule == "auto" ||
                                      pinned.schedule == ScheduleName(schedule);
    if (!is_allowed || !Permits(pinned.interleave, interleave)) return;
    Layout order = mesh;
    order.schedule = schedule;
    order.interleave = interleave;
    if (Allows(order)) orders.push_back(order);
  };
  add(Schedule::kOneForwardOneBackward, 1);
  if (mesh.pipeline == 1) return orders;
  add(Schedule::kZeroBubble, 1);
  const auto chunks =
      static_cast<int32_t>(space_.model.num_layers / mesh.pipeline);
  for (int32_t interleave = 2; interleave <= chunks; ++interleave) {
    add(Schedule::kInterleaved, interleave);
  }
  return orders;
}

std::vector<Layout> LayoutTree::Variants(const Layout& order) const {
  const LayoutConstraints& pinned = space_.constraints;
  // Experts have replicas of their own, the context axis repeats the rest.
  const bool has_replicas = order.data * order.context > 1;
  const std::vector<StageRecomputes> recomputes =
      AllowedRecomputes(space_, order);
  const std::vector<int32_t> data_groups = DataGroups(order);
  std::vector<Layout> variants;
  for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
    if (pinned.zero.has_value() ? *pinned.zero != zero
                                : zero > 0 && !has_replicas) {
      continue;
    }
    for (const int32_t groups : data_groups) {
      Layout variant = order;
      variant.zero = zero;
      variant.data_groups = groups;
      // The choices name as many stages each, so all are allowed or none.
      SetRecompute(recomputes.front(), &variant);
      if (ListsPasses() && variant.shards_gradients()) continue;
      if (!Allows(variant)) continue;
      for (const GradientReduction reduction : Reductions(order, groups)) {
        variant.gradient_reduction = reduction;
        for (const StageRecomputes& again : recomputes) {
          SetRecompute(again, &variant);
          variants.push_back(variant);
        }
      }
    }
  }
  return variants;
}

std::vector<int32_t> LayoutTree::DataGroups(const Layout& order) const {
  const std::optional<int32_t>& pinned = space_.constraints.data_groups;
  if (pinned.has_value()) return {*pinned};
  std::vector<int32_t> groups = {1};
  if (space_.model.moe.num_experts > 0) return groups;
  const int64_t stride = MeshOf(order).stride(Axis::kData);
  const int64_t on_node = space_.devices_per_node / stride;
  const auto in_group =
      static_cast<int32_t>(std::gcd<int64_t>(order.data, on_node));
  if (on_node > 1 && in_group > 1 && in_group < order.data) {
    groups.push_back(order.data / in_group);
  }
  return groups;
}

std::vector<GradientReduction> LayoutTree::Reductions(const Layout& order,
                                                      int32_t groups) const {
  if (space_.gradient_reduction.has_value()) {
    const bool has_none_across =
        *space_.gradient_reduction == GradientReduction::kBfloat16Across &&
        groups == 1;
    return {has_none_across ? GradientReduction::kFloat32
                            : *space_.gradient_reduction};
  }
  std::vector<GradientReduction> reductions = {GradientReduction::kFloat32};
  const bool has_experts = space_.model.moe.num_experts > 0;
  if (groups > 1) {
    reductions.push_back(GradientReduction::kBfloat16Across);
  } else if (order.data > 1 && order.context == 1 && !has_experts &&
             space_.devices_per_node > 0 &&
             MeshOf(order).stride(Axis::kData) % space_.devices_per_node == 0) {
    // Each replica is on a host of its own, so that all traffic crosses.
    reductions.push_back(GradientReduction::kBfloat16);
  }
  return reductions;
}

bool LayoutTree::Allows(const Layout& variant) const {
  return ValidatePlannedLayout(space_.model, variant, space_.global_batch).ok();
}

}  // namespace millrace
