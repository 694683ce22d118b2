// Computes one training step of a small model, on the CPU or a GPU, and writes
// all that Hugging Face's implementation needs to check it: see
// huggingface_oracle.py.
//
//   step_dump CASE cpu|cuda fp32|bf16 FOLDER
//
// FOLDER/case.json              as describe_job.h, and the case, backend,
//                               precision, loss and gradient norm
// FOLDER/weights.safetensors    parameters as the kernels read them
// FOLDER/gradients.safetensors  of the mean loss, before clipping
// FOLDER/hidden.safetensors     "hidden" [tokens, hidden]: what the head
//                               multiplies
// FOLDER/batch.i32              tokens, targets, document_starts, each
//                               [global_batch, sequence_length], int32

#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "fault/file_system.h"
#include "fault/safetensors.h"
#include "planner/lower/lower.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/oracle/describe_job.h"
#include "worker/cpu/stepper.h"
#include "worker/cuda/train/stepper.h"

namespace millrace {
namespace {

struct DumpRequest {
  std::string case_name;
  std::string backend;
  Precision precision;
  std::string folder;
};

absl::StatusOr<JobSpec> JobOf(const std::string& name) {
  JobSpec job;
  job.name = name;
  job.training.num_steps = 10;
  job.training.global_batch = 4;
  job.training.seed = 11;
  job.training.optimizer.learning_rate = 1e-3;
  if (name == "odd") {  // Sizes that only kernels for any shape take.
    job.model = {.vocab_size = 131,
                 .hidden = 36,
                 .num_layers = 3,
                 .num_heads = 6,
                 .num_kv_heads = 2,
                 .head_dim = 10,
                 .ffn_hidden = 52,
                 .sequence_length = 37,
                 .init_std = 0.08};
  } else if (name == "narrow" || name == "llama3.2" || name == "qwen2" ||
             name == "gpt2" || name == "gpt2_erf" || name == "phi4_mini") {
    // Fast kernels, heads of 64.
    job.model = {.vocab_size = 1024,
                 .hidden = 512,
                 .num_layers = 4,
                 .num_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .ffn_hidden = 1536,
                 .sequence_length = 256,
                 .rope_theta = 500000.0};
    job.model.ties_embedding = name != "narrow";
    const bool is_gpt2 = name == "gpt2" || name == "gpt2_erf";
    job.model.qkv_bias = name == "qwen2" || is_gpt2;
    if (is_gpt2) {
      job.model.num_kv_heads = job.model.num_heads;
      job.model.learned_positions = 320;
      job.model.norm = NormKind::kLayer;
      job.model.feed_forward =
          name == "gpt2" ? FeedForward::kGelu : FeedForward::kGeluErf;
      job.model.linear_bias = true;
    }
    if (name == "phi4_mini") {
      job.model.rotary_dim = 48;
      for (int i = 0; i < 24; ++i) {
        job.model.rope_factors.push_back(1 + 0.25 * i);
      }
      job.model.rope_scaling = {.kind = RopeScalingKind::kLongrope,
                                .attention_factor = 1.2};
    }
    if (name == "llama3.2") {
      job.model.rope_scaling = {.kind = RopeScalingKind::kLlama3,
                                .factor = 32,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_position_embeddings = 128};
    }
  } else if (name == "wide" || name == "qwen3" || name == "mistral") {
    // Fast kernels, heads of 128.
    job.model = {.vocab_size = 2048,
                 .hidden = 1024,
                 .num_layers = 2,
                 .num_heads = 8,
                 .num_kv_heads = 4,
                 .head_dim = 128,
                 .ffn_hidden = 2816,
                 .sequence_length = 256,
                 .norm_epsilon = 1e-6};
    job.model.qk_norm = name == "qwen3";
    if (name == "mistral") job.model.sliding_window = 70;
  } else if (name == "gemma2" || name == "gemma3") {
    // Heads of 256, layers of both kinds.
    job.model = {.vocab_size = 2048,
                 .hidden = 512,
                 .num_layers = 3,
                 .num_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 256,
                 .ffn_hidden = 1536,
                 .sequence_length = 256,
                 .norm_epsilon = 1e-6,
                 .feed_forward = FeedForward::kGeglu,
                 .ties_embedding = true,
                 .sliding_window = 70,
                 .global_layer_period = name == "gemma3" ? 3 : 2,
                 .norm_adds_one = true,
                 .output_norms = true,
                 .scales_embedding = true,
                 .query_pre_attn_scalar = 200};
    if (name == "gemma2") {
      job.model.attention_softcap = 2;
      job.model.logit_softcap = 3;
    } else {
      job.model.qk_norm = true;
      job.model.rope_theta = 1e6;
      job.model.sliding_rope_theta = 1e4;
      job.model.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 8};
    }
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown case ", name,
                     "; known: odd, narrow, wide, llama3.2, qwen2, qwen3, "
                     "mistral, gpt2, gpt2_erf, phi4_mini, gemma2, gemma3"));
  }
  return job;
}

absl::Status WriteTensors(const std::string& path,
                          std::vector<SafetensorsTensor> tensors,
                          const std::vector<const float*>& data) {
  std::vector<int64_t> counts;
  for (const SafetensorsTensor& tensor : tensors) {
    counts.push_back(tensor.num_elements());
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(*PosixFileSystem(), path,
                                             std::move(tensors), {}));
  for (size_t i = 0; i < counts.size(); ++i) {
    RETURN_IF_ERROR(writer.Append(data[i], counts[i]));
  }
  return writer.Finish();
}

// The parameters' parts of a flat buffer.
absl::Status WriteFlat(const StageParameters& parameters,
                       const std::vector<float>& flat,
                       const std::string& path) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<const float*> data;
  for (const ParameterSlot& slot : parameters.slots) {
    const Parameter& p = slot.parameter;
    std::vector<int64_t> shape = {p.rows, p.cols};
    if (p.is_vector) shape = {p.cols};
    tensors.push_back({.name = p.name, .shape = std::move(shape)});
    data.push_back(flat.data() + slot.offset);
  }
  return WriteTensors(path, std::move(tensors), data);
}

absl::Status WriteBatch(const JobSpec& job, BatchSource& batches,
                        const std::string& path) {
  const int64_t global_batch = job.training.global_batch;
  const int64_t size = global_batch * job.model.sequence_length;
  std::vector<int32_t> batch(static_cast<size_t>(3 * size));
  RETURN_IF_ERROR(batches.Fill(
      {DataSplit::kTraining, 1, global_batch, 0, global_batch},
      {batch.data(), batch.data() + size, batch.data() + 2 * size}));
  return WriteFileAtomically(
      path, absl::string_view(reinterpret_cast<const char*>(batch.data()),
                              batch.size() * sizeof(int32_t)));
}

// A CPU's makes its initial weights itself; a GPU is given them.
absl::StatusOr<std::unique_ptr<Stepper>> MakeStepper(
    const DumpRequest& request, const StepperOptions& options,
    const Program& fp32_program) {
  StepperOptions cpu_options = options;
  cpu_options.program = &fp32_program;
  ASSIGN_OR_RETURN(std::unique_ptr<CpuStepper> cpu,
                   CpuStepper::Create(cpu_options));
  if (request.backend == "cpu") return cpu;
  ASSIGN_OR_RETURN(std::unique_ptr<Stepper> gpu, CreateCudaStepper(options));
  ASSIGN_OR_RETURN(const std::vector<float> parameters, ReadParameters(*cpu));
  RETURN_IF_ERROR(WriteParameters(parameters, *gpu));
  return gpu;
}

// Runs the whole step; returns what the head multiplied, of all micro-batches.
absl::StatusOr<std::vector<float>> RunStep(Stepper& stepper) {
  std::vector<float> hidden;
  const std::vector<Instruction>& instructions = stepper.program().instructions;
  for (size_t id = 0; id < instructions.size(); ++id) {
    if (instructions[id].kind == OpKind::kLinearCrossEntropy) {
      ASSIGN_OR_RETURN(const std::vector<float> part,
                       stepper.Read(instructions[id].inputs[0]));
      hidden.insert(hidden.end(), part.begin(), part.end());
    }
    RETURN_IF_ERROR(stepper.Run(static_cast<InstructionId>(id)));
  }
  return hidden;
}

absl::Status Dump(const DumpRequest& request) {
  ASSIGN_OR_RETURN(const JobSpec job, JobOf(request.case_name));
  RETURN_IF_ERROR(MakeDirectories(request.folder));
  Layout layout = {.micro_batch = 2, .num_microbatches = 2};
  ASSIGN_OR_RETURN(const Program fp32_program,
                   BuildTrainingProgram(job.model, layout, 0));
  layout.precision = request.precision;
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainingProgram(job.model, layout, 0));
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  RETURN_IF_ERROR(WriteBatch(job, batches, request.folder + "/batch.i32"));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Stepper> stepper,
      MakeStepper(request,
                  {.program = &program, .job = job, .batches = &batches},
                  fp32_program));

  ASSIGN_OR_RETURN(const std::vector<float> weights, ReadParameters(*stepper));
  RETURN_IF_ERROR(WriteFlat(program.parameters, weights,
                            request.folder + "/weights.safetensors"));
  ASSIGN_OR_RETURN(const std::vector<float> hidden, RunStep(*stepper));
  const int64_t width = job.model.hidden;
  RETURN_IF_ERROR(WriteTensors(
      request.folder + "/hidden.safetensors",
      {{.name = "hidden",
        .shape = {static_cast<int64_t>(hidden.size()) / width, width}}},
      {hidden.data()}));
  ASSIGN_OR_RETURN(const std::vector<float> gradients,
                   stepper->Read(program.gradients_buffer));
  RETURN_IF_ERROR(WriteFlat(program.parameters, gradients,
                            request.folder + "/gradients.safetensors"));
  ASSIGN_OR_RETURN(const std::vector<float> scalars,
                   stepper->Read(program.scalars_buffer));

  nlohmann::json json = DescribeJob(job);
  json["case"] = request.case_name;
  json["backend"] = request.backend;
  json["precision"] = PrecisionName(request.precision);
  json["loss"] = scalars[kLossScalar];
  json["gradient_norm"] = std::sqrt(scalars[kSquaredNormScalar]);
  return WriteFileAtomically(request.folder + "/case.json", json.dump(1));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const std::string backend = argc == 5 ? argv[2] : "";
  const std::string precision = argc == 5 ? argv[3] : "";
  const bool is_known =
      (backend == "cpu" && precision == "fp32") ||
      (backend == "cuda" && (precision == "fp32" || precision == "bf16"));
  if (!is_known) {
    std::cerr << "usage: step_dump CASE cpu|cuda fp32|bf16 FOLDER; the CPU "
                 "computes in fp32\n";
    return 2;
  }
  const absl::Status status = millrace::Dump(
      {.case_name = argv[1],
       .backend = backend,
       .precision = precision == "fp32" ? millrace::Precision::kFloat32
                                        : millrace::Precision::kBfloat16,
       .folder = argv[4]});
  if (!status.ok()) std::cerr << "step_dump: " << status << "\n";
  return status.ok() ? 0 : 1;
}
