// The axes of the mesh of ranks, as one table, and what follows from them:
// sizes and strides, coordinates of ranks, and groups of ranks that
// communicate.
//
// To add an axis: a name in Axis, a size in Layout and LayoutConstraints, a
// coordinate in MeshCoordinates, and a row in mesh.cc. Names, job checks,
// messages, groups and communicators follow the row.

#ifndef MILLRACE_PLANNER_LAYOUT_MESH_H_
#define MILLRACE_PLANNER_LAYOUT_MESH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace millrace {

struct Layout;
struct LayoutConstraints;

enum class Axis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
inline constexpr size_t kNumAxes = static_cast<size_t>(Axis::kPipeline) + 1;

// Where a rank sits in the mesh. kExpert has no coordinate: experts are spread
// over the ranks of the other axes.
struct MeshCoordinates {
  int32_t pipeline = 0;
  int32_t data = 0;
  int32_t tensor = 0;
  int32_t context = 0;
  friend bool operator==(const MeshCoordinates&,
                         const MeshCoordinates&) = default;
};

// How workers run a size above one.
enum class Execution : uint8_t {
  kNone,         // Not at all: the size can be planned, but not run.
  kCollectives,  // The ranks of a group along the axis share a communicator.
  kTransfers,    // Ranks send to their neighbours along the axis.
  kProgram,      // The Program of each rank differs; no rank is added.
};

// A size that a layout has and a job may pin.
struct LayoutSize {
  const char* name;  // "pipeline": the job's key layout.pipeline.
  // "pp": the size in short names of layouts (planner/explain/layout_name.h)
  // and in options of commands.
  const char* short_name;
  int32_t Layout::*size;
  std::optional<int32_t> LayoutConstraints::*pinned;
  Execution execution;
  std::optional<Axis> axis = std::nullopt;
  // Null if the size adds no ranks.
  int32_t MeshCoordinates::*coordinate = nullptr;
};
// The mesh axes, and the other sizes: chunks of a stage, shards of an expert,
// sequences of a micro-batch.
std::span<const LayoutSize> LayoutSizes();
// Pins all of these to those of the layout.
void PinSizes(const Layout& layout, LayoutConstraints* constraints);
const LayoutSize& Describe(Axis axis);
const char* AxisName(Axis axis);  // "tensor".

// The order of the axes in the numbers of ranks. Neighbours along the innermost
// axis, tensor, are neighbours in rank order and share the fastest links.
enum class AxisOrder : uint8_t {
  kPipelineInsideData,  // Tensor, context, pipeline, data: as workers do.
  kPipelineOutermost,   // Tensor, context, data, pipeline.
};
// Innermost first. Names the axes that add ranks.
std::span<const Axis> AxesInOrder(AxisOrder order);

// A layout's sizes by axis, and how far neighbours along an axis are apart in
// rank order. kExpert has the stride of the nearest ranks that share experts:
// those of the tensor axis if experts are whole, else those of the context
// axis.
struct Mesh {
  std::array<int32_t, kNumAxes> sizes;
  std::array<int64_t, kNumAxes> strides;

  int32_t size(Axis axis) const { return sizes[static_cast<size_t>(axis)]; }
  int64_t stride(Axis axis) const { return strides[static_cast<size_t>(axis)]; }
};
Mesh MeshOf(const Layout& layout,
            AxisOrder order = AxisOrder::kPipelineInsideData);

// A set of axes, one bit each. Ranks whose coordinates differ along these axes
// only form a group; ranks of a group communicate. kPipeline has the stages of
// one column; kWorld has every axis, and so every rank.
enum class Group : uint8_t {
  kTensor = 1 << static_cast<int>(Axis::kTensor),
  kData = 1 << static_cast<int>(Axis::kData),
  kPipeline = 1 << static_cast<int>(Axis::kPipeline),
  kWorld = (1 << kNumAxes) - 1,
  // The two parts of the data axis where Layout::data_groups cuts it: the ranks
  // of one group, and those that have the same slice in each group.
  kShards = 1 << kNumAxes,
  kReplicas = 1 << (kNumAxes + 1),
};
constexpr Group GroupOf(std::initializer_list<Axis> axes) {
  unsigned bits = 0;
  for (const Axis axis : axes) bits |= 1u << static_cast<int>(axis);
  return static_cast<Group>(bits);
}
constexpr bool Has(Group group, Axis axis) {
  return (static_cast<unsigned>(group) >> static_cast<int>(axis) & 1u) != 0;
}
std::string GroupName(Group group);  // "tensor", "context+data", "world".

// The groups whose ranks share a communicator for collectives, without the
// world.
std::vector<Group> CollectiveGroups(const Layout& layout);
// The group over which ZeRO shards: the data axis, or one of its groups.
Group ShardGroup(const Layout& layout);

// Numbers of ranks are those of AxisOrder::kPipelineInsideData.
MeshCoordinates CoordinatesOf(const Layout& layout, Rank rank);
Rank RankOf(const Layout& layout, MeshCoordinates coordinates);
// Members in rank order; contains `rank`.
std::vector<Rank> GroupMembers(const Layout& layout, Group group, Rank rank);
// Size of the group, and the rank's index among its members.
int32_t GroupSize(const Layout& layout, Group group);
int32_t GroupIndex(const Layout& layout, Group group, Rank rank);
// How far neighbouring members are apart in rank order, along the innermost
// axis of the group.
int64_t GroupStride(const Layout& layout, Group group);
// Hosts over which ranks r, r + stride, ... are spread, `group_size` of them,
// where each host has the next `ranks_per_host` ranks.
int64_t HostsOf(int64_t group_size, int64_t stride, int32_t ranks_per_host);
int64_t HostsOf(const Layout& layout, Group group, int32_t ranks_per_host);
// 2 if the transfer between a stage and the next leaves a host, for the ranks
// of any data index; else 1. The first stage is next to the last one, too.
int64_t HostsOfTransfer(const Layout& layout, int32_t stage,
                        int32_t ranks_per_host);
// 2 if any transfer of a pipeline leaves a host, else 1.
int64_t HostsOfSlowestTransfer(const Layout& layout, int32_t ranks_per_host);
// Ranks of a host that send to the next stage's at once where that is on
// another host.
int64_t PairsBetweenHosts(const Layout& layout, int32_t ranks_per_host);

// Communicators of a rank of this stage: one for each axis of collectives that
// it shares, the world unless it is one of these, and each transfer lane's.
int32_t NumCommunicators(const Layout& layout, int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_MESH_H_
