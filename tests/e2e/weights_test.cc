#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "fault/weight_export.h"
#include "fault/weight_folder.h"
#include "gtest/gtest.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"
#include "planner/program/parameters.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/communicate/in_process_communicator.h"

namespace millrace {
namespace {

// One layout of each mesh and ZeRO stage; micro-batches do not shape the state.
std::vector<Layout> MeshesOfWeights() {
  std::vector<Layout> meshes;
  for (const Layout& layout : SmallLayouts()) {
    if (layout.num_microbatches == 1) meshes.push_back(layout);
  }
  return meshes;
}

// Bytes of each tensor as stored.
using RawTensors = std::map<std::string, std::string>;

absl::StatusOr<RawTensors> ReadRaw(const std::string& folder) {
  RawTensors raw;
  FileSystem& files = *PosixFileSystem();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    const std::string path = folder + "/" + name;
    ASSIGN_OR_RETURN(const auto file, files.Open(path));
    ASSIGN_OR_RETURN(const SafetensorsHeader header,
                     ReadSafetensorsHeader(*file, path));
    for (const SafetensorsEntry& entry : header.entries) {
      std::string& bytes = raw[entry.tensor.name];
      bytes.resize(static_cast<size_t>(entry.tensor.num_bytes()));
      RETURN_IF_ERROR(
          file->Read(entry.offset, entry.tensor.num_bytes(), bytes.data()));
    }
  }
  return raw;
}

// A folder of one file, of random numbers that fit the type: no two alike.
absl::Status WriteModel(const JobSpec& job, ElementType type,
                        TensorNaming naming, const std::string& folder) {
  RETURN_IF_ERROR(MakeDirectories(folder));
  ASSIGN_OR_RETURN(const std::string config,
                   WriteModelConfig(job.model, TorchDtype(type)));
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/config.json", config));
  std::vector<SafetensorsTensor> tensors;
  std::vector<float> values;
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.05f);
  for (const Parameter& parameter : ModelParameters(job.model)) {
    const StoredName name = NameInFiles(naming, parameter.name);
    std::vector<int64_t> shape = {parameter.cols};
    if (!parameter.is_vector) shape.insert(shape.begin(), parameter.rows);
    if (name.is_transposed) std::swap(shape[0], shape[1]);
    const float mean = parameter.is_vector ? 1 : 0;
    for (int64_t i = 0; i < parameter.rows * parameter.cols; ++i) {
      values.push_back(mean + normal(random));
    }
    if (!tensors.empty() && tensors.back().name == name.tensor) {
      tensors.back().shape[name.is_transposed ? 1 : 0] +=
          shape[name.is_transposed ? 1 : 0];
      continue;
    }
    tensors.push_back(
        {.name = name.tensor, .shape = std::move(shape), .type = type});
  }
  ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(*PosixFileSystem(), folder + "/" + kWeightFile,
                                tensors, {}));
  RETURN_IF_ERROR(
      writer.Append(values.data(), static_cast<int64_t>(values.size())));
  return writer.Finish();
}

// Trainers load the folder and save a checkpoint before their first step;
// returns the loss of one step after it.
absl::StatusOr<double> LoadSaveAndStep(const JobSpec& job, const Layout& layout,
                                       const std::string& folder,
                                       const std::string& checkpoints) {
  const CheckpointInfo info = {.step = 0,
                               .generation = Generation{1},
                               .layout = layout,
                               .job_yaml = JobToYaml(job)};
  ASSIGN_OR_RETURN(const WeightFolder weights,
                   WeightFolder::Open(*PosixFileSystem(), folder));
  RETURN_IF_ERROR(weights.CheckIsOfModel(job.model));
  InProcessHub hub;
  std::mutex mutex;
  std::vector<std::string> parts;
  double loss = 0;
  RETURN_IF_ERROR(RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        ASSIGN_OR_RETURN(const std::vector<StatePiece> to_fill,
                         trainer.StateToFill());
        RETURN_IF_ERROR(weights.Load(to_fill));
        RETURN_IF_ERROR(trainer.FinishFilling(0));
        ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                         trainer.ReadState());
        ASSIGN_OR_RETURN(std::string part,
                         WriteCheckpointPart(*PosixFileSystem(), checkpoints,
                                             info, rank, pieces));
        ASSIGN_OR_RETURN(const auto step, trainer.RunStep({}));
        const std::lock_guard lock(mutex);
        parts.push_back(std::move(part));
        if (rank == Rank{0}) loss = step->loss;
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(
      CommitCheckpoint(*PosixFileSystem(), checkpoints, info, parts, 1));
  return loss;
}

// Goal: a model that is read and written again without a step has equal bits,
// tensor by tensor, whatever layout held it and however it is cut into files;
// and all layouts train the same model. Method: every mesh of up to four ranks
// for two models, three of them for the other families; bf16 in and out, and
// fp32 once; shards of a few kilobytes.
TEST(WeightsTest, InAndOutIsBitEqual) {
  const std::string root =
      testing::TempDir() + "/weights_test." + std::to_string(getpid());
  std::vector<std::pair<std::string, JobSpec>> jobs = JobsOfFamilies();
  jobs.insert(jobs.begin(), {"plain", SmallJob()});
  jobs.push_back({"fused", SmallJob()});
  for (const auto& [family, job] : jobs) {
    SCOPED_TRACE(family);
    const TensorNaming naming = family == "gpt2"    ? TensorNaming::kGpt2
                                : family == "fused" ? TensorNaming::kFused
                                                    : TensorNaming::kPlain;
    if (!WriteModelConfig(job.model, "float32").ok()) continue;
    std::vector<Layout> layouts = {
        Layout{.micro_batch = 8},
        Layout{.data = 2, .tensor = 2, .micro_batch = 4, .zero = 3},
        Layout{.pipeline = 2, .data = 2, .micro_batch = 4, .zero = 1}};
    if (family == "plain" || family == "gpt2") layouts = MeshesOfWeights();
    for (const ElementType type : {ElementType::kBf16, ElementType::kFp32}) {
      if (type == ElementType::kFp32) layouts.resize(2);
      std::filesystem::remove_all(root);
      const std::string folder = root + "/in";
      const absl::Status written = WriteModel(job, type, naming, folder);
      ASSERT_TRUE(written.ok()) << written;
      const auto raw = ReadRaw(folder);
      ASSERT_TRUE(raw.ok()) << raw.status();
      std::vector<double> losses;
      for (const Layout& layout : layouts) {
        SCOPED_TRACE(LayoutToString(layout));
        const std::string here = absl::StrCat(root, "/", losses.size());
        const auto loss = LoadSaveAndStep(job, layout, folder, here + ".saved");
        ASSERT_TRUE(loss.ok()) << loss.status();
        losses.push_back(*loss);
        EXPECT_NEAR(*loss, losses[0], 2e-5 * losses[0]);
        const absl::Status exported =
            ExportWeightFolder(*PosixFileSystem(),
                               {.checkpoint = here + ".saved/step-00000000",
                                .type = type,
                                .max_shard_bytes = 5000,
                                .naming = naming},
                               here + ".out");
        ASSERT_TRUE(exported.ok()) << exported;
        const auto exported_raw = ReadRaw(here + ".out");
        ASSERT_TRUE(exported_raw.ok()) << exported_raw.status();
        EXPECT_TRUE(*exported_raw == *raw) << "tensors differ";
        const auto again =
            WeightFolder::Open(*PosixFileSystem(), here + ".out");
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_TRUE(again->CheckIsOfModel(job.model).ok());
      }
    }
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace millrace
