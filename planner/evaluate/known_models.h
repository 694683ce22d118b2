// The dims of public models by name, for published runs that name a model
// without stating its dims. They are read from a file models.yaml
// (docs/evaluate.md).

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
  std::string prefix;  // The start of the model's PlainModelName().
  std::string source;
  ModelSpec model;  // Without sequence_length.
  // The parts of the model that the planner leaves out; empty if none.
  std::string simplification;
};

// The number of experts of a model whose rows state only the other dims.
struct KnownExperts {
  std::string prefix;
  std::string source;
  int64_t num_experts = 0;
};

// Models with layers that the planner has no arithmetic for.
struct UnplannableModels {
  std::vector<std::string> prefixes;
  std::vector<std::string> words;  // Found anywhere in PlainModelName().
  std::string why;
};

struct KnownModels {
  std::vector<KnownModel> models;
  std::vector<KnownExperts> experts;
  std::vector<UnplannableModels> unplannable;
};

// Returns InvalidArgument with all errors found, one a line, each with file,
// line and key. Text that is not such a file is refused, and so are models that
// ValidateModel() refuses.
absl::StatusOr<KnownModels> ParseKnownModels(absl::string_view yaml,
                                             const std::string& file_name);

// Returns the name in lower case with letters and digits only: "GPT OSS 120B"
// becomes "gptoss120b".
std::string PlainModelName(absl::string_view name);

// Returns the first model whose prefix the name has; null if there is none.
const KnownModel* FindKnownModel(const KnownModels& known,
                                 absl::string_view name);
const KnownExperts* FindKnownExperts(const KnownModels& known,
                                     absl::string_view name);

// Returns the reason why the planner has no arithmetic for the layers of a
// model of that name; empty if it is not known to lack any.
std::string UnplannableArchitecture(const KnownModels& known,
                                    absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_
