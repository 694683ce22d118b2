#include "planner/profile/profile_consistency.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Returns what is wrong with the constants; empty if nothing is. Their users
// check that all are there (planner/cost/sheet_times.h).
std::string WrongConstant(const std::vector<ModelConstant>& constants) {
  std::set<std::string> seen;
  for (const ModelConstant& constant : constants) {
    if (!seen.insert(constant.name).second) {
      return absl::StrCat("constants: ", constant.name,
                          " is given twice; remove one");
    }
    if (!absl::EndsWith(constant.name, "_share")) continue;
    // A share of 0 that is hidden is possible. A share of 0 of a peak would
    // take forever.
    const bool may_be_zero = absl::EndsWith(constant.name, "_hidden_share");
    if (constant.value > 1 || (constant.value == 0 && !may_be_zero)) {
      return absl::StrCat("constants: ", constant.name, ": expected ",
                          may_be_zero ? "0 to 1" : "more than 0, 1 at most",
                          ", found ", constant.value);
    }
  }
  return "";
}

// Returns what is wrong with the tuning. kernels/ knows whether its families
// and algorithms exist.
std::string WrongTuning(const KernelTuning& tuning) {
  if (tuning == KernelTuning{}) return "";
  if (tuning.device.empty() || tuning.machine.empty() ||
      tuning.version.empty() || tuning.date.empty() || tuning.command.empty()) {
    return "tuning: expected device, machine, version, date and command; "
           "choices that do not say where they come from are not used";
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < tuning.kernels.size(); ++i) {
    const KernelChoice& kernel = tuning.kernels[i];
    if (!seen.insert(absl::StrCat(kernel.family, " ", kernel.shape_class))
             .second) {
      return absl::StrCat("tuning.kernels[", i, "]: ", kernel.family, " of ",
                          kernel.shape_class, " is given twice; remove one");
    }
  }
  for (size_t i = 0; i < tuning.products.size(); ++i) {
    if (!seen.insert(tuning.products[i].shape).second) {
      return absl::StrCat("tuning.products[", i,
                          "]: ", tuning.products[i].shape,
                          " is given twice; remove one");
    }
  }
  return "";
}

}  // namespace

std::string InconsistencyOf(const HardwareProfile& profile) {
  if (!profile.network.empty() && !profile.device.is_given()) {
    return "device: missing beside network, or without bf16_flops_per_s; the "
           "data sheet of the device gives it";
  }
  if (profile.compute_contention.size() !=
          static_cast<size_t>(profile.ranks_per_host) ||
      profile.compute_contention.front() != 1) {
    return absl::StrCat("compute_contention: expected ranks_per_host = ",
                        profile.ranks_per_host, " factors, the first 1");
  }
  for (const auto& [key, overlap] :
       {std::pair{"overlap", profile.overlap},
        std::pair{"copy_engine_overlap", profile.copy_engine_overlap}}) {
    if (overlap.compute >= 1 && overlap.communication >= 1) continue;
    return absl::StrCat(key, ": expected factors of at least 1, found ",
                        overlap.compute, " and ", overlap.communication);
  }
  if (profile.waits.arrival_spread > 1) {
    return absl::StrCat("waits.arrival_spread: expected 0 to 1, found ",
                        profile.waits.arrival_spread);
  }
  const std::string wrong_constant = WrongConstant(profile.constants);
  if (!wrong_constant.empty()) return wrong_constant;
  const StepError& error = profile.step_error;
  if (error != StepError{} && (error.low <= 0 || error.high < error.low)) {
    return absl::StrCat(
        "step_error: expected 0 < low <= high, measured over predicted, found ",
        error.low, " and ", error.high);
  }
  const std::string wrong_tuning = WrongTuning(profile.tuning);
  if (!wrong_tuning.empty()) return wrong_tuning;
  const ProfileProvenance& provenance = profile.provenance;
  if (provenance.machine.empty() || provenance.version.empty() ||
      provenance.date.empty()) {
    return "provenance: expected machine, version and date; a profile that "
           "does not say where it comes from is not used";
  }
  int32_t inner = 1;
  for (size_t i = 0; i < profile.network.size(); ++i) {
    const NetworkLevel& level = profile.network[i];
    const bool is_last = i + 1 == profile.network.size();
    if (level.bytes_per_s <= 0) {
      return absl::StrCat("network[", i, "].bytes_per_s: expected more than 0");
    }
    if (level.devices == 0 ? !is_last : level.devices % inner != 0) {
      return absl::StrCat(
          "network[", i, "].devices: expected a multiple of the ", inner,
          " of the level before it", is_last ? ", or 0 for all there are" : "",
          ", found ", level.devices);
    }
    inner = level.devices;
  }
  return "";
}

}  // namespace millrace
