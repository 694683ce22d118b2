#include "planner/evaluate/framework_cases.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/run_devices.h"

namespace millrace {
namespace {

bool IsOnOneOf(const std::vector<std::string>& gpus, const PublishedRun& run) {
  const absl::StatusOr<RunDevice> device = DeviceOfRun(run.gpu);
  return device.ok() &&
         std::find(gpus.begin(), gpus.end(), device->word) != gpus.end();
}

bool FitsRun(const RunFilter& filter, const PublishedRun& run,
             const RunSetup& setup) {
  const bool low_precision = setup.layout.gemm_format != GemmFormat::kAsStored;
  const bool latent_attention = setup.model.mla.kv_rank > 0;
  return absl::StartsWith(PlainModelName(run.model), filter.model) &&
         absl::StrContains(run.source, filter.source) &&
         VersionOfRun(run) >= filter.first_version &&
         setup.layout.tensor >= filter.tensor_ranks &&
         filter.low_precision.value_or(low_precision) == low_precision &&
         filter.latent_attention.value_or(latent_attention) ==
             latent_attention &&
         (filter.gpus.empty() || IsOnOneOf(filter.gpus, run));
}

}  // namespace

int32_t VersionOfRun(const PublishedRun& run) {
  const size_t open = run.source.find('[');
  if (open == std::string::npos) return 0;
  const absl::string_view section =
      absl::string_view(run.source).substr(open + 1);
  return ParseVersion(section.substr(0, section.find(' '))).value_or(0);
}

void ApplyCases(const FrameworkRule& rule, const PublishedRun& run,
                RunSetup* setup) {
  for (const BehaviourCase& one : rule.cases) {
    if (!FitsRun(one.filter, run, *setup)) continue;
    Apply(one.set, &setup->implementation);
    if (!one.says.empty()) setup->assumptions.push_back(one.says);
  }
}

void ApplyRecipe(const FrameworkRule& rule, const PublishedRun& run,
                 RunSetup* setup) {
  const auto recipe = std::find_if(
      rule.recipes.rbegin(), rule.recipes.rend(),
      [&](const Recipe& known) { return FitsRun(known.filter, run, *setup); });
  if (recipe == rule.recipes.rend()) return;
  Apply(recipe->set, &setup->implementation);
  setup->assumptions.push_back(
      absl::StrCat(rule.recipes_say, ": ", recipe->says));
  if (!run.recompute.empty() || !recipe->recompute.has_value()) return;
  setup->layout.recompute = Recompute::kPolicy;
  setup->implementation.selective = *recipe->recompute;
  setup->assumptions.push_back(
      absl::StrCat("recompute as in that recipe: ", recipe->recompute_says));
}

}  // namespace millrace
