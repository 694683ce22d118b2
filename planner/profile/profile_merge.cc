#include "planner/profile/profile_merge.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "planner/profile/op_shape.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

constexpr double kWarnedSpread = 1.1;  // Slowest over quickest.

// Sorted from oldest to newest.
using Parts = std::vector<const ProfilePart*>;

struct Measurement {
  std::string file;
  double seconds;
};

double MedianSeconds(const std::vector<Measurement>& measurements) {
  std::vector<double> seconds;
  for (const Measurement& measurement : measurements) {
    seconds.push_back(measurement.seconds);
  }
  return MedianOf(std::move(seconds));
}

bool AreFarApart(const std::vector<Measurement>& measurements) {
  const auto [quickest, slowest] =
      std::ranges::minmax_element(measurements, {}, &Measurement::seconds);
  return slowest->seconds > kWarnedSpread * quickest->seconds;
}

// Joins the rows of the tables that `tables` takes of each part, and appends
// them to `joined`, in the order of first appearance. Warnings begin with
// `title`.
template <typename Tables>
void JoinRows(const std::vector<ProfilePart>& parts, const char* title,
              Tables tables, HardwareProfile* joined,
              std::vector<std::string>* warnings) {
  std::vector<std::pair<OpShape, std::vector<Measurement>>> rows;
  std::map<OpShape, size_t> row_of_shape;
  for (const ProfilePart& part : parts) {
    HardwareProfile rows_of_part = tables(part.profile);
    VisitRows(rows_of_part, [&](const OpShape& shape, double& seconds) {
      const auto [row, is_new] = row_of_shape.emplace(shape, rows.size());
      if (is_new) rows.push_back({shape, {}});
      rows[row->second].second.push_back({part.file, seconds});
    });
  }
  for (const auto& [shape, measurements] : rows) {
    const double seconds = MedianSeconds(measurements);
    AddRow(shape, seconds, joined);
    if (!AreFarApart(measurements)) continue;
    warnings->push_back(absl::StrCat(
        title, ShapeText(shape), ": ",
        absl::StrJoin(measurements, ", ",
                      [](std::string* out, const Measurement& measurement) {
                        absl::StrAppend(out, measurement.seconds, " s in ",
                                        measurement.file);
                      }),
        "; more than 10 % apart, took ", seconds, " s"));
  }
}

void JoinTables(const std::vector<ProfilePart>& parts, MergedProfile* merged) {
  JoinRows(
      parts, "", [](const HardwareProfile& profile) { return profile; },
      &merged->profile, &merged->warnings);
  // Rows of copy engines have the shapes of other communication.
  HardwareProfile joined;
  JoinRows(
      parts, "copy_engines: ",
      [](const HardwareProfile& profile) {
        HardwareProfile copies;
        copies.communication.assign(profile.copy_engines.begin(),
                                    profile.copy_engines.end());
        return copies;
      },
      &joined, &merged->warnings);
  for (const CommunicationTime& time : joined.communication) {
    merged->profile.copy_engines.push_back({time});
  }
}

absl::Status CheckDate(const ProfilePart& part) {
  const std::string& date = part.profile.provenance.date;
  // Texts of this form sort by time.
  constexpr absl::string_view kForm = "0000-00-00T00:00:00Z";
  bool fits = date.size() == kForm.size();
  for (size_t i = 0; fits && i < date.size(); ++i) {
    fits = kForm[i] == '0'
               ? absl::ascii_isdigit(static_cast<unsigned char>(date[i]))
               : date[i] == kForm[i];
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(part.file,
                   ": provenance.date: expected ISO 8601 in UTC such as "
                   "2026-01-31T12:00:00Z, to tell which profile is the newest, "
                   "found '",
                   date, "'"));
}

// Checks that `key` has the same value in two parts.
absl::Status CheckSame(const ProfilePart& a, const ProfilePart& b,
                       absl::string_view key, absl::string_view value_of_a,
                       absl::string_view value_of_b, absl::string_view advice) {
  if (value_of_a == value_of_b) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot merge: ", key, " is ", value_of_a, " in ", a.file,
                   " and ", value_of_b, " in ", b.file, "; ", advice));
}

std::string Figures(const DeviceSpec& device) {
  return absl::StrCat(device.multiprocessors, " multiprocessors, ",
                      NumberToText(device.bf16_flops_per_s), ", ",
                      NumberToText(device.fp8_flops_per_s), " and ",
                      NumberToText(device.fp4_flops_per_s),
                      " FLOP/s in bf16, fp8 and fp4, ",
                      NumberToText(device.memory_bytes_per_s), " bytes/s");
}

absl::Status CheckSameMachine(const ProfilePart& part_a,
                              const ProfilePart& part_b) {
  const HardwareProfile& a = part_a.profile;
  const HardwareProfile& b = part_b.profile;
  constexpr absl::string_view kKindAdvice =
      "a profile is of one kind of machine";
  if (a.device.is_given() && b.device.is_given()) {
    RETURN_IF_ERROR(CheckSame(part_a, part_b, "device.name", a.device.name,
                              b.device.name, kKindAdvice));
    RETURN_IF_ERROR(CheckSame(part_a, part_b, "device", Figures(a.device),
                              Figures(b.device),
                              "correct the one that its data sheet denies"));
  } else {
    RETURN_IF_ERROR(CheckSame(part_a, part_b, "provenance.machine",
                              MachineKind(a.provenance.machine),
                              MachineKind(b.provenance.machine), kKindAdvice));
  }
  RETURN_IF_ERROR(CheckSame(
      part_a, part_b, "precision", PrecisionName(a.precision),
      PrecisionName(b.precision), "measure both in the precision of the job"));
  return CheckSame(part_a, part_b, "provenance.threads_per_device",
                   absl::StrCat(a.provenance.threads_per_device),
                   absl::StrCat(b.provenance.threads_per_device),
                   "measure both with the same threads for each device");
}

Parts OldestFirst(const std::vector<ProfilePart>& parts) {
  Parts sorted;
  for (const ProfilePart& part : parts) sorted.push_back(&part);
  const auto age = [](const ProfilePart* part) {
    return std::make_pair(!part->profile.gemms.empty(),
                          part->profile.provenance.date);
  };
  std::ranges::stable_sort(sorted, {}, age);
  return sorted;
}

// Takes the newest part's value that differs from the value of a file that
// omits the field.
template <typename Field>
void TakeNewest(const Parts& parts, Field HardwareProfile::*field,
                HardwareProfile* merged) {
  for (const ProfilePart* part : parts) {
    if (part->profile.*field != HardwareProfile().*field) {
      merged->*field = part->profile.*field;
    }
  }
}

// Takes each constant from the newest part that states it. A measured part
// states only its noise.
std::vector<ModelConstant> MergeConstants(const Parts& parts) {
  std::vector<ModelConstant> merged;
  for (const ProfilePart* part : parts) {
    for (const ModelConstant& constant : part->profile.constants) {
      const auto known =
          std::ranges::find(merged, constant.name, &ModelConstant::name);
      if (known == merged.end()) {
        merged.push_back(constant);
      } else {
        *known = constant;
      }
    }
  }
  return merged;
}

ProfileProvenance MergeProvenance(const Parts& parts) {
  const auto measured = [](const ProfilePart* part) {
    return std::make_pair(!part->profile.gemms.empty(),
                          part->profile.provenance.num_ranks);
  };
  const ProfilePart* widest = parts.front();
  ProfileProvenance merged = parts.back()->profile.provenance;
  std::vector<std::string> sources;
  for (const ProfilePart* part : parts) {
    if (measured(part) >= measured(widest)) widest = part;
    const ProfileProvenance& provenance = part->profile.provenance;
    merged.date = std::max(merged.date, provenance.date);
    sources.push_back(absl::StrCat(part->file, " (", provenance.date, ")"));
  }
  merged.machine = widest->profile.provenance.machine;
  merged.num_ranks = widest->profile.provenance.num_ranks;
  merged.description =
      absl::StrCat(widest->profile.provenance.description, "; merged of ",
                   absl::StrJoin(sources, ", "));
  return merged;
}

// Choices cannot be averaged. Takes each from the newest tuning that made it,
// and leaves out tunings of other devices.
KernelTuning MergeTuning(const Parts& parts) {
  Parts newest_first;
  for (const ProfilePart* part : parts) {
    if (part->profile.tuning.is_given()) newest_first.push_back(part);
  }
  std::ranges::stable_sort(
      newest_first, std::greater<>(),
      [](const ProfilePart* part) { return part->profile.tuning.date; });
  if (newest_first.empty()) return {};
  KernelTuning merged = newest_first.front()->profile.tuning;
  merged.kernels.clear();
  merged.products.clear();
  std::set<std::string> seen, commands = {merged.command};
  for (const ProfilePart* part : newest_first) {
    const KernelTuning& tuning = part->profile.tuning;
    if (tuning.device != merged.device) continue;
    for (const KernelChoice& kernel : tuning.kernels) {
      if (seen.insert(absl::StrCat(kernel.family, " ", kernel.shape_class))
              .second) {
        merged.kernels.push_back(kernel);
      }
    }
    for (const ProductChoice& product : tuning.products) {
      if (seen.insert(product.shape).second) merged.products.push_back(product);
    }
    if (commands.insert(tuning.command).second) {
      absl::StrAppend(&merged.command, "; ", tuning.command, " (", tuning.date,
                      ")");
    }
  }
  return merged;
}

// Takes the bytes of communicators from the newest part that created some,
// since a profile of one rank has none.
MemoryOverhead MergeMemoryOverhead(const Parts& parts) {
  MemoryOverhead merged;
  for (const ProfilePart* part : parts) {
    const MemoryOverhead& overhead = part->profile.memory_overhead;
    if (overhead.process > 0) merged.process = overhead.process;
    if (overhead.first_communicator > 0) {
      merged.first_communicator = overhead.first_communicator;
    }
    if (overhead.communicator > 0) merged.communicator = overhead.communicator;
  }
  return merged;
}

void MergeContention(const Parts& parts, HardwareProfile* merged) {
  const auto measured = [](const HardwareProfile& profile) {
    return std::make_pair(!profile.gemms.empty(), profile.ranks_per_host);
  };
  const HardwareProfile* widest = &parts.front()->profile;
  for (const ProfilePart* part : parts) {
    if (measured(part->profile) >= measured(*widest)) widest = &part->profile;
  }
  merged->ranks_per_host = widest->ranks_per_host;
  merged->compute_contention = widest->compute_contention;
}

}  // namespace

std::string MachineKind(const std::string& machine) {
  const size_t suffix = machine.rfind("-x");
  if (suffix == std::string::npos || suffix + 2 == machine.size() ||
      !std::all_of(machine.begin() + static_cast<ptrdiff_t>(suffix) + 2,
                   machine.end(),
                   [](unsigned char c) { return absl::ascii_isdigit(c); })) {
    return machine;
  }
  return machine.substr(0, suffix);
}

absl::StatusOr<MergedProfile> MergeProfiles(
    const std::vector<ProfilePart>& parts) {
  if (parts.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected at least two profiles to merge, found ", parts.size()));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    RETURN_IF_ERROR(CheckDate(parts[i]));
    for (size_t j = 0; j < i; ++j) {
      RETURN_IF_ERROR(CheckSameMachine(parts[j], parts[i]));
    }
  }
  const Parts sorted = OldestFirst(parts);
  MergedProfile merged;
  HardwareProfile& profile = merged.profile;
  profile.name = sorted.back()->profile.name;
  profile.provenance = MergeProvenance(sorted);
  profile.precision = parts.front().profile.precision;
  MergeContention(sorted, &profile);
  TakeNewest(sorted, &HardwareProfile::device_memory_bytes, &profile);
  profile.memory_overhead = MergeMemoryOverhead(sorted);
  TakeNewest(sorted, &HardwareProfile::host_link, &profile);
  TakeNewest(sorted, &HardwareProfile::launch_overhead_s, &profile);
  TakeNewest(sorted, &HardwareProfile::overlap, &profile);
  TakeNewest(sorted, &HardwareProfile::copy_engine_overlap, &profile);
  TakeNewest(sorted, &HardwareProfile::waits, &profile);
  TakeNewest(sorted, &HardwareProfile::device, &profile);
  TakeNewest(sorted, &HardwareProfile::network, &profile);
  profile.constants = MergeConstants(sorted);
  TakeNewest(sorted, &HardwareProfile::step_error, &profile);
  profile.tuning = MergeTuning(sorted);
  TakeNewest(sorted, &HardwareProfile::learnt_runs, &profile);
  TakeNewest(sorted, &HardwareProfile::learnt_changes, &profile);
  JoinTables(parts, &merged);
  return merged;
}

}  // namespace millrace
