#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "fault/weight_folder.h"
#include "gmock/gmock.h"
#include "planner/frameworks/model_folder.h"
#include "planner/program/parameters.h"
#include "tests/e2e/job_process.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModelSpec kModel = {.vocab_size = 64,
                              .hidden = 16,
                              .num_layers = 2,
                              .num_heads = 2,
                              .num_kv_heads = 2,
                              .head_dim = 8,
                              .ffn_hidden = 32,
                              .sequence_length = 16};

// A Hugging Face folder with all weights at `value`.
void WriteModelFolder(const std::string& folder, float value) {
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFileAtomically(folder + "/config.json",
                                  *WriteModelConfig(kModel, "float32"))
                  .ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/tokenizer.json", "{}").ok());
  std::vector<SafetensorsTensor> tensors;
  int64_t num_elements = 0;
  for (const Parameter& parameter : ModelParameters(kModel)) {
    SafetensorsTensor tensor{.name = parameter.name};
    if (!parameter.is_vector) tensor.shape.push_back(parameter.rows);
    tensor.shape.push_back(parameter.cols);
    num_elements += tensor.num_elements();
    tensors.push_back(std::move(tensor));
  }
  auto writer = SafetensorsWriter::Create(
      *PosixFileSystem(), folder + "/model.safetensors", tensors,
      {{"value", absl::StrCat(value)}});
  ASSERT_TRUE(writer.ok());
  const std::vector<float> values(num_elements, value);
  ASSERT_TRUE(writer->Append(values.data(), num_elements).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

std::string WriteFromJob(const JobFolder& folder, int num_steps,
                         const std::string& model_keys = "") {
  const std::string path = folder.path + "/job.yaml";
  std::ofstream(path) << "name: tiny\nmodel: {from: " << folder.path
                      << "/model, sequence_length: 16" << model_keys << "}\n"
                      << "data: {synthetic: true}\n"
                      << "training:\n  steps: " << num_steps
                      << "\n  global_batch: 4\n"
                      << "  optimizer: {learning_rate: 1e-3}\n"
                      << "resources: {devices_per_agent: 2, "
                         "threads_per_device: 1}\n"
                      << "checkpoint: {directory: " << folder.path
                      << "/saved, interval_steps: 2}\n"
                      << "output: {directory: " << folder.path << "/runs}\n";
  return path;
}

// Goal: a run starts from a folder's weights, goes on from its own checkpoints
// rather than from the folder, notices another folder, and its checkpoint is
// exported after the folder is gone. Method: the real binary; weights that are
// all alike give a loss of log(vocabulary) in the first step.
TEST(ModelFolderRunTest, StartsResumesAndExports) {
  const JobFolder folder("from");
  WriteModelFolder(folder.path + "/model", 0.01f);
  const std::string job = WriteFromJob(folder, 2);
  {
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    EXPECT_THAT(process.Output(),
                HasSubstr(absl::StrCat("starting from the weights in ",
                                       folder.path, "/model (fingerprint ")));
    const auto metrics = ReadLines(folder, "metrics.jsonl");
    EXPECT_NEAR(metrics[0]["loss"].get<double>(), 4.1589, 1e-3);
  }
  WriteFromJob(folder, 4);
  {
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    EXPECT_THAT(process.Output(),
                AllOf(HasSubstr("saved/step-00000002; its weights take the "
                                "place of those in "),
                      HasSubstr("finished")));
    EXPECT_EQ(ReadLines(folder, "metrics.jsonl").size(), 2u);
  }
  WriteModelFolder(folder.path + "/model", 0.5f);
  {
    JobProcess process(folder, RunCommand(job));
    EXPECT_EQ(process.Wait(), 2) << process.Output();
    EXPECT_THAT(process.Output(),
                AllOf(HasSubstr("is of a training that started from other "
                                "weights, of fingerprint "),
                      HasSubstr("set checkpoint.resume: none")));
  }
  std::filesystem::remove_all(folder.path + "/model");
  JobProcess process(
      folder, {MILLRACE_BINARY, "checkpoint", "export",
               folder.path + "/saved/step-00000004", "--to", "huggingface",
               folder.path + "/out", "--max-shard-size", "4kB"});
  ASSERT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_THAT(process.Output(), HasSubstr("tokenizer.json"));
  EXPECT_TRUE(FileExists(folder.path + "/out/tokenizer.json"));
  EXPECT_TRUE(FileExists(folder.path + "/out/model.safetensors.index.json"));
  EXPECT_FALSE(FileExists(folder.path + "/out.partial"));
  const auto weights =
      WeightFolder::Open(*PosixFileSystem(), folder.path + "/out");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->CheckIsOfModel(kModel).ok());
  EXPECT_TRUE(ReadModelFolder(folder.path + "/out", 16).ok());
  JobProcess again(folder, {MILLRACE_BINARY, "checkpoint", "export",
                            folder.path + "/saved/step-00000004", "--to",
                            "huggingface", folder.path + "/out"});
  EXPECT_EQ(again.Wait(), 1);
  EXPECT_THAT(again.Output(), HasSubstr("is there already"));
}

// Bytes of all files of a folder, by name.
std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto content = ReadFile(entry.path());
    EXPECT_TRUE(content.ok()) << content.status();
    contents[entry.path().filename()] = content.value_or("");
  }
  return contents;
}

// Goal: a run exports its weights as it trains, each folder byte for byte the
// export of the checkpoint of its step; the last one before it ends, too; and
// a place that cannot be written warns and does not end it. Method: the real
// binary, exports between checkpoints, one directory that is a file.
TEST(ModelFolderRunTest, ExportsWhileItTrains) {
  const JobFolder folder("exports");
  WriteModelFolder(folder.path + "/model", 0.01f);
  const std::string job = WriteFromJob(folder, 5);
  const auto with_exports = [&](const std::string& keys) {
    std::string text = *ReadFile(job);
    text.replace(text.find("interval_steps: 2"), 17,
                 "interval_steps: 2, keep: 9");
    std::ofstream(job) << text << "export: {" << keys << "}\n";
  };
  with_exports("every: 3, directory: " + folder.path + "/out");
  {
    JobProcess process(folder, RunCommand(job));
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    EXPECT_THAT(process.Output(),
                AllOf(HasSubstr("exported the weights of step 3 to "),
                      HasSubstr("exported the weights of step 5 to ")));
    EXPECT_EQ(CountEvents(folder, "exported"), 2);
  }
  for (const char* step : {"step-00000003", "step-00000005"}) {
    const std::string by_hand = folder.path + "/by-hand-" + step;
    JobProcess process(folder, {MILLRACE_BINARY, "checkpoint", "export",
                                folder.path + "/saved/" + step, "--to",
                                "huggingface", by_hand});
    ASSERT_EQ(process.Wait(), 0) << process.Output();
    EXPECT_TRUE(FilesOf(folder.path + "/out/" + step) == FilesOf(by_hand))
        << step;
    EXPECT_TRUE(FileExists(by_hand + "/tokenizer.json"));
  }
  std::filesystem::remove_all(folder.path + "/saved");
  WriteFromJob(folder, 3);
  with_exports("every: 1, directory: " + folder.path + "/job.yaml/out");
  JobProcess process(folder, RunCommand(job));
  EXPECT_EQ(process.Wait(), 0) << process.Output();
  EXPECT_THAT(process.Output(), AllOf(HasSubstr("warning: no export of step 3"),
                                      HasSubstr("finished")));
  EXPECT_EQ(CountEvents(folder, "export_failed"), 3);
}

// Goal: a folder that cannot be trained from ends a run before it makes a run
// directory, with exit code 2 and what to do. Method: one fault each.
TEST(ModelFolderRunTest, RefusesBeforeItStarts) {
  const JobFolder folder("from_refused");
  const auto expect_refusal = [&](const std::string& message,
                                  const std::string& keys = "") {
    JobProcess process(folder, RunCommand(WriteFromJob(folder, 2, keys)));
    EXPECT_EQ(process.Wait(), 2);
    EXPECT_THAT(process.Output(), HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(folder.path + "/runs"));
  };
  const std::string model = folder.path + "/model";
  expect_refusal("config.json: the folder is not there");
  WriteModelFolder(model, 1);
  expect_refusal("hidden_size says 16", ", hidden: 32");
  expect_refusal("but model.fingerprint is abc", ", fingerprint: abc");
  const std::string file = model + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
  expect_refusal("model.safetensors is not a whole safetensors file");
  std::filesystem::remove(file);
  expect_refusal("model.from: " + model + ": neither model.safetensors nor");
}

}  // namespace
}  // namespace millrace
