#include "planner/explain/what_if.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "planner/profile/changed_hardware.h"
#include "planner/text/nearest_word.h"
#include "planner/text/quantity.h"

namespace millrace {
namespace {

constexpr size_t kNearestShown = 3;
constexpr char kMemoryOfJob[] = "resources.memory_per_device";

struct Setting {
  std::string key;
  std::string value;
};

absl::Status SettingError(const Setting& setting, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--what-if ", setting.key, "=", setting.value, ": ", what));
}

absl::StatusOr<Setting> SplitSetting(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--what-if ", text,
                     ": expected KEY=VALUE, such as devices=1024 or "
                     "link.inter_node=800Gb/s"));
  }
  return Setting{.key = text.substr(0, equals),
                 .value = text.substr(equals + 1)};
}

absl::Status UnknownKey(const Setting& setting, const HardwareProfile& profile);

absl::StatusOr<int32_t> ParseCount(const Setting& setting) {
  int32_t count = 0;
  if (!absl::SimpleAtoi(setting.value, &count) || count < 1) {
    return SettingError(setting, "expected an integer of at least 1");
  }
  return count;
}

// A figure of the hardware before (0: not stated) and after the setting, and
// how both are written.
struct HardwareValue {
  double factor = 1;
  double after = 0;
  ValueChange change;
};

absl::StatusOr<HardwareValue> ReadHardwareValue(const Setting& setting,
                                                const std::string& key,
                                                double before,
                                                Dimension dimension,
                                                const std::string& profile) {
  if (const std::optional<double> factor = ParseFactor(setting.value)) {
    HardwareValue value{.factor = *factor, .after = before * *factor};
    value.change = {key, "1x", setting.value};
    if (before > 0) {
      value.change.before = FormatQuantity(before, dimension, "");
      value.change.after = FormatQuantity(value.after, dimension, "");
    }
    return value;
  }
  const absl::StatusOr<Quantity> quantity =
      ParseQuantity(setting.value, dimension);
  if (!quantity.ok()) {
    return SettingError(setting, absl::StrCat(quantity.status().message(),
                                              "; or a factor such as 1.25x"));
  }
  if (before <= 0) {
    return SettingError(
        setting, absl::StrCat("hardware profile '", profile,
                              "' does not state this figure; give a factor "
                              "such as 1.25x, or profile=NAME of a profile "
                              "that does"));
  }
  return HardwareValue{
      .factor = quantity->value / before,
      .after = quantity->value,
      .change = {key, FormatQuantity(before, dimension, quantity->unit),
                 FormatQuantity(quantity->value, dimension, quantity->unit)}};
}

template <void kScale(double, HardwareProfile*)>
absl::StatusOr<ValueChange> SetFactor(const Setting& setting,
                                      PlanningCase* planned) {
  const std::optional<double> factor = ParseFactor(setting.value);
  if (!factor) return SettingError(setting, "expected a factor such as 1.25x");
  kScale(*factor, &planned->profile);
  return ValueChange{setting.key, "1x", setting.value};
}

template <GemmFormat kFormat>
absl::StatusOr<ValueChange> SetFlops(const Setting& setting,
                                     PlanningCase* planned) {
  HardwareProfile* profile = &planned->profile;
  ASSIGN_OR_RETURN(
      const HardwareValue value,
      ReadHardwareValue(setting, setting.key, FlopsOf(kFormat, *profile),
                        Dimension::kFlopsPerSecond, profile->name));
  ScaleFlopsOf(kFormat, value.factor, profile);
  return value.change;
}

absl::StatusOr<ValueChange> SetMemoryBandwidth(const Setting& setting,
                                               PlanningCase* planned) {
  HardwareProfile* profile = &planned->profile;
  ASSIGN_OR_RETURN(const HardwareValue value,
                   ReadHardwareValue(
                       setting, setting.key, profile->device.memory_bytes_per_s,
                       Dimension::kBytesPerSecond, profile->name));
  ScaleMemoryBandwidth(value.factor, profile);
  return value.change;
}

absl::StatusOr<ValueChange> SetMemory(const Setting& setting,
                                      PlanningCase* planned) {
  if (planned->job.resources.memory_per_device_bytes.has_value()) {
    return SettingError(setting,
                        absl::StrCat("the job sets ", kMemoryOfJob,
                                     ", which decides; change that instead: ",
                                     "--what-if ", kMemoryOfJob, "=..."));
  }
  HardwareProfile& profile = planned->profile;
  ASSIGN_OR_RETURN(
      const HardwareValue value,
      ReadHardwareValue(setting, setting.key,
                        static_cast<double>(profile.device_memory_bytes),
                        Dimension::kBytes, profile.name));
  profile.device_memory_bytes = std::llround(value.after);
  return value.change;
}

absl::StatusOr<ValueChange> SetLevelDevices(const Setting& setting,
                                            size_t level,
                                            const std::string& key,
                                            HardwareProfile* profile) {
  ASSIGN_OR_RETURN(const int32_t devices, ParseCount(setting));
  NetworkLevel& changed = profile->network[level];
  const int32_t before = changed.devices;
  if (level > 0 && profile->network[level - 1].devices > devices) {
    return SettingError(
        setting, absl::StrCat("a domain of ", profile->network[level - 1].name,
                              ", the level below, already joins ",
                              profile->network[level - 1].devices, " devices"));
  }
  if (level + 1 < profile->network.size()) {
    const NetworkLevel& outer = profile->network[level + 1];
    if (outer.devices > 0 && outer.devices < devices) {
      return SettingError(
          setting, absl::StrCat("a domain of ", outer.name,
                                ", the level above, joins only ", outer.devices,
                                " devices; change that first"));
    }
  }
  changed.devices = devices;
  return ValueChange{key, before > 0 ? absl::StrCat(before) : "all",
                     absl::StrCat(devices)};
}

absl::StatusOr<ValueChange> SetLink(const Setting& setting,
                                    HardwareProfile* profile) {
  absl::string_view name = absl::StripPrefix(setting.key, "link.");
  const bool is_latency = absl::ConsumeSuffix(&name, ".latency");
  const bool is_devices = !is_latency && absl::ConsumeSuffix(&name, ".devices");
  const std::optional<size_t> level = LinkLevel(name, *profile);
  if (!level) {
    if (profile->network.empty()) {
      return SettingError(
          setting, absl::StrCat("hardware profile '", profile->name,
                                "' has no section network, only measured "
                                "times; scale them with link.all=2x"));
    }
    return UnknownKey(setting, *profile);
  }
  NetworkLevel& changed = profile->network[*level];
  const std::string key = absl::StrCat("link.", changed.name,
                                       is_latency   ? ".latency"
                                       : is_devices ? ".devices"
                                                    : "");
  if (is_devices) return SetLevelDevices(setting, *level, key, profile);
  const Dimension dimension =
      is_latency ? Dimension::kSeconds : Dimension::kBytesPerSecond;
  ASSIGN_OR_RETURN(
      const HardwareValue value,
      ReadHardwareValue(setting, key,
                        is_latency ? changed.latency_s : changed.bytes_per_s,
                        dimension, profile->name));
  if (is_latency) {
    changed.latency_s = value.after;
  } else {
    ScaleLink(*level, value.factor, profile);
  }
  return value.change;
}

absl::StatusOr<ValueChange> SetJobKey(const Setting& setting, const JobKey& key,
                                      JobSpec* job) {
  const std::string before = JobValueToYaml(key, *job);
  if (!SetJobValue(key, setting.value, job)) {
    return SettingError(setting,
                        absl::StrCat("expected ", DescribeExpected(key),
                                     TooLargeText(key, setting.value)));
  }
  return ValueChange{setting.key, before, JobValueToYaml(key, *job)};
}

absl::StatusOr<ValueChange> SetProfile(const Setting& setting,
                                       const ProfileLoader& load_profile,
                                       HardwareProfile* profile) {
  absl::StatusOr<HardwareProfile> loaded = load_profile(setting.value);
  if (!loaded.ok()) return SettingError(setting, loaded.status().message());
  const std::string before = profile->name;
  *profile = *std::move(loaded);
  return ValueChange{setting.key, before, profile->name};
}

absl::StatusOr<ValueChange> SetDevices(const Setting& setting,
                                       PlanningCase* planned) {
  const int32_t before = planned->num_devices;
  ASSIGN_OR_RETURN(planned->num_devices, ParseCount(setting));
  return ValueChange{setting.key, absl::StrCat(before),
                     absl::StrCat(planned->num_devices)};
}

// The keys that are neither links nor keys of the job.
struct WhatIfKey {
  const char* name;
  // Null: ApplyWhatIf() applies it before all others.
  absl::StatusOr<ValueChange> (*apply)(const Setting&, PlanningCase*);
};
constexpr WhatIfKey kWhatIfKeys[] = {
    {"devices", SetDevices},
    {"profile", nullptr},
    {"device.flops", SetFactor<ScaleFlops>},
    {"device.bf16_flops", SetFlops<GemmFormat::kAsStored>},
    {"device.fp8_flops", SetFlops<GemmFormat::kFloat8>},
    {"device.fp4_flops", SetFlops<GemmFormat::kFloat4>},
    {"device.memory_bandwidth", SetMemoryBandwidth},
    {"device.memory", SetMemory},
    {"link.all", SetFactor<ScaleAllLinks>},
};

std::vector<std::string> KnownKeys(const HardwareProfile& profile) {
  std::vector<std::string> keys;
  for (const WhatIfKey& key : kWhatIfKeys) keys.emplace_back(key.name);
  std::vector<std::string> levels;
  for (const NetworkLevel& level : profile.network) {
    levels.push_back(level.name);
  }
  for (const char* alias : {"intra_node", "inter_node"}) {
    if (LinkLevel(alias, profile).has_value()) levels.emplace_back(alias);
  }
  for (const std::string& level : levels) {
    for (const char* suffix : {"", ".latency", ".devices"}) {
      keys.push_back(absl::StrCat("link.", level, suffix));
    }
  }
  for (const JobKey& key : JobKeys()) keys.emplace_back(key.path);
  return keys;
}

absl::Status UnknownKey(const Setting& setting,
                        const HardwareProfile& profile) {
  std::vector<std::string> keys = KnownKeys(profile);
  std::ranges::stable_sort(keys, {}, [&](const std::string& key) {
    return EditDistance(setting.key, key);
  });
  keys.resize(std::min(keys.size(), kNearestShown));
  return SettingError(setting, absl::StrCat("unknown key; the nearest are ",
                                            absl::StrJoin(keys, ", ")));
}

absl::StatusOr<ValueChange> ApplyOne(const Setting& setting,
                                     PlanningCase* planned) {
  for (const WhatIfKey& key : kWhatIfKeys) {
    if (setting.key == key.name) return key.apply(setting, planned);
  }
  if (absl::StartsWith(setting.key, "link.")) {
    return SetLink(setting, &planned->profile);
  }
  if (const JobKey* job_key = FindJobKey(setting.key)) {
    return SetJobKey(setting, *job_key, &planned->job);
  }
  return UnknownKey(setting, planned->profile);
}

// Checks the rules that join several keys, which the setter of one key cannot
// check.
absl::Status CheckJob(JobSpec* job) {
  absl::StatusOr<JobSpec> checked =
      ParseJob(JobToYaml(*job), "the changed job");
  if (!checked.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--what-if gives a job that contradicts itself: ",
                     checked.status().message()));
  }
  *job = *std::move(checked);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ValueChange>> ApplyWhatIf(
    std::span<const std::string> settings, const ProfileLoader& load_profile,
    PlanningCase* planned) {
  std::vector<Setting> parsed;
  std::set<std::string> keys;
  for (const std::string& text : settings) {
    ASSIGN_OR_RETURN(Setting setting, SplitSetting(text));
    if (!keys.insert(setting.key).second) {
      return SettingError(setting, "given twice; keep one");
    }
    parsed.push_back(std::move(setting));
  }
  PlanningCase changed = *planned;
  std::vector<ValueChange> changes(parsed.size());
  // Applies profiles first, since the other settings change the profile.
  for (const bool profiles : {true, false}) {
    for (size_t i = 0; i < parsed.size(); ++i) {
      if ((parsed[i].key == "profile") != profiles) continue;
      ASSIGN_OR_RETURN(
          changes[i],
          profiles ? SetProfile(parsed[i], load_profile, &changed.profile)
                   : ApplyOne(parsed[i], &changed));
    }
  }
  RETURN_IF_ERROR(CheckJob(&changed.job));
  *planned = std::move(changed);
  return changes;
}

}  // namespace millrace
