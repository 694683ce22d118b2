#include "planner/search/snapshot_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"
#include "planner/search/program_prediction.h"

namespace millrace {
namespace {

// Steps may be faster than predicted, and downloads slower.
constexpr double kUsableShare = 0.9;

constexpr int64_t kBytesOfElement = 3 * sizeof(float);
constexpr int64_t kLeastBytesOfTwoParts = 4 * kGiB;
constexpr int64_t kSharesOfState = 16;  // The last part is one of them.

int64_t StateBytesOf(const Bucket& bucket, const Layout& layout) {
  return bucket.num_elements / layout.data * kBytesOfElement;
}

// Bytes that one rank must stage so that each part is read within kUsableShare
// of its time.
double BytesToStage(const SnapshotParts& parts, const SnapshotRates& rates) {
  // A byte that is staged takes the place of its download.
  const double gain_s = 1 / rates.to_host - 1 / rates.within_device;
  if (gain_s <= 0) return 0;
  double most = 0, read_bytes = 0;
  for (const SnapshotPart& part : parts) {
    read_bytes += static_cast<double>(part.bytes);
    const double late_s =
        read_bytes / rates.to_host - kUsableShare * part.readable_s;
    most = std::max(most, std::min(read_bytes, late_s / gain_s));
  }
  return most;
}

double StallOf(const SnapshotParts& parts, const SnapshotRates& rates,
               int64_t staged_bytes) {
  int64_t num_bytes = 0;
  for (const SnapshotPart& part : parts) num_bytes += part.bytes;
  int64_t staged = std::min(staged_bytes, num_bytes);
  const double staging_s = static_cast<double>(staged) / rates.within_device;
  double now_s = staging_s, late_s = 0;
  for (const SnapshotPart& part : parts) {
    const int64_t of_part = std::min(staged, part.bytes);
    staged -= of_part;
    now_s += static_cast<double>(part.bytes - of_part) / rates.to_host;
    // An op that waits delays those after it, so waits do not add up.
    late_s = std::max(late_s, now_s - part.readable_s);
  }
  return staging_s + late_s;
}

// The parts of a rank's state, by when the simulated optimizer changes them.
SnapshotParts PartsOf(const Program& program, const RankTimeline& timeline) {
  const std::vector<Bucket>& buckets = program.parameters.buckets;
  const std::vector<int32_t> part_of =
      PartOfBuckets(program.parameters, program.layout);
  SnapshotParts parts(part_of.empty() ? 0 : part_of.back() + 1);
  for (size_t i = 0; i < buckets.size(); ++i) {
    parts[part_of[i]].bytes += StateBytesOf(buckets[i], program.layout);
  }
  for (SnapshotPart& part : parts) {
    part.readable_s = std::numeric_limits<double>::infinity();
  }
  for (const TimelineEvent& event : timeline.events) {
    const Instruction& instruction =
        program.instructions[static_cast<size_t>(event.instruction)];
    const std::optional<size_t> bucket =
        BucketOfUpdate(instruction, program.parameters);
    if (!bucket.has_value()) continue;
    double& readable_s = parts[part_of[*bucket]].readable_s;
    readable_s = std::min(readable_s, event.start_s);
  }
  return parts;
}

}  // namespace

std::string SnapshotText(const SnapshotPlan& plan) {
  return absl::StrCat(
      plan.stall_s == 0
          ? "training does not stall"
          : absl::StrCat("training stalls for ", FormatSeconds(plan.stall_s)),
      plan.staged_bytes == 0
          ? ""
          : absl::StrCat(", ", FormatBytes(plan.staged_bytes),
                         " are staged on the device"));
}

double SnapshotStall(std::span<const SnapshotParts> ranks,
                     const SnapshotRates& rates, int64_t staged_bytes) {
  double longest_s = 0;
  for (const SnapshotParts& parts : ranks) {
    longest_s = std::max(longest_s, StallOf(parts, rates, staged_bytes));
  }
  return longest_s;
}

SnapshotPlan PlanSnapshots(std::span<const SnapshotParts> ranks,
                           const SnapshotRates& rates, int64_t free_bytes) {
  CHECK(rates.to_host > 0) << rates.to_host;
  CHECK(rates.within_device > 0) << rates.within_device;
  double most = 0;
  for (const SnapshotParts& parts : ranks) {
    most = std::max(most, BytesToStage(parts, rates));
  }
  const int64_t wanted =
      static_cast<int64_t>(std::ceil(most / double{kMiB})) * kMiB;
  const int64_t room = std::max<int64_t>(0, free_bytes) / kMiB * kMiB;
  const int64_t staged = std::min(wanted, room);
  return {.staged_bytes = staged,
          .stall_s = SnapshotStall(ranks, rates, staged)};
}

int64_t StateBytesOfRank(const StageParameters& parameters,
                         const Layout& layout) {
  return parameters.num_elements / layout.data * kBytesOfElement;
}

std::vector<int32_t> PartOfBuckets(const StageParameters& parameters,
                                   const Layout& layout) {
  std::vector<int32_t> part_of(parameters.buckets.size(), 0);
  const int64_t num_bytes = StateBytesOfRank(parameters, layout);
  if (num_bytes < kLeastBytesOfTwoParts) return part_of;
  int64_t in_last = 0;
  for (size_t i = part_of.size(); i > 1; --i) {
    if (in_last >= num_bytes / kSharesOfState) break;
    in_last += StateBytesOf(parameters.buckets[i - 1], layout);
    part_of[i - 1] = 1;
  }
  return part_of;
}

std::optional<size_t> BucketOfUpdate(const Instruction& instruction,
                                     const StageParameters& parameters) {
  if (instruction.kind != OpKind::kAdamW) return std::nullopt;
  for (size_t i = 0; i < parameters.buckets.size(); ++i) {
    if (instruction.name ==
        absl::StrCat("update/", parameters.buckets[i].name)) {
      return i;
    }
  }
  return std::nullopt;
}

bool TakesSnapshots(const JobSpec& job) {
  return job.checkpoint.is_periodic() || job.exports.every > 0 ||
         job.fault.replica_interval_steps.value_or(0) > 0;
}

std::optional<SnapshotPlan> PlanSnapshotsOf(const JobSpec& job,
                                            std::span<const Program> programs,
                                            const Timeline& timeline,
                                            const CostModel& cost,
                                            int64_t memory_limit) {
  const HardwareProfile& profile = cost.profile();
  const double to_host = profile.host_link.to_host_bytes_per_s;
  if (!job.resources.uses_cuda() || !TakesSnapshots(job) || to_host == 0 ||
      programs.empty() ||
      programs.front().layout.moments != MomentFormat::kFloat32) {
    return std::nullopt;
  }
  std::vector<SnapshotParts> ranks;
  for (const RankTimeline& rank : timeline.ranks) {
    ranks.push_back(PartsOf(programs[static_cast<size_t>(rank.stage)], rank));
  }
  int64_t most_bytes = 0;
  for (const Program& program : programs) {
    most_bytes =
        std::max(most_bytes, StageBytes(program, profile.memory_overhead));
  }
  // A copy reads each byte and writes it.
  const SnapshotRates rates = {.to_host = to_host,
                               .within_device = 1 / cost.MemorySeconds(2)};
  return PlanSnapshots(ranks, rates, memory_limit - most_bytes);
}

}  // namespace millrace
