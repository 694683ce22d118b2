#include "planner/job/layout_space.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/job/executable.h"

namespace millrace {
namespace {

constexpr absl::string_view kAuto = "auto";
// How far from what was asked a batch and a number of devices are looked for,
// each of which takes a search.
constexpr int64_t kMostReach = 4096;

bool Allows(const std::optional<int32_t>& pinned, int64_t value) {
  return !pinned.has_value() || *pinned == value;
}

// The axes that add ranks to what workers execute, innermost first.
std::vector<Axis> ExecutableAxes() {
  std::vector<Axis> axes;
  for (const Axis axis : AxesInOrder(AxisOrder::kPipelineInsideData)) {
    if (Describe(axis).execution != Execution::kNone) axes.push_back(axis);
  }
  return axes;
}

// Appends `mesh` with every way to spread `num_ranks` over `axes` that the
// pinned sizes allow. The last axis takes the ranks that the others leave.
void AddMeshes(const LayoutConstraints& pinned, std::span<const Axis> axes,
               int32_t num_ranks, Layout mesh, std::vector<Layout>* meshes) {
  const LayoutSize& row = Describe(axes.front());
  const bool is_last = axes.size() == 1;
  for (const int32_t size :
       is_last ? std::vector<int32_t>{num_ranks} : DivisorsOf(num_ranks)) {
    if (!Allows(pinned.*row.pinned, size)) continue;
    mesh.*row.size = size;
    if (is_last) {
      meshes->push_back(mesh);
    } else {
      AddMeshes(pinned, axes.subspan(1), num_ranks / size, mesh, meshes);
    }
  }
}

// Meshes of all devices that respect the pinned axes, micro-batches unset.
std::vector<Layout> EnumerateMeshes(const LayoutSpace& space) {
  const std::vector<Axis> axes = ExecutableAxes();
  std::vector<Layout> meshes;
  AddMeshes(space.constraints, axes, space.num_devices,
            {.data_groups = space.constraints.data_groups.value_or(1),
             .precision = space.precision,
             .gradient_reduction =
                 space.gradient_reduction.value_or(GradientReduction::kFloat32),
             .moments = space.moments,
             .objective = space.objective,
             .document_length = space.document_length,
             .gemm_format = space.gemm_format},
            &meshes);
  return meshes;
}

// Sequences of a micro-batch, the most first, that cut the batch into enough
// micro-batches for all replicas. Replicas have different numbers of them only
// where no smaller micro-batch would make them equal.
std::vector<int32_t> MicroBatches(const LayoutSpace& space,
                                  const Layout& mesh) {
  std::vector<int32_t> micro_batches = DivisorsOf(space.global_batch);
  const bool has_even_cut = space.global_batch % mesh.data == 0 &&
                            !space.constraints.micro_batch.has_value();
  std::erase_if(micro_batches, [&](int32_t micro_batch) {
    const int64_t count = space.global_batch / micro_batch;
    return !Allows(space.constraints.micro_batch, micro_batch) ||
           count < mesh.data || (has_even_cut && count % mesh.data != 0);
  });
  std::reverse(micro_batches.begin(), micro_batches.end());
  return micro_batches;
}

// The first key of the job that asks for what workers cannot execute.
std::optional<PlanOnlyKey> FirstPlanOnlyKey(const LayoutSpace& space) {
  for (const std::vector<PlanOnlyKey>& keys :
       {PlanOnlyKeys(space.model),
        PlanOnlyKeys(Layout{.gemm_format = space.gemm_format}),
        PlanOnlyKeys(space.constraints)}) {
    if (!keys.empty()) return keys.front();
  }
  return std::nullopt;
}

// "pipeline 2 x tensor 4 (layout.pipeline, layout.tensor)".
struct PinnedAxes {
  std::string product;
  std::string keys;
  double size = 1;  // The product of three sizes may be any.
  bool all = true;
};

PinnedAxes DescribePinnedAxes(const LayoutConstraints& constraints) {
  PinnedAxes pinned;
  std::vector<std::string> factors, keys;
  for (const LayoutSize& row : LayoutSizes()) {
    if (row.coordinate == nullptr || row.execution == Execution::kNone)
      continue;
    const std::optional<int32_t>& size = constraints.*row.pinned;
    if (!size.has_value()) {
      pinned.all = false;
      continue;
    }
    factors.push_back(absl::StrCat(row.name, " ", *size));
    keys.push_back(absl::StrCat("layout.", row.name));
    pinned.size *= *size;
  }
  pinned.product = absl::StrJoin(factors, " x ");
  pinned.keys = absl::StrJoin(keys, ", ");
  return pinned;
}

// The obstacle of the layout that comes closest.
std::string NearestObstacle(const LayoutSpace& space) {
  if (const auto key = FirstPlanOnlyKey(space)) {
    return absl::StrCat(key->key, " is ", key->value,
                        ", which is only planned so far: workers execute ",
                        key->executable);
  }
  if (!Allows(space.constraints.devices, space.num_devices)) {
    return absl::StrCat("layout.devices is ", *space.constraints.devices,
                        ", but a run uses all of its devices, ",
                        space.num_devices);
  }
  const std::vector<Layout> meshes = EnumerateMeshes(space);
  if (meshes.empty()) {
    const PinnedAxes pinned = DescribePinnedAxes(space.constraints);
    return absl::StrCat(
        pinned.product, " = ", absl::StrFormat("%.0f", pinned.size),
        " devices (", pinned.keys, ")",
        pinned.all ? ", but there are "
                   : " cannot be completed to the number of devices, ",
        space.num_devices);
  }
  // The nearest misses the batch only, and that by the least.
  std::optional<Layout> nearest;
  int64_t nearest_gap = 0;
  for (Layout layout : meshes) {
    layout.zero = space.constraints.zero.value_or(0);
    if (space.constraints.recompute != kAuto) {
      SetRecompute(space.constraints.recompute, &layout);
    }
    layout.micro_batch = space.constraints.micro_batch.value_or(1);
    layout.ShareBatch(space.global_batch);
    int64_t gap = std::abs(layout.global_batch() - space.global_batch);
    if (!ValidateLayout(space.model, layout, layout.global_batch()).ok()) {
      gap += std::numeric_limits<int32_t>::max();
    }
    if (!nearest.has_value() || gap < nearest_gap) {
      nearest = layout;
      nearest_gap = gap;
    }
  }
  absl::Status obstacle =
      ValidateLayout(space.model, *nearest, space.global_batch);
  const std::string& schedule = space.constraints.schedule;
  if (obstacle.ok() && schedule != kAuto) {
    // The schedule then: one that the rest of the layout does not allow.
    nearest->schedule = ScheduleOf(schedule);
    obstacle = ValidateLayout(space.model, *nearest, space.global_batch);
  }
  return absl::StrCat("nearest is ", LayoutToString(*nearest), ": ",
                      std::string(obstacle.message()));
}

// Every single pinned key that stands in the way alone, as a change to make.
std::vector<std::string> ChangesOfOneKey(const LayoutSpace& space) {
  std::vector<std::string> changes;
  for (const LayoutSize& row : LayoutSizes()) {
    const std::optional<int32_t> pinned = space.constraints.*row.pinned;
    if (!pinned.has_value()) continue;
    LayoutSpace changed = space;
    (changed.constraints.*row.pinned).reset();
    const std::vector<Layout> layouts = EnumerateLayouts(changed);
    if (layouts.empty()) continue;
    const auto closest = std::min_element(
        layouts.begin(), layouts.end(), [&](const Layout& a, const Layout& b) {
          return std::abs(a.*row.size - *pinned) <
                 std::abs(b.*row.size - *pinned);
        });
    changes.push_back(absl::StrCat("set layout.", row.name, " to ",
                                   (*closest).*row.size, " instead of ",
                                   *pinned));
  }
  return changes;
}

// The nearest other value of a count with which there are layouts. Looks as far
// as the count itself, but at least as far as `least_reach`; the one at
// `first_sign` times a distance comes before the other. 0 if there is none.
template <typename Count>
int64_t NearestThatWorks(const LayoutSpace& space, Count LayoutSpace::*count,
                         int64_t least_reach, int64_t first_sign) {
  const int64_t stated = space.*count;
  const int64_t reach = std::clamp<int64_t>(stated, least_reach, kMostReach);
  for (int64_t distance = 1; distance <= reach; ++distance) {
    for (const int64_t sign : {first_sign, -first_sign}) {
      const int64_t value = stated + sign * distance;
      if (value < 1 || value > std::numeric_limits<Count>::max()) continue;
      LayoutSpace changed = space;
      changed.*count = static_cast<Count>(value);
      if (!EnumerateLayouts(changed).empty()) return value;
    }
  }
  return 0;
}

// Whether layouts of this schedule are asked for, or are what those are made
// from: list-scheduled ones from 1F1B's.
bool StartsFrom(absl::string_view asked_for, Schedule schedule,
                const Layout& mesh) {
  if (asked_for == ScheduleName(Schedule::kListScheduled)) {
    return schedule == Schedule::kOneForwardOneBackward && mesh.pipeline > 1;
  }
  return asked_for == kAuto || asked_for == ScheduleName(schedule);
}

}  // namespace

std::vector<int32_t> DivisorsOf(int64_t value) {
  std::vector<int32_t> small, large;
  for (int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    small.push_back(static_cast<int32_t>(d));
    if (d * d != value) large.push_back(static_cast<int32_t>(value / d));
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::vector<StageRecomputes> AllowedRecomputes(const LayoutSpace& space,
                                               const Layout& layout) {
  return AllowedRecomputes(
      space.constraints.recompute,
      space.recomputes ? space.recomputes(layout) : UnpricedRecomputes());
}

LayoutSpace LayoutSpaceOf(const JobSpec& job, int32_t num_devices) {
  // A document may be longer than what a sequence holds of it.
  const bool has_documents =
      job.data.document_length < job.model.sequence_length;
  return {
      .model = job.model,
      .global_batch = job.training.global_batch,
      .num_devices = num_devices,
      .precision = job.precision(),
      .gradient_reduction = job.training.reduction(),
      .moments = MomentFormatOf(job.training.optimizer.moments),
      .objective = job.training.minimizes(),
      .document_length =
          has_documents ? static_cast<int32_t>(job.data.document_length) : 0,
      .gemm_format = GemmFormatOf(job.training.precision),
      .constraints = job.layout};
}

std::optional<LayoutSpace> ExecutableSpace(const LayoutSpace& space) {
  if (FirstPlanOnlyKey(space).has_value()) return std::nullopt;
  LayoutSpace executable = space;
  PinExecutableAxes(&executable.constraints);
  return executable;
}

std::vector<Layout> EnumerateLayouts(const LayoutSpace& space) {
  std::vector<Layout> layouts;
  if (FirstPlanOnlyKey(space).has_value() ||
      !Allows(space.constraints.devices, space.num_devices)) {
    return layouts;
  }
  for (const Layout& mesh : EnumerateMeshes(space)) {
    const std::vector<int32_t> micro_batches = MicroBatches(space, mesh);
    for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
      const bool is_asked_for = space.constraints.zero == zero;
      const bool is_offered = !space.constraints.zero.has_value() &&
                              zero <= (mesh.data > 1 ? 1 : 0);
      if (!is_asked_for && !is_offered) continue;
      for (const int32_t micro_batch : micro_batches) {
        Layout layout = mesh;
        layout.zero = zero;
        layout.micro_batch = micro_batch;
        layout.ShareBatch(space.global_batch);
        if (space.constraints.recompute != kAuto) {
          SetRecompute(AllowedRecomputes(space, layout).front(), &layout);
        }
        for (const Schedule schedule :
             {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
          if (!StartsFrom(space.constraints.schedule, schedule, mesh)) continue;
          layout.schedule = schedule;
          if (ValidateLayout(space.model, layout, space.global_batch).ok()) {
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  return layouts;
}

absl::Status ExplainNoLayout(const LayoutSpace& space) {
  std::vector<std::string> changes = ChangesOfOneKey(space);
  // The larger of two batches, the smaller of two numbers of devices.
  const int64_t batch =
      NearestThatWorks(space, &LayoutSpace::global_batch, 256, 1);
  if (batch > 0) {
    changes.push_back(absl::StrCat("set training.global_batch to ", batch,
                                   " instead of ", space.global_batch));
  }
  const int64_t devices =
      NearestThatWorks(space, &LayoutSpace::num_devices, 64, -1);
  if (devices > 0) {
    changes.push_back(absl::StrCat("use ", devices,
                                   devices == 1 ? " device" : " devices",
                                   " instead of ", space.num_devices));
  }
  // One change a line reads as a list of demands; they are alternatives.
  return absl::InvalidArgumentError(absl::StrCat(
      "no layout on ", space.num_devices, " devices: ", NearestObstacle(space),
      changes.empty() ? "; no change of a single key helps"
                      : absl::StrCat("; smallest change: ",
                                     absl::StrJoin(changes, ", or "))));
}

absl::Status CheckLayouts(const JobSpec& job, int32_t num_devices) {
  const LayoutSpace space = LayoutSpaceOf(job, num_devices);
  return EnumerateLayouts(space).empty() ? ExplainNoLayout(space)
                                         : absl::OkStatus();
}

void PinLayout(const Layout& layout, JobSpec* job) {
  LayoutConstraints& pinned = job->layout;
  PinSizes(layout, &pinned);
  pinned.zero = layout.zero;
  pinned.recompute = RecomputeKey(layout);
  pinned.schedule = ScheduleName(layout.schedule);
  job->training.gradient_reduction =
      GradientReductionName(layout.gradient_reduction);
}

}  // namespace millrace
