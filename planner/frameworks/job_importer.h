// The common parts of all frameworks' imports: they take settings into a job,
// remember where each value came from, and collect errors.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_
#define MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/frameworks/import.h"

namespace millrace {

class Importer {
 public:
  // Borrows `settings`. Those of frameworks on Megatron Core must come from
  // WithFlagValues(), and callers may then name keys as flags of Megatron-LM.
  Importer(Framework framework, const Settings& settings,
           const ImportOptions& options)
      : framework_(framework),
        settings_(settings),
        approximates_(options.approximates),
        is_exact_(options.is_exact) {}

  Framework framework() const { return framework_; }
  JobSpec& job() { return imported_.job; }
  bool has_errors() const { return !errors_.empty(); }

  // Returns the setting, or null if it is absent, and marks the key as used. A
  // switch that is off in a framework on Megatron Core counts as absent here,
  // but not for IsSaid().
  const Setting* Look(absl::string_view key);
  bool IsSaid(absl::string_view key) const;
  // Whether the key is there without a value.
  bool IsEmpty(absl::string_view key) const;
  // Marks the keys as used although they say nothing that a job holds.
  void Ignore(std::span<const char* const> keys) {
    for (const char* key : keys) (void)Look(key);
  }
  void Ignore(std::initializer_list<const char*> keys) {
    Ignore(std::span(keys.begin(), keys.size()));
  }
  // Returns the setting as an integer from `minimum` to `maximum`; `fallback`
  // if it is absent. Any other value is an error and also gives `fallback`. The
  // product of two integers up to the default maximum does not overflow.
  int64_t Integer(absl::string_view key, int64_t minimum, int64_t fallback,
                  int64_t maximum = std::numeric_limits<int32_t>::max());
  bool IsOn(absl::string_view key);

  // Takes every key of the framework's table: its value, or else its default.
  // Keys that have neither stay unset; see IsSet().
  void TakeTable();
  // Sets the job's key from text. Adds an error at `setting` if the key does
  // not accept it.
  void Set(absl::string_view job_path, const std::string& text,
           const std::string& remark, const Setting* setting = nullptr);
  bool IsSet(absl::string_view job_path) const;
  // Adds an error unless the key is set.
  void Require(absl::string_view job_path);
  // Adds the error of Require() in better words.
  void Missing(absl::string_view job_path, absl::string_view key,
               const std::string& what);

  // Adds an error unless the setting has one of the values `allowed`. An absent
  // setting has the value "".
  void RefuseUnless(absl::string_view key,
                    const std::vector<std::string>& allowed,
                    const std::string& why);
  // Adds a note for each of the keys that is present.
  void NoteIfThere(const std::vector<const char*>& keys,
                   const std::string& what);
  void Note(const std::string& text) { imported_.notes.push_back(text); }
  // Handles a part of the model, described by `setting`, that ours lacks and
  // that is little work. If the user asked for an approximation, or if workers
  // cannot train the model anyway, adds a note and names the part in the job's
  // model.approximates. Otherwise adds an error.
  void Approximate(const Setting& setting, const std::string& what);
  void Error(const Setting* setting, absl::string_view key,
             const std::string& what);
  // Adds an error at the setting of that key.
  void Error(absl::string_view key, const std::string& what) {
    Error(Look(key), key, what);
  }

  // Returns the source's name, for messages, of a key that may be a flag of
  // Megatron-LM.
  std::string OwnKey(absl::string_view key) const;

  // Whether workers can train the model, as far as it is set.
  bool IsTrainable() const;
  // Call it after an error that leaves the model unknown. The importer then
  // reports no further errors about the model's keys.
  void LeaveModel() { leaves_model_ = true; }
  // Takes the model of a Hugging Face configuration and the notes of its
  // import. Reports its errors at `setting`. If `length` is given, the caller
  // sets the job's sequence length.
  void TakeModelOf(const Settings& config, std::optional<int64_t> length,
                   const Setting* setting);
  // Sets all keys of the model but its initial weights and sequence length.
  void SetModel(const ModelSpec& model, const std::string& remark);
  // Sets the precision if this version can train in it; otherwise adds a note.
  void SetPrecision(const std::string& precision, const std::string& remark,
                    const Setting* setting);
  // Checks the rules that join several keys, reports errors in the source's
  // terms, and fills the keys that no source sets.
  absl::StatusOr<ImportedJob> Finish(const ImportOptions& options);

 private:
  // Returns the source's name of a job's key, for messages.
  std::string NameOf(absl::string_view job_path) const;
  const Setting* SettingOf(absl::string_view job_path) const;
  void CheckModel();
  void CheckLayout();
  void FillUnsaid(const ImportOptions& options);
  void NoteUnused();
  void RefuseUnused();

  const Framework framework_;
  const Settings& settings_;
  const bool approximates_;
  const bool is_exact_;
  ImportedJob imported_;
  std::set<std::string, std::less<>> looked_at_;
  bool leaves_model_ = false;
  std::vector<std::pair<int, std::string>> errors_;  // With line numbers.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_
