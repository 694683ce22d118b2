#include "planner/program/copy_engines.h"

#include <variant>

#include "base/check.h"

namespace millrace {
CopyEngineUse CopyEngineUseOf(const Layout& layout) {
  // Transfers need one order of all instructions
  // (planner/lower/common_order.h), which replicas with different micro-batches
  // do not have.
  if (layout.pipeline > 1 && layout.is_uneven()) return {};
  return {.transfers = layout.pipeline > 1,
          .tensor_gathers = layout.tensor > 1,
          .tensor_reductions = layout.tensor > 1,
          .data_gathers = layout.data > 1 && layout.shards_optimizer()};
}

bool CopyEnginesCarry(const Layout& layout, OpKind kind,
                      const OpAttributes& attributes) {
  const CopyEngineUse& use = layout.copy_engines;
  if (IsTransfer(kind)) return use.transfers;
  const bool gathers = kind == OpKind::kAllGather;
  if (!gathers && kind != OpKind::kReduceScatter) return false;
  const auto& collective = std::get<CollectiveAttributes>(attributes);
  const int32_t size = GroupSize(layout, collective.group);
  if (size == 1) return false;
  if (gathers) {
    return collective.group == Group::kTensor
               ? use.tensor_gathers
               : collective.group == ShardGroup(layout) && use.data_gathers;
  }
  return collective.group == Group::kTensor && use.tensor_reductions &&
         size <= kMaxCopyEngineSum && DTypeBytes(collective.dtype) <= 4;
}

bool LiesWithinHosts(const Layout& layout, OpKind kind,
                     const OpAttributes& attributes, int32_t ranks_per_host) {
  CHECK(IsCollective(kind) || IsTransfer(kind));
  if (layout.num_ranks() <= ranks_per_host) return true;
  const Group group = IsTransfer(kind)
                          ? Group::kPipeline
                          : std::get<CollectiveAttributes>(attributes).group;
  if (GroupSize(layout, group) == 1) return true;
  // Ranks from a group's first to its last, with all that lie between.
  const int64_t span = GroupSize(layout, group) * GroupStride(layout, group);
  return ranks_per_host % span == 0;
}

}  // namespace millrace
