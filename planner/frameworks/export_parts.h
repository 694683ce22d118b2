// The common parts of all frameworks' exports; export.h is the door.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/frameworks/adapter.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"

namespace millrace {

struct Export {
  Framework framework;
  JobSpec job;  // Its layout section pinned to `layout`.
  Layout layout;
  int32_t num_hosts = 1;
  int32_t devices_per_host = 1;
  // Settings that the framework cannot express.
  std::vector<std::string> differences;
  std::vector<std::string> assumptions;

  const char* title() const { return framework->title; }
  // The files of tokens that the job names, without their ".bin".
  std::vector<std::string> indexed_prefixes() const;
  std::string checkpoint_folder() const;
  // Returns the value of a job's key as YAML.
  std::string Value(const char* job_path) const;
  // Whether the key holds a real number.
  bool IsReal(const char* job_path) const;
  // Layers of each chunk in the order in which a micro-batch visits them; a
  // stage without interleaving is one chunk.
  std::vector<LayerRange> Chunks() const;
};

// Keys of a configuration with their values, in the order of their setting.
class KeyValues {
 public:
  using Entry = std::pair<std::string, std::string>;

  void Set(std::string key, std::string value) {
    entries_.emplace_back(std::move(key), std::move(value));
  }
  void Set(std::string key, int64_t value) {
    Set(std::move(key), std::to_string(value));
  }
  void SetText(std::string key, const std::string& value) {
    Set(std::move(key), "\"" + value + "\"");
  }
  // Sets a key that is not set yet.
  void SetDefault(const std::string& key, std::string value) {
    if (std::ranges::find(entries_, key, &Entry::first) == entries_.end()) {
      Set(key, std::move(value));
    }
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

// Returns comment lines: what this file is, what it cannot express, what was
// assumed.
std::vector<std::string> CommentLines(const Export& out);
// Returns the same lines, each after a hash sign.
std::string HashComment(const Export& out);
std::string ShellQuoted(const std::string& text);
// Returns the command that starts a script on every device of this host,
// without the script's name.
std::string TorchrunCommand(const Export& out);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_EXPORT_PARTS_H_
