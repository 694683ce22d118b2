// Settings: the configuration of another framework as a flat list of keys with
// the lines they stand on. Readers for each notation; meaning comes later, in
// import.h.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct Setting {
  std::string key;  // Nested keys joined by dots: "training.seq_len".
  // Without quotes; the items of a list joined by spaces, of TOML's lists in a
  // list by " | ".
  std::string value;
  int line = 1;  // From 1.
};

struct Settings {
  std::string file_name;
  // True for a dump of all arguments, defaults among them.
  bool is_complete = false;
  std::vector<Setting> entries;  // In file order; no key twice.

  // Null if there is none.
  const Setting* Find(absl::string_view key) const;
};

// All return InvalidArgument starting "FILE:LINE: " for text that cannot be
// read and for a key given twice. Keys without a value (null) are left out.

// JSON: an object of scalars, lists and objects.
absl::StatusOr<Settings> ReadJsonSettings(absl::string_view json,
                                          const std::string& file_name);

absl::StatusOr<Settings> ReadTomlSettings(absl::string_view toml,
                                          const std::string& file_name);

// The arguments of Megatron-LM, as a command line (with or without what starts
// it, over several lines, with # comments), as the list that its training
// script prints, or as a YAML map where the file's name ends in .yaml or .yml.
// Keys are spelled as flags are: "num-layers". A flag without a value has the
// value "True"; an argument whose value is None or False is left out, but for
// "add-bias-linear False", which is "disable-bias-linear True".
absl::StatusOr<Settings> ReadMegatronSettings(absl::string_view text,
                                              const std::string& file_name);

// The overrides of a recipe of Megatron-Bridge or NeMo: the words KEY=VALUE of
// a command line, its --flags too, or the same keys nested in YAML, as
// Megatron-Bridge writes a run's whole configuration.
absl::StatusOr<Settings> ReadOverrideSettings(absl::string_view text,
                                              const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_
