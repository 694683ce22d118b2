// An adapter holds all that Millrace knows of one other training framework: its
// names for the keys of a job, how to read its configuration, and how to write
// a layout as its configuration. Everything that lists frameworks walks
// Adapters().
//
// docs/frameworks.md says how to add one.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_ADAPTER_H_
#define MILLRACE_PLANNER_FRAMEWORKS_ADAPTER_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/frameworks/settings.h"

namespace millrace {

struct Export;         // export_parts.h
struct ImportOptions;  // import.h
class Importer;        // job_importer.h

struct FrameworkKey {
  const char* job_path;  // Path of a JobKey.
  std::string name;      // The framework's flag or key, dots for nesting.
  // The framework's value if the key is left out. Null: the key is required, or
  // another key decides.
  const char* default_text = nullptr;
};

struct FrameworkAdapter {
  const char* name;     // On our command line: "megatron-bridge".
  const char* title;    // "Megatron-Bridge"
  const char* version;  // The versions that the adapter was written for.
  // The files that an import reads, for the command line's help.
  const char* configuration;
  // The keys that only need renaming. The functions below do the rest.
  std::span<const FrameworkKey> keys;

  absl::StatusOr<Settings> (*read)(absl::string_view text,
                                   const std::string& file_name);
  // Takes the settings into the importer's job, up to Importer::Finish().
  void (*take)(const ImportOptions& options, Importer& importer);
  // Null where the framework has no layouts; `why_no_export` then says so.
  absl::StatusOr<std::string> (*write)(Export out) = nullptr;
  const char* why_no_export = "";
  // Paths of the model's options that `write` has no words for; a job that uses
  // one is refused.
  std::span<const char* const> unwritten_options = {};
  // How an export for several hosts is started, behind a semicolon.
  const char* start_on_hosts =
      "the command is for every host, HOST the name of one of them";
};

// Options of a model that have come since most exports were written.
inline constexpr const char* kNewestOptions[] = {"model.rope_scaling.kind",
                                                 "model.sliding_window",
                                                 "model.rotary_dim",
                                                 "model.norm_adds_one",
                                                 "model.output_norms",
                                                 "model.scales_embedding",
                                                 "model.query_pre_attn_scalar",
                                                 "model.attention_softcap",
                                                 "model.logit_softcap",
                                                 "training.attention",
                                                 "training.bf16_end_layers"};

// A framework is known by its adapter. Never null.
using Framework = const FrameworkAdapter*;

// All frameworks, in the order in which messages name them.
std::span<const Framework> Adapters();
// Null for an unknown name.
Framework FindAdapter(absl::string_view name);

// Names of the frameworks that can be imported from, or exported to.
std::vector<std::string> ImportNames();
std::vector<std::string> ExportNames();
// "megatron, nemo or deepspeed".
std::string JoinWithOr(std::span<const std::string> names);

// Each is defined in a source file of its own and listed in adapter.cc.
Framework HuggingFaceAdapter();
Framework MegatronAdapter();
Framework MegatronBridgeAdapter();
Framework NemoAdapter();
Framework TorchtitanAdapter();
Framework DeepSpeedAdapter();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_ADAPTER_H_
