// How the frameworks of published runs compute, for what their rows do not say.
// The rules are read from a file frameworks.yaml (docs/evaluate.md).

#ifndef MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_
#define MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/evaluate/behaviour_keys.h"
#include "planner/evaluate/published_runs.h"
#include "planner/layout/layout.h"

namespace millrace {

// Selects runs: those that match all of the fields that are stated.
struct RunFilter {
  std::string model;                  // Prefix of PlainModelName(); empty: any.
  std::vector<std::string> gpus;      // RunDevice::word; empty: any.
  std::string source;                 // Substring of PublishedRun::source.
  int32_t first_version = 0;          // VersionOfRun() is this or later.
  std::optional<bool> low_precision;  // Products in 8 or 4 bits.
  std::optional<bool> latent_attention;  // Whether the run's model has it.
  int64_t tensor_ranks = 1;              // At least so many tensor ranks.
};

// Behaviour that a framework has only in some of its runs.
struct BehaviourCase {
  RunFilter filter;
  BehaviourSettings set;
  std::string says;  // Added to the run's assumptions unless empty.
};

// The configuration of a run, as the recipe that started it sets it.
struct Recipe {
  RunFilter filter;
  BehaviourSettings set;
  std::string says;
  // Used where the row states no recompute.
  std::optional<SelectiveRecompute> recompute;
  std::string recompute_says;
};

// Layers that the framework adds to a model that rows state without them.
struct MoreLayers {
  std::string model;  // Prefix of PlainModelName().
  int64_t layers = 0;
  std::string says;
};

// A hardware profile that a framework's runs use instead of the device's own.
struct OtherProfile {
  std::string name;
  std::string says;
};

struct FrameworkRule {
  std::string name;                 // "megatron-core"
  std::vector<std::string> groups;  // Prefixes of PublishedRun::group.
  std::string says;                 // The framework, and why it computes so.
  Implementation implementation;
  int32_t zero = 0;                        // Used where the row does not say.
  Recompute recompute = Recompute::kNone;  // Used where the row does not say.
  // The next two hold for GELU models. `ties_embedding` says whether the head
  // is the embedding's transpose. `vocab` is the vocabulary's size where the
  // row does not say; entries that the tensor ranks do not divide are left out
  // at its end.
  bool ties_embedding = false;
  int64_t vocab = 51200;
  // Measured memory is what rank 0 logs of itself. So it is the memory of the
  // first stage, which need not be the fullest.
  bool logs_first_rank = false;
  // Measured memory is what the allocator has reserved. It reserves this many
  // times the bytes that it handed out.
  double reserved_per_allocated = 1;
  // A pipeline whose micro-batch is not stated has as many micro-batches as
  // stages.
  bool one_micro_batch_a_stage = false;
  std::vector<BehaviourCase> cases;  // All that fit apply, in this order.
  std::vector<MoreLayers> more_layers;
  std::string recipes_say;      // The start of the assumption.
  std::vector<Recipe> recipes;  // The last one that fits applies.
  // The key is the name of the device's profile.
  std::map<std::string, OtherProfile> profiles;
};

struct FrameworkRules {
  std::vector<FrameworkRule> frameworks;
  std::string fallback;  // Name of one of them.
  // The rate of 8-bit products with a scale for each row, as a share of the
  // rate with one scale for each tensor.
  double rate_with_row_scales = 1;
};

// Returns InvalidArgument with all errors found, one a line, each with file,
// line and key.
absl::StatusOr<FrameworkRules> ParseFrameworkRules(
    absl::string_view yaml, const std::string& file_name);

// Returns the rule of the run's group. A group that no rule names gets the
// fallback, and `is_known` is then false. Borrows `rules`.
struct FrameworkChoice {
  const FrameworkRule* rule;
  bool is_known;
};
FrameworkChoice FrameworkOf(const FrameworkRules& rules,
                            const PublishedRun& run);

// Turns "26.04" or "26.04.01" into a number that grows with the version
// (260400). Returns nothing for other text.
std::optional<int32_t> ParseVersion(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_
