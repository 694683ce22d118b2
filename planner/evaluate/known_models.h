// Public models by name, for published runs that name one without stating its
// dims: what a file models.yaml says (docs/evaluate.md).

#ifndef MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_
#define MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/layout/model.h"

namespace millrace {

struct KnownModel {
  std::string prefix;  // Of a PlainModelName.
  std::string source;
  ModelSpec model;  // Without sequence_length.
  // What the planner leaves out of it; empty for nothing.
  std::string simplification;
};

// How many experts a model has of which rows state the other dims.
struct KnownExperts {
  std::string prefix;
  std::string source;
  int64_t num_experts = 0;
};

// Models with layers that the planner has no arithmetic for.
struct UnplannableModels {
  std::vector<std::string> prefixes;
  std::vector<std::string> words;  // Anywhere in a PlainModelName.
  std::string why;
};

struct KnownModels {
  std::vector<KnownModel> models;
  std::vector<KnownExperts> experts;
  std::vector<UnplannableModels> unplannable;
};

// InvalidArgument with all errors found, one a line, each with file, line and
// key: text that is not such a file, and models that ValidateModel refuses.
absl::StatusOr<KnownModels> ParseKnownModels(absl::string_view yaml,
                                             const std::string& file_name);

// The name in lower case, letters and digits alone: "GPT OSS 120B" is
// "gptoss120b".
std::string PlainModelName(absl::string_view name);

// The first whose prefix the name has; null for a name that none has.
const KnownModel* FindKnownModel(const KnownModels& known,
                                 absl::string_view name);
const KnownExperts* FindKnownExperts(const KnownModels& known,
                                     absl::string_view name);

// The reason why a model of that name has layers that the planner has no
// arithmetic for; empty if none is known.
std::string UnplannableArchitecture(const KnownModels& known,
                                    absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_
