// What the imports of all frameworks do alike: take settings into a job,
// remember where each value came from, and collect errors.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_
#define MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/frameworks/import.h"

namespace millrace {

class Importer {
 public:
  // Borrows `settings`, which for frameworks on Megatron Core come from
  // WithFlagValues(). Keys may then be given as flags of Megatron-LM.
  Importer(Framework framework, const Settings& settings, bool approximates)
      : framework_(framework),
        settings_(settings),
        approximates_(approximates) {}

  Framework framework() const { return framework_; }
  JobSpec& job() { return imported_.job; }
  bool has_errors() const { return !errors_.empty(); }

  // The setting, or null; counts as looked at. A switch of a framework on
  // Megatron Core that is off counts as absent, but IsSaid().
  const Setting* Look(absl::string_view key);
  bool IsSaid(absl::string_view key) const;
  // Counts the keys as looked at: they say nothing that a job holds.
  void Ignore(std::initializer_list<const char*> keys) {
    for (const char* key : keys) (void)Look(key);
  }
  // Its value as an integer from `minimum` to `maximum`, or `fallback` if it is
  // absent or not such a number, which is an error. Two of those below the
  // usual maximum have a product that does not overflow.
  int64_t Integer(absl::string_view key, int64_t minimum, int64_t fallback,
                  int64_t maximum = std::numeric_limits<int32_t>::max());
  bool IsOn(absl::string_view key);

  // Takes every key of the framework's table: its value, else its default.
  // Those without both stay unset, see IsSet().
  void TakeTable();
  // Sets the job's key from text; an error at `setting` if it does not accept
  // it.
  void Set(absl::string_view job_path, const std::string& text,
           const std::string& remark, const Setting* setting = nullptr);
  bool IsSet(absl::string_view job_path) const;
  // An error unless it is set.
  void Require(absl::string_view job_path);
  // The error, in better words, that Require() would make.
  void Missing(absl::string_view job_path, absl::string_view key,
               const std::string& what);

  // An error unless the setting has one of `allowed` ("" among them: or is
  // absent).
  void RefuseUnless(absl::string_view key,
                    const std::vector<std::string>& allowed,
                    const std::string& why);
  // A note for each of the keys that is there.
  void NoteIfThere(const std::vector<const char*>& keys,
                   const std::string& what);
  void Note(const std::string& text) { imported_.notes.push_back(text); }
  // The model has a part that ours has not and that is little work, as
  // `setting` says: a note, and a word in the job's model.approximates, where
  // workers cannot train the model or the user asked for its approximation,
  // else an error.
  void Approximate(const Setting& setting, const std::string& what);
  void Error(const Setting* setting, absl::string_view key,
             const std::string& what);
  // The same at the setting of that key.
  void Error(absl::string_view key, const std::string& what) {
    Error(Look(key), key, what);
  }

  // The source's name of a key that may be a flag of Megatron-LM, for messages.
  std::string OwnKey(absl::string_view key) const;

  // After an error that leaves the model unknown: no more is said of its keys.
  void LeaveModel() { leaves_model_ = true; }
  // The model of a Hugging Face configuration, with what that import notes; its
  // errors stand at `setting`. Sequences of another `length` are then yours to
  // set.
  void TakeModelOf(const Settings& config, std::optional<int64_t> length,
                   const Setting* setting);
  // All of the model but its initial weights and sequence length.
  void SetModel(const ModelSpec& model, const std::string& remark);
  // Precision, where this version can train in it.
  void SetPrecision(const std::string& precision, const std::string& remark,
                    const Setting* setting);
  // Checks what joins keys, in the source's words, and fills what no source
  // says.
  absl::StatusOr<ImportedJob> Finish(const ImportOptions& options);

 private:
  // The source's name of a job's key, for messages.
  std::string NameOf(absl::string_view job_path) const;
  const Setting* SettingOf(absl::string_view job_path) const;
  void CheckModel();
  void CheckLayout();
  void FillUnsaid(const ImportOptions& options);
  void NoteUnused();

  const Framework framework_;
  const Settings& settings_;
  const bool approximates_;
  ImportedJob imported_;
  std::set<std::string, std::less<>> looked_at_;
  bool leaves_model_ = false;
  std::vector<std::pair<int, std::string>> errors_;  // By line.
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_JOB_IMPORTER_H_
