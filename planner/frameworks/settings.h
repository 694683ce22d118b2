// Settings: the configuration of another framework as a flat list of keys with
// their lines. There is a reader for each notation; import.h interprets the
// settings.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct Setting {
  std::string key;  // Nested keys joined by dots: "training.seq_len".
  // Without quotes. Spaces join the items of a list; " | " joins the inner
  // lists of TOML's nested lists.
  std::string value;
  int line = 1;  // From 1.
};

struct Settings {
  std::string file_name;
  // True if the file lists all arguments, even those with default values.
  bool is_complete = false;
  std::vector<Setting> entries;  // In file order; no key twice.
  // Keys that are there without a value, which are not among the entries.
  std::vector<std::string> empty_keys;

  // Returns null if there is no such key.
  const Setting* Find(absl::string_view key) const;
};

// All readers return InvalidArgument that starts with "FILE:LINE: " for text
// that cannot be read and for a key given twice. Keys without a value (null)
// are left out.

// Reads JSON: an object of scalars, lists and objects.
absl::StatusOr<Settings> ReadJsonSettings(absl::string_view json,
                                          const std::string& file_name);

absl::StatusOr<Settings> ReadTomlSettings(absl::string_view toml,
                                          const std::string& file_name);

// Reads the arguments of Megatron-LM in one of three notations: a command line
// (with or without the launcher, over several lines, with # comments), the list
// that its training script prints, or a YAML map if the file's name ends in
// .yaml or .yml.
//
// Keys are spelled like flags: "num-layers". A flag without a value has the
// value "True". An argument with the value None or False is left out, except
// that "add-bias-linear False" becomes "disable-bias-linear True".
absl::StatusOr<Settings> ReadMegatronSettings(absl::string_view text,
                                              const std::string& file_name);

// Reads the overrides of a recipe of Megatron-Bridge or NeMo: the words
// KEY=VALUE and the --flags of a command line, or the same keys nested in YAML,
// as Megatron-Bridge writes a run's whole configuration.
absl::StatusOr<Settings> ReadOverrideSettings(absl::string_view text,
                                              const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_SETTINGS_H_
