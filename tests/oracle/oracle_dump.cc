// Trains a small model on one rank and writes all that an independent
// implementation needs to check it: see oracle_test.py.
//
//   oracle_dump CASE FOLDER [MODEL]
//
// MODEL is a Hugging Face folder: the case then has its model and weights.
//
// FOLDER/case.json           model, optimizer, parameters (names and shapes)
// and,
//                            for each step, loss, gradient norm, learning rate
// FOLDER/initial/NAME        parameters before the first step, fp32
// FOLDER/gradient/NAME       gradients of the first step, before clipping, fp32
// FOLDER/final/NAME          parameters after the last step, fp32
// FOLDER/checkpoints         the state after the last step
// FOLDER/step-K.batch        tokens, targets, document_starts of step K, int32;
//                            of pairs also pair_starts and, in fp32, references

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/model_files.h"
#include "fault/checkpoint.h"
#include "fault/weight_folder.h"
#include "planner/frameworks/model_folder.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "tests/oracle/describe_job.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/data/dataset.h"

namespace millrace {
namespace {

constexpr int64_t kNumSteps = 10;

// Layers with a window and layers without, and softcaps that bend.
void AddGemmasOptions(bool is_third, ModelSpec* model) {
  model->num_layers = 3;
  model->feed_forward = FeedForward::kGeglu;
  model->ties_embedding = true;
  model->norm_adds_one = model->output_norms = model->scales_embedding = true;
  model->sliding_window = 9;
  model->global_layer_period = is_third ? 3 : 2;
  model->query_pre_attn_scalar = 20;
  if (is_third) {
    model->qk_norm = true;
    model->sliding_rope_theta = 50;
    model->rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 4};
  } else {
    model->attention_softcap = 1.5;
    model->logit_softcap = 2;
  }
}

// Odd sizes on purpose: nothing is a multiple of a vector or tile.
absl::StatusOr<JobSpec> JobOf(const std::string& name) {
  JobSpec job;
  job.name = name;
  job.training.num_steps = kNumSteps;
  job.training.seed = 11;
  job.training.optimizer.learning_rate = 3e-3;
  job.training.optimizer.min_learning_rate = 3e-4;
  job.training.optimizer.warmup_steps = 3;
  if (name == "grouped") {  // Grouped-query attention, clipping at work.
    job.model = {.vocab_size = 131,
                 .hidden = 36,
                 .num_layers = 3,
                 .num_heads = 6,
                 .num_kv_heads = 2,
                 .head_dim = 10,
                 .ffn_hidden = 52,
                 .sequence_length = 37,
                 .init_std = 0.08};
    job.training.global_batch = 6;
    job.training.gradient_clip_norm = 0.5;
  } else if (name == "plain") {  // A key-value head each, no clipping.
    job.model = {.vocab_size = 67,
                 .hidden = 24,
                 .num_layers = 2,
                 .num_heads = 3,
                 .num_kv_heads = 3,
                 .head_dim = 8,
                 .ffn_hidden = 41,
                 .sequence_length = 50,
                 .rope_theta = 500.0,
                 .norm_epsilon = 1e-6,
                 .init_std = 0.1};
    job.training.global_batch = 4;
    job.training.gradient_clip_norm = 0;
    job.training.optimizer.weight_decay = 0.01;
    job.training.optimizer.decay = LearningRateDecay::kLinear;
  } else if (name == "scaled_rope" || name == "biases" || name == "qk_norm" ||
             name == "tied" || name == "sliding_window" || name == "gpt2" ||
             name == "all_biases" || name == "gemma2" || name == "gemma3" ||
             name == "phi4_mini" || name == "gelu_erf" ||
             name == "preference") {
    job.model = {.vocab_size = 83,
                 .hidden = 28,
                 .num_layers = 2,
                 .num_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 14,
                 .ffn_hidden = 45,
                 .sequence_length = 41,
                 .rope_theta = 300.0,
                 .norm_epsilon = 1e-6,
                 .init_std = 0.1};
    job.training.global_batch = 4;
    job.training.gradient_clip_norm = 0;
    if (name == "scaled_rope") {  // Wavelengths of all three kinds.
      job.model.rope_scaling = {.kind = RopeScalingKind::kLlama3,
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_position_embeddings = 60};
    }
    job.model.qkv_bias = name == "biases";
    job.model.qk_norm = name == "qk_norm";
    job.model.ties_embedding = name == "tied" || name == "gpt2";
    if (name == "gpt2" || name == "all_biases") {
      job.model.num_kv_heads = 4;
      job.model.qkv_bias = job.model.linear_bias = true;
    }
    if (name == "gpt2") {  // More positions than a sequence has.
      job.model.feed_forward = FeedForward::kGelu;
      job.model.norm = NormKind::kLayer;
      job.model.learned_positions = 47;
    }
    if (name == "sliding_window") job.model.sliding_window = 9;
    if (name == "gelu_erf") job.model.feed_forward = FeedForward::kGeluErf;
    if (name == "gemma2" || name == "gemma3") {
      AddGemmasOptions(name == "gemma3", &job.model);
    }
    if (name == "phi4_mini") {  // Part of a head is rotated.
      job.model.ties_embedding = true;
      job.model.rotary_dim = 10;
      job.model.rope_factors = {1.0, 1.25, 1.5, 3.0, 7.5};
      job.model.rope_scaling = {.kind = RopeScalingKind::kLongrope,
                                .attention_factor = 1.2};
    }
    if (name == "preference") {
      job.training.objective = "dpo";
      job.training.dpo_beta = 0.3;
      job.training.dpo_label_smoothing = 0.05;
      job.training.gradient_clip_norm = 0.01;
    }
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown case ", name,
        "; known: grouped, plain, scaled_rope, biases, qk_norm, tied, gpt2, "
        "all_biases, sliding_window, gemma2, gemma3, phi4_mini, gelu_erf, "
        "preference"));
  }
  return job;
}

// Cuts each sequence into two pairs of answers and a rest without targets. The
// first two places of an answer train nothing. References are made up.
class PairsOfTokens : public BatchSource {
 public:
  PairsOfTokens(BatchSource* tokens, int64_t sequence_length)
      : tokens_(tokens), length_(sequence_length) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    RETURN_IF_ERROR(tokens_->Fill(request, out));
    for (int64_t i = 0; i < request.num_sequences; ++i) {
      CutSequence(request.step + request.first_sequence_idx + i,
                  OneSequence(out, i, length_));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<double> TrainedShare(DataSplit, int64_t, int64_t) override {
    return 2 / static_cast<double>(length_);  // Two pairs a sequence.
  }

 private:
  void CutSequence(int64_t number, const BatchPointers& out) const {
    // Where the answers begin, and the rest.
    const std::array<int64_t, 5> begins = {0, 5 + number % 4, 14 + number % 3,
                                           22, length_ - 2};
    for (int64_t t = 0; t < length_; ++t) {
      const auto answer = std::upper_bound(begins.begin(), begins.end(), t) -
                          begins.begin() - 1;
      const bool is_rest = answer == 4;
      out.document_starts[t] = static_cast<int32_t>(begins[answer]);
      if (is_rest || t < begins[answer] + 2) out.targets[t] = -1;
      out.pair_starts[t] =
          is_rest ? -1 : static_cast<int32_t>(begins[answer / 2 * 2]);
      out.references[t] =
          is_rest ? 0
                  : -20.0f - static_cast<float>((number * 7 + answer * 5) % 11);
    }
  }

  BatchSource* const tokens_;
  const int64_t length_;
};

// Documents of random ids and lengths, most shorter than a sequence.
absl::Status WriteData(const JobSpec& job, const std::string& prefix) {
  ASSIGN_OR_RETURN(IndexedDatasetWriter writer,
                   IndexedDatasetWriter::Create(prefix, TokenType::kUint16));
  std::mt19937 random(5);
  const int64_t num_needed =
      2 * kNumSteps * job.training.global_batch * job.model.sequence_length;
  for (int64_t written = 0; written < num_needed;) {
    std::vector<int32_t> document(
        1 + random() % static_cast<uint32_t>(job.model.sequence_length));
    for (int32_t& token : document) {
      token = static_cast<int32_t>(random() %
                                   static_cast<uint32_t>(job.model.vocab_size));
    }
    RETURN_IF_ERROR(writer.AddDocument(document));
    written += static_cast<int64_t>(document.size());
  }
  return writer.Finish();
}

template <typename T>
absl::Status WriteArray(const std::string& path, const T* data,
                        int64_t num_elements) {
  return WriteFileAtomically(
      path, absl::string_view(reinterpret_cast<const char*>(data),
                              static_cast<size_t>(num_elements) * sizeof(T)));
}

// The start of the persistent arena, which holds parameters and gradients:
// follows from where the state description says the first parameter lies.
const char* PersistentArena(Trainer& trainer) {
  const Program& program = trainer.program();
  const absl::StatusOr<std::vector<StatePiece>> pieces = trainer.ReadState();
  CHECK(pieces.ok());
  for (const StatePiece& piece : *pieces) {
    for (const ParameterSlot& slot : program.parameters.slots) {
      if (slot.parameter.name != piece.tensor || piece.begin != 0) continue;
      const Buffer& buffer =
          program.buffers[static_cast<size_t>(program.parameters_buffer)];
      return reinterpret_cast<const char*>(piece.data - slot.offset) -
             buffer.offset_bytes;
    }
  }
  CHECK(false) << "no parameter in the state";
}

// Writes every parameter's part of a flat buffer; one rank holds all of each.
absl::Status WriteFlat(Trainer& trainer, BufferId buffer_id,
                       const std::string& folder) {
  RETURN_IF_ERROR(MakeDirectories(folder));
  const Program& program = trainer.program();
  const auto* flat = reinterpret_cast<const float*>(
      PersistentArena(trainer) +
      program.buffers[static_cast<size_t>(buffer_id)].offset_bytes);
  for (const ParameterSlot& slot : program.parameters.slots) {
    RETURN_IF_ERROR(WriteArray(absl::StrCat(folder, "/", slot.parameter.name),
                               flat + slot.offset,
                               slot.local_rows * slot.local_cols));
  }
  return absl::OkStatus();
}

// Reads the step's global batch from a dataset of its own, as any layout would.
absl::Status WriteBatch(const JobSpec& job, BatchSource& batches, int64_t step,
                        const std::string& path) {
  const int64_t size = job.training.global_batch * job.model.sequence_length;
  const bool has_pairs = job.training.trains_preferences();
  const int64_t num_elements = (has_pairs ? 5 : 3) * size;
  std::vector<int32_t> batch(static_cast<size_t>(num_elements));
  int32_t* const data = batch.data();
  RETURN_IF_ERROR(batches.Fill(
      {DataSplit::kTraining, step, job.training.global_batch, 0,
       job.training.global_batch},
      {.tokens = data,
       .targets = data + size,
       .document_starts = data + 2 * size,
       .pair_starts = has_pairs ? data + 3 * size : nullptr,
       .references =
           has_pairs ? reinterpret_cast<float*>(data + 4 * size) : nullptr}));
  return WriteArray(path, data, num_elements);
}

nlohmann::json DescribeCase(const JobSpec& job,
                            const StageParameters& parameters) {
  nlohmann::json json = DescribeJob(job);
  json["parameters"] = nlohmann::json::array();
  json["steps"] = nlohmann::json::array();
  for (const ParameterSlot& slot : parameters.slots) {
    nlohmann::json shape = {slot.local_rows, slot.local_cols};
    if (slot.parameter.is_vector) shape = {slot.local_cols};
    json["parameters"].push_back(
        {{"name", slot.parameter.name}, {"shape", shape}});
  }
  return json;
}

// The case's job with the model of a Hugging Face folder.
absl::StatusOr<JobSpec> WithModelOf(const std::string& folder, JobSpec job) {
  ASSIGN_OR_RETURN(const FolderModel model,
                   ReadModelFolder(folder, job.model.sequence_length));
  for (const auto& [path, stated] : model) {
    CHECK(SetJobValue(*FindJobKey(path), stated.value, &job)) << path;
  }
  job.model_from = folder;
  return job;
}

absl::Status LoadWeights(const std::string& folder, const ModelSpec& model,
                         Trainer& trainer) {
  ASSIGN_OR_RETURN(const WeightFolder weights,
                   WeightFolder::Open(*PosixFileSystem(), folder));
  RETURN_IF_ERROR(weights.CheckIsOfModel(model));
  ASSIGN_OR_RETURN(const auto pieces, trainer.StateToFill());
  RETURN_IF_ERROR(weights.Load(pieces));
  return trainer.FinishFilling(0);
}

absl::Status SaveCheckpoint(JobSpec job, const Layout& layout, Trainer& trainer,
                            const std::string& folder) {
  job.data.synthetic = true;  // So that the job can be read back.
  const CheckpointInfo info = {.step = trainer.completed_steps(),
                               .generation = Generation{1},
                               .layout = layout,
                               .job_yaml = JobToYaml(job)};
  ASSIGN_OR_RETURN(const auto pieces, trainer.ReadState());
  FileSystem& files = *PosixFileSystem();
  ASSIGN_OR_RETURN(const std::string part,
                   WriteCheckpointPart(files, folder, info, Rank{0}, pieces));
  RETURN_IF_ERROR(KeepModelFiles(files, job, folder));
  return CommitCheckpoint(files, folder, info, {part}, 1);
}

absl::Status Dump(const std::string& case_name, const std::string& folder,
                  const std::string& model_folder) {
  ASSIGN_OR_RETURN(JobSpec job, JobOf(case_name));
  if (!model_folder.empty()) {
    ASSIGN_OR_RETURN(job, WithModelOf(model_folder, job));
  }
  RETURN_IF_ERROR(MakeDirectories(folder));
  RETURN_IF_ERROR(WriteData(job, folder + "/tokens"));
  const DatasetOptions data_options{
      .prefixes = {folder + "/tokens"},
      .vocab_size = job.model.vocab_size,
      .sequence_length = job.model.sequence_length,
      .seed = job.training.seed};
  ASSIGN_OR_RETURN(const auto trained, PackedDataset::Open(data_options));
  ASSIGN_OR_RETURN(const auto written, PackedDataset::Open(data_options));

  PairsOfTokens pairs(trained.get(), job.model.sequence_length);
  PairsOfTokens written_pairs(written.get(), job.model.sequence_length);
  const bool has_pairs = job.training.trains_preferences();
  BatchSource& written_batches =
      has_pairs ? static_cast<BatchSource&>(written_pairs) : *written;

  InProcessHub hub;
  const auto communicators = hub.NewFactory();
  Layout layout{.micro_batch = 2, .objective = job.training.minimizes()};
  layout.num_microbatches =
      static_cast<int32_t>(job.training.global_batch / layout.micro_batch);
  ASSIGN_OR_RETURN(
      const auto trainer,
      CreateCpuTrainer({.job = job,
                        .layout = layout,
                        .rank = Rank{0},
                        .num_threads = 2,
                        .communicators = communicators.get(),
                        .batches = has_pairs ? static_cast<BatchSource*>(&pairs)
                                             : trained.get()}));
  if (!model_folder.empty()) {
    RETURN_IF_ERROR(LoadWeights(model_folder, job.model, *trainer));
  }
  const Program& program = trainer->program();
  nlohmann::json json = DescribeCase(job, program.parameters);
  if (has_pairs) {
    json["preference"] = {
        {"beta", job.training.dpo_beta},
        {"label_smoothing", job.training.dpo_label_smoothing}};
  }
  RETURN_IF_ERROR(
      WriteFlat(*trainer, program.parameters_buffer, folder + "/initial"));
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    RETURN_IF_ERROR(WriteBatch(job, written_batches, step,
                               absl::StrCat(folder, "/step-", step, ".batch")));
    ASSIGN_OR_RETURN(const auto result, trainer->RunStep({}));
    json["steps"].push_back({{"loss", result->loss},
                             {"gradient_norm", result->gradient_norm},
                             {"learning_rate", result->learning_rate}});
    if (result->preference.has_value()) {
      json["steps"].back()["rewards"] = {
          {"chosen", result->preference->chosen_reward},
          {"rejected", result->preference->rejected_reward},
          {"accuracy", result->preference->accuracy}};
    }
    if (step == 1) {
      RETURN_IF_ERROR(
          WriteFlat(*trainer, program.gradients_buffer, folder + "/gradient"));
    }
  }
  RETURN_IF_ERROR(
      WriteFlat(*trainer, program.parameters_buffer, folder + "/final"));
  RETURN_IF_ERROR(
      SaveCheckpoint(job, layout, *trainer, folder + "/checkpoints"));
  return WriteFileAtomically(folder + "/case.json", json.dump(1));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: oracle_dump CASE FOLDER [MODEL]\n";
    return 2;
  }
  const absl::Status status =
      millrace::Dump(argv[1], argv[2], argc == 4 ? argv[3] : "");
  if (!status.ok()) std::cerr << "oracle_dump: " << status << "\n";
  return status.ok() ? 0 : 1;
}
