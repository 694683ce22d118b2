// Why a space has no layouts: the second half of layout_tree.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/cost/layer_work.h"
#include "planner/search/layout_tree.h"
#include "planner/search/search_budget.h"

namespace millrace {
namespace {

struct PinnedKey {
  const char* name;
  std::optional<int32_t> LayoutConstraints::*pinned;
};
constexpr PinnedKey kSizes[] = {
    {"tensor", &LayoutConstraints::tensor},
    {"context", &LayoutConstraints::context},
    {"pipeline", &LayoutConstraints::pipeline},
    {"data", &LayoutConstraints::data},
    {"expert", &LayoutConstraints::expert},
    {"expert_tensor", &LayoutConstraints::expert_tensor},
    {"micro_batch", &LayoutConstraints::micro_batch},
    {"interleave", &LayoutConstraints::interleave},
    {"data_groups", &LayoutConstraints::data_groups},
    {"zero", &LayoutConstraints::zero},
    {"devices", &LayoutConstraints::devices}};

// The layout of the pinned keys, the rest as small as can be.
Layout PinnedLayout(const LayoutSpace& space) {
  const LayoutConstraints& pinned = space.constraints;
  Layout layout{.pipeline = pinned.pipeline.value_or(1),
                .data = pinned.data.value_or(1),
                .data_groups = pinned.data_groups.value_or(1),
                .tensor = pinned.tensor.value_or(1),
                .context = pinned.context.value_or(1),
                .expert = pinned.expert.value_or(1),
                .expert_tensor = pinned.expert_tensor.value_or(1),
                .interleave = pinned.interleave.value_or(1),
                .micro_batch = pinned.micro_batch.value_or(1),
                .zero = pinned.zero.value_or(0),
                .precision = space.precision,
                .moments = space.moments,
                .gemm_format = space.gemm_format};
  if (pinned.schedule != "auto") {
    layout.schedule = ScheduleOf(pinned.schedule);
  } else if (layout.interleave > 1) {
    layout.schedule = Schedule::kInterleaved;
  }
  if (layout.schedule == Schedule::kInterleaved && !pinned.interleave) {
    layout.interleave = 2;
  }
  if (pinned.recompute != "auto") SetRecompute(pinned.recompute, &layout);
  if (!layout.recompute_by_stage.empty() && !pinned.pipeline) {
    layout.pipeline = static_cast<int32_t>(layout.recompute_by_stage.size());
  }
  // An order of stages without stages is the planner's to avoid.
  if (layout.schedule != Schedule::kOneForwardOneBackward && !pinned.pipeline) {
    layout.pipeline = std::max(layout.pipeline, 2);
  }
  // Ranks enough for the experts, of the devices there are, if the batch can
  // be shared among them.
  if (!pinned.data) {
    const int64_t ranks = int64_t{layout.expert} * layout.expert_tensor /
                          (int64_t{layout.context} * layout.tensor);
    // Groups of one rank share nothing.
    const int64_t least = layout.data_groups > 1
                              ? std::max<int64_t>(ranks, 2 * layout.data_groups)
                              : ranks;
    for (const int32_t data :
         DivisorsOf(space.global_batch / layout.micro_batch)) {
      if (data > space.num_devices) break;
      layout.data = data;
      if (data >= least && data % layout.data_groups == 0) break;
    }
  }
  layout.ShareBatch(space.global_batch);
  return layout;
}

// "layout.pipeline 4 x layout.tensor 8": what is pinned, and what other pinned
// keys make larger than one.
std::string PinnedProduct(const LayoutConstraints& pinned,
                          const Layout& layout) {
  std::vector<std::string> factors;
  auto add = [&](const char* key, const std::optional<int32_t>& asked,
                 int32_t size) {
    if (asked || size > 1) {
      factors.push_back(
          absl::StrCat("layout.", key, asked ? " " : " at least ", size));
    }
  };
  add("tensor", pinned.tensor, layout.tensor);
  add("context", pinned.context, layout.context);
  add("pipeline", pinned.pipeline, layout.pipeline);
  add("data", pinned.data, layout.data);
  return absl::StrJoin(factors, " x ");
}

std::string Obstacle(const LayoutTree& tree) {
  const LayoutSpace& space = tree.space();
  const LayoutConstraints& pinned = space.constraints;
  if (pinned.devices.value_or(1) > space.num_devices) {
    return absl::StrCat("layout.devices asks for ", *pinned.devices,
                        ", but there are ", space.num_devices);
  }
  const Layout layout = PinnedLayout(space);
  // A double, since the product of four pinned sizes may be any.
  const double ranks = static_cast<double>(layout.pipeline) * layout.data *
                       layout.tensor * layout.context;
  const std::string ranks_text = absl::StrFormat("%.0f", ranks);
  const std::string product = PinnedProduct(pinned, layout);
  if (pinned.devices.has_value() && std::fmod(*pinned.devices, ranks) != 0) {
    return absl::StrCat(product, " = ", ranks_text,
                        " devices, of which layout.devices, ", *pinned.devices,
                        ", is no multiple");
  }
  if (ranks > space.num_devices) {
    return absl::StrCat(product.empty() ? "the smallest layout" : product,
                        " takes ", ranks_text, " devices, but there are ",
                        space.num_devices);
  }
  Layout base = layout;
  if (tree.ListsPasses() && layout.pipeline > 1 && !layout.shards_gradients()) {
    base.schedule = layout.interleave > 1 ? Schedule::kInterleaved
                                          : Schedule::kOneForwardOneBackward;
  }
  const absl::Status obstacle =
      ValidatePlannedLayout(space.model, base, space.global_batch);
  if (!obstacle.ok()) return std::string(obstacle.message());
  return absl::StrCat(
      product.empty() ? "no sizes" : product + " and no sizes beside",
      " make a layout of ",
      pinned.devices.has_value()
          ? absl::StrCat(*pinned.devices, " devices (layout.devices)")
          : absl::StrCat("at most ", space.num_devices, " devices"),
      " and a global batch of ", space.global_batch);
}

// The value nearest to `value` for which `works`, the smaller of equally near
// ones.
template <typename Works>
std::optional<int64_t> NearestThatWorks(int64_t value, int64_t reach,
                                        const Works& works) {
  for (int64_t distance = 1; distance <= reach; ++distance) {
    for (const int64_t candidate : {value - distance, value + distance}) {
      if (candidate >= 1 && works(candidate)) return candidate;
    }
  }
  return std::nullopt;
}

std::vector<std::string> ChangesThatHelp(const LayoutSpace& space) {
  std::vector<std::string> changes;
  const auto works = [](const LayoutSpace& changed) {
    return HasLayout(LayoutTree(changed));
  };
  for (const PinnedKey& key : kSizes) {
    const std::optional<int32_t> pinned = space.constraints.*key.pinned;
    if (!pinned.has_value()) continue;
    LayoutSpace changed = space;
    (changed.constraints.*key.pinned).reset();
    if (!works(changed)) continue;
    const auto nearest = NearestThatWorks(
        *pinned, kSearchBudget.reach_of_changes, [&](int64_t candidate) {
          changed.constraints.*key.pinned = static_cast<int32_t>(candidate);
          return works(changed);
        });
    changes.push_back(absl::StrCat(
        "set layout.", key.name, " to ",
        nearest.has_value() ? absl::StrCat(*nearest) : std::string("auto"),
        " instead of ", *pinned));
  }
  LayoutSpace changed = space;
  changed.constraints.schedule = "auto";
  if (space.constraints.schedule != "auto" && works(changed)) {
    changes.push_back(absl::StrCat("set layout.schedule to auto instead of ",
                                   space.constraints.schedule));
  }
  changed = space;
  changed.constraints.recompute = "auto";
  if (space.constraints.recompute != "auto" && works(changed)) {
    changes.push_back(absl::StrCat("set layout.recompute to auto instead of ",
                                   space.constraints.recompute));
  }
  changed = space;
  if (const auto batch =
          NearestThatWorks(space.global_batch, kSearchBudget.reach_of_changes,
                           [&](int64_t candidate) {
                             changed.global_batch = candidate;
                             return works(changed);
                           })) {
    changes.push_back(absl::StrCat("set training.global_batch to ", *batch,
                                   " instead of ", space.global_batch));
  }
  changed = space;
  for (int64_t devices = 2 * int64_t{space.num_devices};
       devices <= kSearchBudget.reach_of_changes * space.num_devices &&
       devices < INT32_MAX;
       devices *= 2) {
    changed.num_devices = static_cast<int32_t>(devices);
    if (!works(changed)) continue;
    changes.push_back(absl::StrCat("use ", devices, " devices instead of ",
                                   space.num_devices));
    break;
  }
  return changes;
}

}  // namespace

bool HasLayout(const LayoutTree& tree) {
  for (const Layout& sharding : tree.Shardings()) {
    for (const int32_t pipeline : tree.Pipelines(sharding)) {
      for (const int32_t data : tree.Replicas(sharding, pipeline)) {
        for (const Layout& order :
             tree.Orders(tree.Mesh(sharding, pipeline, data))) {
          if (!tree.Variants(order).empty()) return true;
        }
      }
    }
  }
  return false;
}

absl::Status ExplainEmptyTree(const LayoutTree& tree) {
  const std::vector<std::string> changes = ChangesThatHelp(tree.space());
  return absl::InvalidArgumentError(absl::StrCat(
      "no layout on ", tree.space().num_devices, " devices: ", Obstacle(tree),
      changes.empty() ? "; no change of a single key helps"
                      : absl::StrCat("; smallest change: ",
                                     absl::StrJoin(changes, ", or "))));
}

}  // namespace millrace
