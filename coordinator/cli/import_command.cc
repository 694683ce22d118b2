#include "coordinator/cli/import_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/import.h"

namespace millrace {
namespace {

struct ImportCommandOptions {
  std::string from;
  std::string path;
  std::string output_path;  // Empty: standard output.
  std::string model_path;
  std::string name = "imported";
  int64_t sequence_length = 0;  // 0: what the file says.
  int32_t num_devices = 0;      // 0: likewise.
  bool approximates = false;
};

// A path that cannot be read is the caller's slip.
absl::StatusOr<std::string> ReadGivenFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(text.status().message());
}

absl::StatusOr<Settings> ReadSettings(Framework framework,
                                      const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadGivenFile(path));
  return framework->read(text, path);
}

// "huggingface (a model's config.json), megatron (...), ...".
std::string ConfigurationsRead() {
  return absl::StrJoin(Adapters(), ", ",
                       [](std::string* out, Framework framework) {
                         absl::StrAppend(out, framework->name, " (",
                                         framework->configuration, ")");
                       });
}

absl::Status RunImport(const ImportCommandOptions& options) {
  const Framework framework = FindAdapter(options.from);
  CHECK(framework != nullptr) << options.from;  // The parser knows the names.
  ASSIGN_OR_RETURN(const Settings settings,
                   ReadSettings(framework, options.path));
  ImportOptions import_options{.name = options.name,
                               .approximates = options.approximates};
  if (options.sequence_length > 0) {
    import_options.sequence_length = options.sequence_length;
  }
  if (options.num_devices > 0) {
    import_options.num_devices = options.num_devices;
  }
  if (!options.model_path.empty()) {
    ASSIGN_OR_RETURN(import_options.model,
                     ReadSettings(HuggingFaceAdapter(), options.model_path));
  }
  ASSIGN_OR_RETURN(const ImportedJob imported,
                   ImportJob(framework, settings, import_options));
  const std::string yaml = ImportedJobToYaml(imported, framework, options.path);
  if (options.output_path.empty()) {
    std::cout << yaml;
    return absl::OkStatus();
  }
  return WriteFileAtomically(options.output_path, yaml);
}

}  // namespace

void AddImportCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ImportCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "import", "Write a job file from the configuration of another framework");
  command
      ->add_option("--from", options->from,
                   "Whose configuration FILE is: " + ConfigurationsRead())
      ->required()
      ->check(CLI::IsMember(ImportNames()));
  command->add_option("FILE", options->path, "The configuration")->required();
  command->add_option("--output", options->output_path,
                      "Write the job file here (default: standard output)");
  command->add_option("--name", options->name,
                      "Name of the job (default: imported)");
  command
      ->add_option("--sequence-length", options->sequence_length,
                   "Tokens of a training sequence (default: what the file "
                   "says, of a model its longest)")
      ->check(CLI::PositiveNumber);
  command->add_option("--model", options->model_path,
                      "The model's config.json, for DeepSpeed, and for a "
                      "torchtitan flavor that is not known here");
  command
      ->add_option("--devices", options->num_devices,
                   "Devices of the whole job, where the file leaves the data "
                   "axis or the global batch to them")
      ->check(CLI::PositiveNumber);
  command->add_flag("--approximate", options->approximates,
                    "Take a Llama-like model without what ours has not and is "
                    "little work (biases, norms of heads, scaled rotary "
                    "positions), to plan it");
  command->footer(
      "Examples:\n"
      "  millrace import --from huggingface config.json --output job.yaml\n"
      "  millrace import --from torchtitan llama3_8b.toml --devices 8\n"
      "  millrace import --from deepspeed ds_config.json --model config.json\n"
      "What is taken, and what is refused: docs/frameworks.md.");
  command->callback([options, exit_code] {
    const absl::Status status = RunImport(*options);
    if (!status.ok()) {
      std::cerr << "millrace import: " << status.message() << std::endl;
    }
    const bool bad_input = absl::IsInvalidArgument(status);
    *exit_code = status.ok() ? 0 : bad_input ? 2 : 1;
  });
}

}  // namespace millrace
