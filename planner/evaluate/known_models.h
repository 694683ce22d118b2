// Dims of public models by name, for published runs that name one without
// stating them.

#ifndef MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_
#define MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "planner/layout/model.h"

namespace millrace {

struct KnownModel {
  const char* prefix;  // Of the name in lower case, letters and digits alone.
  const char* source;
  ModelSpec model;  // Without sequence_length.
  // What the planner leaves out of it; "" for nothing.
  const char* simplification;
};

// The name in lower case, letters and digits alone: "GPT OSS 120B" is
// "gptoss120b".
std::string PlainModelName(absl::string_view name);

// Null for a name that the table lacks.
const KnownModel* FindKnownModel(absl::string_view name);

// The reason why a model of that name has layers that the planner has no
// arithmetic for, "" if none is known.
std::string UnplannableArchitecture(absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_KNOWN_MODELS_H_
