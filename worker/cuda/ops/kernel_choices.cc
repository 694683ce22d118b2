#include "worker/cuda/ops/kernel_choices.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/tuning/tuning_families.h"
#include "worker/cuda/ops/kernel_cache.h"

namespace millrace {
namespace {

absl::Status EntryError(absl::string_view list, size_t index,
                        absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("profile: tuning.", list, "[", index, "]: ", what,
                   "; measure it again with millrace profile --tune JOB"));
}

// Returns the choices that are shipped for the device; empty if there are none.
absl::StatusOr<TuningTable> ShippedChoices(const std::string& device) {
  const absl::string_view text = ShippedTuningTable(device);
  if (text.empty()) return TuningTable{.chip = device};
  return ParseTuningTable(text, KernelTuningFamilies());
}

}  // namespace

absl::StatusOr<CudaChoices> ChoicesFor(const KernelTuning& tuning,
                                       const std::string& device) {
  CudaChoices choices;
  ASSIGN_OR_RETURN(choices.kernels, ShippedChoices(device));
  ASSIGN_OR_RETURN(choices.products, ShippedGemmAlgorithms());
  if (tuning.device != device) return choices;
  // If a class has two entries, the later one counts.
  for (size_t i = 0; i < tuning.kernels.size(); ++i) {
    const KernelChoice& kernel = tuning.kernels[i];
    absl::StatusOr<TuningEntry> entry =
        TuningEntryOf({.family = kernel.family,
                       .shape_class = kernel.shape_class,
                       .choice = kernel.choice},
                      KernelTuningFamilies());
    if (!entry.ok()) {
      return EntryError("kernels", i, entry.status().message());
    }
    entry->seconds = kernel.seconds;
    entry->start_seconds = kernel.start_seconds;
    choices.kernels.entries.push_back(*std::move(entry));
  }
  const std::string chip = absl::StrReplaceAll(device, {{" ", "_"}});
  for (size_t i = 0; i < tuning.products.size(); ++i) {
    const ProductChoice& product = tuning.products[i];
    // As a line, so that what the table cannot hold is refused.
    const absl::StatusOr<GemmAlgorithmTable> line = GemmAlgorithmTable::Parse(
        absl::StrCat(chip, " ", product.shape, " ", product.algorithm, " ",
                     1e6 * product.seconds));
    if (!line.ok()) return EntryError("products", i, line.status().message());
    for (const auto& [shape, entry] : line->EntriesOf(chip)) {
      choices.products.SetWord(chip, shape, entry);
    }
  }
  return choices;
}

absl::StatusOr<std::string> CurrentDeviceName() {
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  return std::string(properties.name);
}

}  // namespace millrace
