#include "coordinator/cli/checkpoint_command.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/model_files.h"
#include "coordinator/objects/stored_files.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"
#include "fault/moved_files.h"
#include "fault/reshard.h"
#include "fault/spread_files.h"
#include "fault/weight_export.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"
#include "planner/text/quantity.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct CheckpointOptions {
  std::string path;
  std::vector<std::string> with;  // The same of other hosts.
  std::string output;
  CheckpointSpec place;  // The endpoint and the region of s3:// paths.
  bool json = false;
  std::string format = "safetensors";
  std::string type;  // Empty: the format's usual one.
  std::string max_shard = "5GB";
  Layout layout;
  int32_t micro_batch = 0;  // 0: as it was, or the largest that divides.
};

OrderedJson LayoutJson(const Layout& layout) {
  OrderedJson json = {{"pipeline", layout.pipeline},
                      {"data", layout.data},
                      {"tensor", layout.tensor},
                      {"micro_batch", layout.micro_batch},
                      {"num_microbatches", layout.num_microbatches},
                      {"zero", layout.zero}};
  if (layout.is_uneven()) {
    json["extra_microbatches"] = layout.extra_microbatches;
  }
  return json;
}

// Parameters alone, without the optimizer's moments.
int64_t CountParameterElements(const Manifest& manifest) {
  int64_t count = 0;
  for (const auto& [name, shape] : manifest.shapes) {
    if (!IsOptimizerState(name)) count += shape.num_elements();
  }
  return count;
}

OrderedJson Describe(const std::string& path, const Manifest& manifest) {
  int64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  const CheckpointInfo& info = manifest.info;
  return {{"path", path},
          {"step", info.step},
          {"generation", ToInt(info.generation)},
          {"seed", info.seed},
          {"samples_consumed", info.samples_consumed},
          {"layout", LayoutJson(info.layout)},
          {"parameters", CountParameterElements(manifest)},
          {"files", manifest.files.size()},
          {"bytes", bytes}};
}

std::string WithoutEndingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The user's folder and those of --with, as one folder.
//
// Hosts' folders of a step lie in folders that stand for each other, too: an
// export needs what lies beside the steps.
absl::StatusOr<std::unique_ptr<SpreadFiles>> FilesOf(
    const CheckpointOptions& options, bool is_step) {
  const std::string path = WithoutEndingSlash(options.path);
  const std::string name = path.substr(path.rfind('/') + 1);
  std::vector<HostDisk> others;
  std::set<std::string> given = {path};
  for (const std::string& with : options.with) {
    const std::string other = WithoutEndingSlash(with);
    if (!given.insert(other).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          other, " is given twice; --with names another host's folder"));
    }
    if (!PosixFileSystem()->Exists(other)) {
      return absl::NotFoundError(
          absl::StrCat("no such folder: ", other, " (--with)"));
    }
    if (is_step && other.substr(other.rfind('/') + 1) != name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--with ", other, ": expected another host's folder of the same ",
          "step, whose name is ", name));
    }
    others.push_back({is_step ? std::make_shared<MovedFiles>(ParentPath(path),
                                                             ParentPath(other))
                              : std::make_shared<MovedFiles>(path, other),
                      other});
  }
  return std::make_unique<SpreadFiles>(
      HostDisk{StoredFilesOf(options.place), path}, std::vector<HostDisk>(),
      std::move(others));
}

// Says which damaged copies were passed over.
void ReportDamagedCopies(SpreadFiles& files) {
  for (const std::string& line : files.TakeDamagedCopies()) {
    std::cerr << "warning: " << line << std::endl;
  }
}

absl::Status RunList(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpreadFiles> files,
                   FilesOf(options, /*is_step=*/false));
  if (!files->Exists(options.path)) {
    return absl::NotFoundError(absl::StrCat("no such folder: ", options.path));
  }
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                   ListCheckpoints(*files, WithoutEndingSlash(options.path)));
  OrderedJson list = OrderedJson::array();
  for (const CheckpointEntry& entry : entries) {
    const auto manifest = ReadManifest(*files, entry.path);
    if (manifest.ok()) {
      list.push_back(Describe(entry.path, *manifest));
    } else {
      list.push_back({{"path", entry.path},
                      {"step", entry.step},
                      {"error", std::string(manifest.status().message())}});
    }
    if (options.json) continue;
    const std::string facts =
        manifest.ok()
            ? absl::StrFormat("%10s   %s",
                              FormatBytes(list.back()["bytes"].get<int64_t>()),
                              LayoutToString(manifest->info.layout))
            : std::string(manifest.status().message());
    std::cout << absl::StrFormat("step %8d   %s   %s\n", entry.step, facts,
                                 entry.path);
  }
  ReportDamagedCopies(*files);
  if (options.json) {
    std::cout << JsonText(list, 2) << std::endl;
  } else if (entries.empty()) {
    std::cout << "no committed checkpoints in " << options.path << std::endl;
  }
  return absl::OkStatus();
}

absl::Status RunShow(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpreadFiles> files,
                   FilesOf(options, /*is_step=*/true));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*files, options.path));
  ReportDamagedCopies(*files);
  OrderedJson json = Describe(options.path, manifest);
  OrderedJson& tensors = json["tensors"] = OrderedJson::object();
  for (const auto& [name, shape] : manifest.shapes) {
    tensors[name] = shape.is_vector
                        ? OrderedJson::array({shape.cols})
                        : OrderedJson::array({shape.rows, shape.cols});
  }
  if (options.json) {
    json["job_yaml"] = manifest.info.job_yaml;
    std::cout << JsonText(json, 2) << std::endl;
    return absl::OkStatus();
  }
  std::cout << absl::StrFormat(
      "step         %d (generation %d)\n"
      "samples      %d consumed, seed %d\n"
      "written by   %s\n"
      "parameters   %s in %d tensors with optimizer state\n"
      "size         %s in %d files\n",
      manifest.info.step, ToInt(manifest.info.generation),
      manifest.info.samples_consumed, manifest.info.seed,
      LayoutToString(manifest.info.layout),
      FormatCount(static_cast<double>(CountParameterElements(manifest))),
      manifest.shapes.size(), FormatBytes(json["bytes"].get<int64_t>()),
      manifest.files.size());
  for (const auto& [name, shape] : tensors.items()) {
    if (IsOptimizerState(name)) continue;
    std::cout << "  " << name << " " << JsonText(shape) << "\n";
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

absl::Status RunVerify(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpreadFiles> files,
                   FilesOf(options, /*is_step=*/true));
  const double start = MonotonicSeconds();
  const absl::Status status = VerifyCopies(*files, options.path);
  const double seconds = MonotonicSeconds() - start;
  const std::vector<std::string> damaged = files->TakeDamagedCopies();
  if (options.json) {
    // A damaged checkpoint is an answer, too: it goes where the answer goes.
    OrderedJson json = {{"path", options.path},
                        {"whole", status.ok()},
                        {"damaged_copies", damaged}};
    if (!status.ok()) json["error"] = std::string(status.message());
    std::cout << JsonText(json, 2) << std::endl;
  }
  RETURN_IF_ERROR(status);
  if (options.json) return absl::OkStatus();
  for (const std::string& line : damaged) std::cout << line << std::endl;
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*files, options.path));
  int64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  std::cout << options.path << " is whole: " << FormatBytes(bytes)
            << " read and compared in " << FormatSeconds(seconds) << std::endl;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ParseShardSize(const std::string& text) {
  ASSIGN_OR_RETURN(const Quantity size, ParseQuantity(text, Dimension::kBytes));
  if (size.value >= 1 && size.value < 9e15) {
    return static_cast<int64_t>(size.value);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--max-shard-size ", text, ": expected a size such as 5GB or 2GiB"));
}

absl::Status RunExport(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SpreadFiles> files,
                   FilesOf(options, /*is_step=*/true));
  const bool makes_folder = options.format == "huggingface";
  WeightExport what = {.checkpoint = options.path};
  const std::string type = !options.type.empty() ? options.type
                           : makes_folder        ? "bf16"
                                                 : "fp32";
  what.type = type == "bf16"   ? ElementType::kBf16
              : type == "fp16" ? ElementType::kFp16
                               : ElementType::kFp32;
  ASSIGN_OR_RETURN(what.max_shard_bytes, ParseShardSize(options.max_shard));
  if (makes_folder) {
    ASSIGN_OR_RETURN(what.other_files,
                     FilesBesideWeights(*files, options.path, what.type));
    ASSIGN_OR_RETURN(
        what.naming,
        NamingOfConfig(what.other_files.at(kModelConfig), kModelConfig));
    RETURN_IF_ERROR(ExportWeightFolder(*files, what, options.output));
  } else {
    RETURN_IF_ERROR(ExportWeightFile(*files, what, options.output));
  }
  ReportDamagedCopies(*files);
  if (options.json) {
    std::cout << JsonText(OrderedJson{{"output", options.output}}, 2)
              << std::endl;
    return absl::OkStatus();
  }
  std::cout << "wrote " << options.output << ": weights in " << type;
  for (const auto& [name, content] : what.other_files) {
    std::cout << ", " << name;
  }
  std::cout << std::endl;
  return absl::OkStatus();
}

// Cuts the same global batch for the new data axis.
absl::Status FitBatch(const Layout& old_layout, int32_t micro_batch,
                      Layout& layout) {
  const int32_t global_batch = old_layout.global_batch();
  if (layout.data < 1 || layout.data > global_batch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data ", layout.data, " replicas cannot share a global ", "batch of ",
        global_batch, " sequences; make it 1 to ", global_batch));
  }
  // Replicas share the batch alike where the micro-batch may be chosen so.
  const int32_t to_divide = micro_batch == 0 && global_batch % layout.data == 0
                                ? global_batch / layout.data
                                : global_batch;
  layout.micro_batch = micro_batch;
  if (micro_batch == 0) {
    layout.micro_batch = static_cast<int32_t>(LargestDivisorUpTo(
        to_divide,
        std::min(old_layout.micro_batch, global_batch / layout.data)));
  }
  if (layout.micro_batch < 1 || global_batch % layout.micro_batch != 0 ||
      global_batch / layout.micro_batch < layout.data) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--micro-batch ", layout.micro_batch, " does not cut the global batch ",
        "of ", global_batch, " sequences into at least one micro-batch for ",
        "each of ", layout.data, " data replicas; make it a divisor of ",
        global_batch, " up to ", global_batch / layout.data));
  }
  layout.ShareBatch(global_batch);
  return absl::OkStatus();
}

absl::Status RunReshard(const CheckpointOptions& options) {
  const PrivateFiles private_files;
  ASSIGN_OR_RETURN(const std::unique_ptr<SpreadFiles> files,
                   FilesOf(options, /*is_step=*/true));
  ASSIGN_OR_RETURN(const CheckpointInfo info,
                   ReadCheckpointInfo(*files, options.path));
  ASSIGN_OR_RETURN(
      const JobSpec job,
      ParseJob(info.job_yaml, absl::StrCat(options.path, " (job_yaml)")));
  Layout layout = options.layout;
  RETURN_IF_ERROR(FitBatch(info.layout, options.micro_batch, layout));
  ASSIGN_OR_RETURN(const CheckpointEntry entry,
                   ReshardCheckpoint(*files, options.path, options.output,
                                     job.model, layout));
  ReportDamagedCopies(*files);
  if (options.json) {
    std::cout << JsonText(OrderedJson{{"path", entry.path},
                                      {"layout", LayoutJson(layout)}},
                          2)
              << std::endl;
  } else {
    std::cout << "wrote " << entry.path << ": " << LayoutToString(layout)
              << std::endl;
  }
  return absl::OkStatus();
}

using Action = absl::Status (*)(const CheckpointOptions&);

struct SubcommandText {
  const char* name;
  const char* purpose;
  const char* argument;
  const char* argument_help;
  const char* example;
};

// Adds a sub-command with its path argument and --json.
CLI::App* AddSubcommand(CLI::App& parent, const SubcommandText& text,
                        Action action,
                        const std::shared_ptr<CheckpointOptions>& options,
                        int* exit_code) {
  CLI::App* command = parent.add_subcommand(text.name, text.purpose);
  command->add_option(text.argument, options->path, text.argument_help)
      ->required();
  command
      ->add_option("--with", options->with,
                   "The same folder as another host has it, where hosts keep "
                   "checkpoints on their own disks; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--endpoint", options->place.endpoint,
                      "The server of s3:// paths; else AWS_ENDPOINT_URL, "
                      "else Amazon's");
  command->add_option("--region", options->place.region,
                      "The region of their bucket; else AWS_REGION");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(absl::StrCat("Example: ", text.example));
  const std::string name = text.name;
  command->callback([options, exit_code, action, name] {
    const absl::Status status = action(*options);
    if (!status.ok()) {
      std::cerr << "millrace checkpoint " << name << ": " << status.message()
                << std::endl;
    }
    *exit_code = status.ok() ? 0 : 1;
  });
  return command;
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "List, verify, export and reshard checkpoints");
  checkpoint->require_subcommand(1);
  checkpoint->footer(
      "Example: millrace checkpoint list runs/quickstart-latest/checkpoints");
  AddSubcommand(*checkpoint,
                {"list", "Committed checkpoints, newest first", "DIRECTORY",
                 "The folder that holds the step folders",
                 "millrace checkpoint list runs/quickstart-latest/checkpoints"},
                RunList, options, exit_code);
  AddSubcommand(
      *checkpoint,
      {"show", "What a checkpoint holds", "PATH", "The folder of one step",
       "millrace checkpoint show checkpoints/step-00000100 --json"},
      RunShow, options, exit_code);
  AddSubcommand(*checkpoint,
                {"verify", "Read every byte and compare checksums", "PATH",
                 "The folder of one step",
                 "\n  millrace checkpoint verify checkpoints/step-00000100"
                 "\n  millrace checkpoint verify node1/step-00000100 "
                 "--with node2/step-00000100 --with node3/step-00000100"},
                RunVerify, options, exit_code);
  CLI::App* export_command = AddSubcommand(
      *checkpoint,
      {"export", "Write the weights as a Hugging Face folder or one file",
       "PATH", "The folder of one step",
       "\n  millrace checkpoint export checkpoints/step-00000100 "
       "--to huggingface llama-tuned"
       "\n  millrace checkpoint export checkpoints/step-00000100 "
       "model.safetensors"},
      RunExport, options, exit_code);
  export_command
      ->add_option("OUTPUT", options->output, "The folder or file to write")
      ->required();
  export_command
      ->add_option("--to", options->format,
                   "huggingface: a folder that Transformers and vLLM open, "
                   "which must not be there yet; safetensors: one file")
      ->capture_default_str()
      ->check(CLI::IsMember({"huggingface", "safetensors"}));
  export_command
      ->add_option("--dtype", options->type,
                   "Type of the weights; default: bf16 in a folder, fp32 in "
                   "one file")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  export_command
      ->add_option("--max-shard-size", options->max_shard,
                   "Bytes of one file of a folder at most")
      ->capture_default_str();
  CLI::App* reshard = AddSubcommand(
      *checkpoint,
      {"reshard", "Rewrite a checkpoint under another layout", "PATH",
       "The folder of one step",
       "millrace checkpoint reshard checkpoints/step-00000100 resharded "
       "--pipeline 2 --tensor 2 --zero 1"},
      RunReshard, options, exit_code);
  reshard
      ->add_option("OUTPUT", options->output,
                   "The folder to write the step folder into")
      ->required();
  reshard->add_option("--pipeline", options->layout.pipeline, "Stages")
      ->capture_default_str();
  reshard->add_option("--data", options->layout.data, "Replicas")
      ->capture_default_str();
  reshard->add_option("--tensor", options->layout.tensor, "Shards of a layer")
      ->capture_default_str();
  reshard
      ->add_option("--zero", options->layout.zero,
                   "1: optimizer state sharded over the replicas")
      ->capture_default_str()
      ->check(CLI::IsMember({0, 1}));
  reshard->add_option("--micro-batch", options->micro_batch,
                      "Sequences; default: as it was, where that divides");
}

}  // namespace millrace
