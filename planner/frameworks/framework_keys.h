// How other training frameworks call what a job says: one table a framework,
// which export, import and docs/frameworks.md share. What needs more than a
// renaming (data axis, decay, precision ...) is in export.cc and import_*.cc.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_FRAMEWORK_KEYS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_FRAMEWORK_KEYS_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "planner/layout/model.h"

namespace millrace {

enum class Framework {
  kMegatron,
  kMegatronBridge,
  kNemo,
  kTorchtitan,
  kDeepSpeed,
  kHuggingFace,
};

struct FrameworkKey {
  const char* job_path;  // Of a JobKey.
  const char* name;      // Of the framework's flag or key, dots for nesting.
  // What the framework takes where the key is left out; null: the key is
  // required, or another key decides.
  const char* default_text = nullptr;
};

std::span<const FrameworkKey> FrameworkKeys(Framework framework);

// "Megatron-LM", and the versions its table was written for.
const char* FrameworkTitle(Framework framework);
const char* FrameworkVersion(Framework framework);

// From "megatron", "megatron-bridge", "nemo", "torchtitan", "deepspeed" or
// "huggingface".
std::optional<Framework> FrameworkFromName(absl::string_view name);

// A model that torchtitan's llama3 knows by name. Its sequence_length is 0: the
// job decides it.
struct TorchtitanFlavor {
  const char* name;
  ModelSpec model;
};
std::span<const TorchtitanFlavor> TorchtitanFlavors();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_FRAMEWORK_KEYS_H_
