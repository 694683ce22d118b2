#include "coordinator/cli/import_command.h"

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint_files.h"
#include "fault/file_system.h"
#include "fault/weight_export.h"
#include "fault/weight_import.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/import.h"
#include "planner/frameworks/model_folder.h"

namespace millrace {
namespace {

struct ImportCommandOptions {
  std::string from;
  std::string path;
  std::string weights;      // A checkpoint, instead of a configuration.
  std::string output_path;  // Empty: standard output.
  std::string model_path;
  std::string name = "imported";
  int64_t sequence_length = 0;  // 0: what the file says.
  int32_t num_devices = 0;      // 0: what the file says.
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

// Weights of another framework's checkpoint, as a Hugging Face folder.
absl::Status ImportWeights(const ImportCommandOptions& options) {
  if (!options.from.empty() || !options.path.empty()) {
    return absl::InvalidArgumentError(
        "--weights goes with --model and --output, without --from and FILE");
  }
  if (options.model_path.empty() || options.output_path.empty()) {
    return absl::InvalidArgumentError(
        "--weights needs --model, the folder with the model's config.json, and "
        "--output, the folder to write");
  }
  FileSystem& files = *PosixFileSystem();
  const std::string& given = options.model_path;
  const bool names_file = absl::EndsWith(given, ".json");
  const std::string folder = names_file ? ParentPath(given) : given;
  if (names_file && given != kModelConfig &&
      !absl::EndsWith(given, absl::StrCat("/", kModelConfig))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model ", given, ": expected the folder with a ", kModelConfig));
  }
  ASSIGN_OR_RETURN(const ModelSpec model, ReadModelOfFolder(folder));
  const std::string config = JoinPath(folder, kModelConfig);
  ASSIGN_OR_RETURN(const std::string config_text, ReadGivenFile(config));
  ASSIGN_OR_RETURN(const TensorNaming naming,
                   NamingOfConfig(config_text, config));
  if (naming != TensorNaming::kPlain) {
    return absl::InvalidArgumentError(absl::StrCat(
        config,
        ": tensors of this family are packed in a way that imports of "
        "checkpoints do not know yet; convert the checkpoint with the "
        "framework that wrote it"));
  }
  ASSIGN_OR_RETURN(const WeightImport weights,
                   WeightImport::Open(files, options.weights, model));
  using Contents = std::map<std::string, std::string>;
  ASSIGN_OR_RETURN(Contents others,
                   FilesBesideWeightsOf(files, folder, weights.type()));
  RETURN_IF_ERROR(weights.Write(files, std::move(others), kMaxShardBytes,
                                options.output_path));
  std::cout << "wrote " << options.output_path << ": " << weights.num_tensors()
            << " tensors, " << FormatBytes(weights.num_bytes()) << ", from "
            << weights.folder() << " with " << weights.naming() << "'s names\n";
  if (weights.num_skipped() > 0) {
    std::cout << "left out " << weights.num_skipped()
              << " tensors of training state\n";
  }
  if (weights.num_padding_rows() > 0) {
    std::cout << "left out " << weights.num_padding_rows()
              << " rows of embedding and head beyond the vocabulary\n";
  }
  std::cout << "train from it with `model: {from: " << options.output_path
            << "}`" << std::endl;
  return absl::OkStatus();
}

absl::Status RunImport(const ImportCommandOptions& options) {
  if (!options.weights.empty()) return ImportWeights(options);
  if (options.from.empty() || options.path.empty()) {
    return absl::InvalidArgumentError(
        "give --from and FILE for a job file, or --weights for weights");
  }
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
      "import",
      "Write a job file from the configuration of another framework, or a "
      "Hugging Face folder from its checkpoint");
  command
      ->add_option("--from", options->from,
                   "Whose configuration FILE is: " + ConfigurationsRead())
      ->check(CLI::IsMember(ImportNames()));
  command->add_option("FILE", options->path, "The configuration");
  command->add_option("--weights", options->weights,
                      "A checkpoint of torch.distributed.checkpoint (FSDP, "
                      "torchtitan) or of Megatron-Core (torch_dist), whose "
                      "weights become a Hugging Face folder");
  command->add_option("--output", options->output_path,
                      "Write the job file here (default: standard output), or "
                      "with --weights the folder");
  command->add_option("--name", options->name,
                      "Name of the job (default: imported)");
  command
      ->add_option("--sequence-length", options->sequence_length,
                   "Tokens of a training sequence (default: what the file "
                   "says, of a model its longest)")
      ->check(CLI::PositiveNumber);
  command->add_option("--model", options->model_path,
                      "The model's config.json, for DeepSpeed, and for a "
                      "torchtitan flavor that is not known here; with "
                      "--weights its folder, whose tokenizer goes along");
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
      "  millrace import --weights checkpoint/step-1000 --model llama-3-8b "
      "--output llama-tuned\n"
      "What is taken, and what is refused: docs/frameworks.md, and of weights "
      "docs/models.md.");
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
