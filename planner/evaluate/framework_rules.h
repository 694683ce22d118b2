// How the frameworks of published runs compute, where their rows do not say:
// what a file frameworks.yaml says (docs/evaluate.md).

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

// Which runs something holds for: those that fit all that is stated.
struct RunFilter {
  std::string model;                  // Start of PlainModelName(); empty: any.
  std::vector<std::string> gpus;      // RunDevice::word; empty: any.
  std::string source;                 // Part of PublishedRun::source.
  int32_t first_version = 0;          // VersionOfRun() is this or later.
  std::optional<bool> low_precision;  // Products in 8 or 4 bits.
  std::optional<bool> latent_attention;  // As the model has it.
  int64_t tensor_ranks = 1;              // So many or more.
};

// Behaviour that a framework has in some of its runs alone.
struct BehaviourCase {
  RunFilter filter;
  BehaviourSettings set;
  std::string says;  // The run's assumption; empty: none.
};

// How a run was configured, by the recipe that it was started with.
struct Recipe {
  RunFilter filter;
  BehaviourSettings set;
  std::string says;
  // Where the row states no recompute.
  std::optional<SelectiveRecompute> recompute;
  std::string recompute_says;
};

// Layers that the framework adds to a model that rows state without them.
struct MoreLayers {
  std::string model;  // Start of PlainModelName().
  int64_t layers = 0;
  std::string says;
};

// A hardware profile for a framework's machine, instead of the device's.
struct OtherProfile {
  std::string name;
  std::string says;
};

struct FrameworkRule {
  std::string name;                 // "megatron-core"
  std::vector<std::string> groups;  // Starts of PublishedRun::group.
  std::string says;                 // What it is, and why it computes so.
  Implementation implementation;
  int32_t zero = 0;                        // Where the row does not say.
  Recompute recompute = Recompute::kNone;  // Where the row does not say.
  // GELU models: whether the head is the embedding's transpose, and entries of
  // the vocabulary where the row does not say. The last entries, which tensor
  // ranks do not divide, are left out.
  bool ties_embedding = false;
  int64_t vocab = 51200;
  // Measured memory is what rank 0 logs of itself, so the first stage's, which
  // need not be the fullest.
  bool logs_first_rank = false;
  // Measured memory is what the allocator has reserved: this many times what it
  // handed out.
  double reserved_per_allocated = 1;
  // A pipeline whose micro-batch is not stated has as many micro-batches as
  // stages.
  bool one_micro_batch_a_stage = false;
  std::vector<BehaviourCase> cases;  // All that fit count, in this order.
  std::vector<MoreLayers> more_layers;
  std::string recipes_say;      // The start of the assumption.
  std::vector<Recipe> recipes;  // The last one that fits counts.
  std::map<std::string, OtherProfile> profiles;  // By the device's profile.
};

struct FrameworkRules {
  std::vector<FrameworkRule> frameworks;
  std::string fallback;  // Name of one of them.
  // The rate of 8-bit products with a scale for each row, as a share of that
  // with a scale for each tensor.
  double rate_with_row_scales = 1;
};

// InvalidArgument with all errors found, one a line, each with file, line and
// key.
absl::StatusOr<FrameworkRules> ParseFrameworkRules(
    absl::string_view yaml, const std::string& file_name);

// The rule of the run's group, or the fallback for a group that no rule names;
// `is_known` is then false. Borrows `rules`.
struct FrameworkChoice {
  const FrameworkRule* rule;
  bool is_known;
};
FrameworkChoice FrameworkOf(const FrameworkRules& rules,
                            const PublishedRun& run);

// "26.04" or "26.04.01" as a number that grows with the version (260400);
// nothing for other text.
std::optional<int32_t> ParseVersion(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_FRAMEWORK_RULES_H_
