#include "planner/layout/mesh.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/layout/layout.h"
#include "planner/layout/layout_constraints.h"

namespace millrace {
namespace {

#define SIZE(field) &Layout::field, &LayoutConstraints::field

// In the order of short names of layouts.
constexpr LayoutSize kLayoutSizes[] = {
    {"pipeline", "pp", SIZE(pipeline), Execution::kTransfers, Axis::kPipeline,
     &MeshCoordinates::pipeline},
    {"interleave", "vp", SIZE(interleave), Execution::kNone},
    {"data", "dp", SIZE(data), Execution::kCollectives, Axis::kData,
     &MeshCoordinates::data},
    {"data_groups", "dg", SIZE(data_groups), Execution::kProgram},
    {"tensor", "tp", SIZE(tensor), Execution::kCollectives, Axis::kTensor,
     &MeshCoordinates::tensor},
    {"context", "cp", SIZE(context), Execution::kNone, Axis::kContext,
     &MeshCoordinates::context},
    {"expert", "ep", SIZE(expert), Execution::kNone, Axis::kExpert},
    {"expert_tensor", "etp", SIZE(expert_tensor), Execution::kNone},
    {"micro_batch", "mb", SIZE(micro_batch), Execution::kProgram},
};

#undef SIZE

constexpr std::array<LayoutSize, kNumAxes> RowsByAxis() {
  std::array<LayoutSize, kNumAxes> rows = {};
  for (const LayoutSize& row : kLayoutSizes) {
    if (row.axis.has_value()) rows[static_cast<size_t>(*row.axis)] = row;
  }
  return rows;
}
constexpr std::array<LayoutSize, kNumAxes> kRowsByAxis = RowsByAxis();
static_assert(std::all_of(kRowsByAxis.begin(), kRowsByAxis.end(),
                          [](const LayoutSize& row) { return row.axis; }));

constexpr Axis kPipelineInsideData[] = {Axis::kTensor, Axis::kContext,
                                        Axis::kPipeline, Axis::kData};
constexpr Axis kPipelineOutermost[] = {Axis::kTensor, Axis::kContext,
                                       Axis::kData, Axis::kPipeline};

static_assert(std::ssize(kPipelineInsideData) ==
              std::count_if(kRowsByAxis.begin(), kRowsByAxis.end(),
                            [](const LayoutSize& row) {
                              return row.coordinate != nullptr;
                            }));

// The search calls this for every layout. With the loop unrolled the table
// becomes constants, which takes half the time.
template <const auto& kOrder>
Mesh MeshInOrder(const Layout& layout) {
  Mesh mesh;
  int64_t stride = 1;
#pragma GCC unroll 8
  for (const Axis axis : kOrder) {
    const auto i = static_cast<size_t>(axis);
    mesh.sizes[i] = layout.*kRowsByAxis[i].size;
    mesh.strides[i] = stride;
    stride *= mesh.sizes[i];
  }
  const auto expert = static_cast<size_t>(Axis::kExpert);
  mesh.sizes[expert] = layout.expert;
  mesh.strides[expert] =
      mesh.stride(layout.expert_tensor > 1 ? Axis::kContext : Axis::kTensor);
  return mesh;
}

bool IsPartOfData(Group group) {
  return group == Group::kShards || group == Group::kReplicas;
}

}  // namespace

std::span<const LayoutSize> LayoutSizes() { return kLayoutSizes; }

void PinSizes(const Layout& layout, LayoutConstraints* constraints) {
  for (const LayoutSize& row : kLayoutSizes) {
    constraints->*row.pinned = layout.*row.size;
  }
}

const LayoutSize& Describe(Axis axis) {
  return kRowsByAxis[static_cast<size_t>(axis)];
}

const char* AxisName(Axis axis) { return Describe(axis).name; }

std::span<const Axis> AxesInOrder(AxisOrder order) {
  return order == AxisOrder::kPipelineOutermost ? kPipelineOutermost
                                                : kPipelineInsideData;
}

std::vector<Group> CollectiveGroups(const Layout& layout) {
  std::vector<Group> groups;
  for (const LayoutSize& row : kRowsByAxis) {
    if (row.execution != Execution::kCollectives) continue;
    // Where the data axis is cut, only the answers of a validation pass go to
    // all of it.
    if (*row.axis == Axis::kData && layout.data_groups > 1) {
      groups.insert(groups.end(), {Group::kShards, Group::kReplicas});
      if (!layout.trains_preferences()) continue;
    }
    groups.push_back(GroupOf({*row.axis}));
  }
  return groups;
}

Group ShardGroup(const Layout& layout) {
  return layout.data_groups > 1 ? Group::kShards : Group::kData;
}

// Unrolled as MeshInOrder().
int32_t Layout::num_ranks() const {
  int32_t num_ranks = 1;
#pragma GCC unroll 8
  for (const Axis axis : kPipelineInsideData) {
    num_ranks *= this->*kRowsByAxis[static_cast<size_t>(axis)].size;
  }
  return num_ranks;
}

Mesh MeshOf(const Layout& layout, AxisOrder order) {
  return order == AxisOrder::kPipelineOutermost
             ? MeshInOrder<kPipelineOutermost>(layout)
             : MeshInOrder<kPipelineInsideData>(layout);
}

std::string GroupName(Group group) {
  if (group == Group::kWorld) return "world";
  if (group == Group::kShards) return "shards";
  if (group == Group::kReplicas) return "replicas";
  std::string name;
  for (const LayoutSize& row : kRowsByAxis) {
    if (!Has(group, *row.axis)) continue;
    absl::StrAppend(&name, name.empty() ? "" : "+", row.name);
  }
  return name;
}

MeshCoordinates CoordinatesOf(const Layout& layout, Rank rank) {
  int32_t index = ToInt(rank);
  CHECK(index >= 0 && index < layout.num_ranks())
      << "rank " << index << " of " << layout.num_ranks();
  MeshCoordinates coordinates;
  for (const Axis axis : kPipelineInsideData) {
    const LayoutSize& row = Describe(axis);
    coordinates.*row.coordinate = index % (layout.*row.size);
    index /= layout.*row.size;
  }
  return coordinates;
}

Rank RankOf(const Layout& layout, MeshCoordinates coordinates) {
  int32_t index = 0, stride = 1;
  for (const Axis axis : kPipelineInsideData) {
    const LayoutSize& row = Describe(axis);
    index += stride * (coordinates.*row.coordinate);
    stride *= layout.*row.size;
  }
  return Rank{index};
}

std::vector<Rank> GroupMembers(const Layout& layout, Group group, Rank rank) {
  const Mesh mesh = MeshOf(layout);
  MeshCoordinates first = CoordinatesOf(layout, rank);
  if (IsPartOfData(group)) {
    const bool is_inside = group == Group::kShards;
    first.data = is_inside ? layout.group_of(first.data) * layout.group_data()
                           : layout.slice_of(first.data);
    const int32_t base = ToInt(RankOf(layout, first));
    const int64_t stride = GroupStride(layout, group);
    std::vector<Rank> members;
    for (int32_t i = 0; i < GroupSize(layout, group); ++i) {
      members.push_back(Rank{static_cast<int32_t>(base + i * stride)});
    }
    return members;
  }
  for (const Axis axis : kPipelineInsideData) {
    if (Has(group, axis)) first.*Describe(axis).coordinate = 0;
  }
  std::vector<Rank> members = {RankOf(layout, first)};
  for (const Axis axis : kPipelineInsideData) {
    if (!Has(group, axis)) continue;
    const size_t num_inner = members.size();
    for (size_t i = num_inner; i < num_inner * mesh.size(axis); ++i) {
      members.push_back(Rank{static_cast<int32_t>(
          ToInt(members[i - num_inner]) + mesh.stride(axis))});
    }
  }
  return members;
}

int32_t GroupSize(const Layout& layout, Group group) {
  if (group == Group::kShards) return layout.group_data();
  if (group == Group::kReplicas) return layout.data_groups;
  int32_t size = 1;
  for (const Axis axis : kPipelineInsideData) {
    if (Has(group, axis)) size *= layout.*Describe(axis).size;
  }
  return size;
}

int32_t GroupIndex(const Layout& layout, Group group, Rank rank) {
  const std::vector<Rank> members = GroupMembers(layout, group, rank);
  return static_cast<int32_t>(
      std::lower_bound(members.begin(), members.end(), rank) - members.begin());
}

int64_t GroupStride(const Layout& layout, Group group) {
  const Mesh mesh = MeshOf(layout);
  if (IsPartOfData(group)) {
    return mesh.stride(Axis::kData) *
           (group == Group::kReplicas ? layout.group_data() : 1);
  }
  for (const Axis axis : kPipelineInsideData) {
    if (Has(group, axis) && mesh.size(axis) > 1) return mesh.stride(axis);
  }
  return 1;
}

int64_t HostsOf(int64_t group_size, int64_t stride, int32_t ranks_per_host) {
  const int64_t inside =
      std::clamp<int64_t>(ranks_per_host / stride, 1, group_size);
  return (group_size + inside - 1) / inside;
}

int64_t HostsOf(const Layout& layout, Group group, int32_t ranks_per_host) {
  return HostsOf(GroupSize(layout, group), GroupStride(layout, group),
                 ranks_per_host);
}

int64_t HostsOfTransfer(const Layout& layout, int32_t stage,
                        int32_t ranks_per_host) {
  const auto host_of = [&](int32_t data, int32_t of_stage) {
    return ToInt(RankOf(layout, {.pipeline = of_stage, .data = data})) /
           ranks_per_host;
  };
  // Pipelines are alike where hosts hold whole ones, or they hold whole hosts.
  const int64_t pipeline_ranks = MeshOf(layout).stride(Axis::kData);
  const bool are_alike = ranks_per_host % pipeline_ranks == 0 ||
                         pipeline_ranks % ranks_per_host == 0;
  for (int32_t data = 0; data < (are_alike ? 1 : layout.data); ++data) {
    if (host_of(data, stage) != host_of(data, (stage + 1) % layout.pipeline)) {
      return 2;
    }
  }
  return 1;
}

int64_t PairsBetweenHosts(const Layout& layout, int32_t ranks_per_host) {
  return std::min<int64_t>(MeshOf(layout).stride(Axis::kPipeline),
                           ranks_per_host);
}

int64_t HostsOfSlowestTransfer(const Layout& layout, int32_t ranks_per_host) {
  for (int32_t stage = 0; stage + 1 < layout.pipeline; ++stage) {
    if (HostsOfTransfer(layout, stage, ranks_per_host) > 1) return 2;
  }
  return 1;
}

int32_t NumCommunicators(const Layout& layout, int32_t stage) {
  int32_t count = 0;
  bool has_world = layout.num_ranks() == 1;
  for (const Group group : CollectiveGroups(layout)) {
    const int32_t size = GroupSize(layout, group);
    if (size == 1) continue;
    ++count;
    has_world |= size == layout.num_ranks();
  }
  if (stage > 0) count += 2;
  if (stage < layout.pipeline - 1) count += 2;
  return has_world ? count : count + 1;
}

}  // namespace millrace
