#include "worker/compare/compare.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device.h"
#include "planner/lower/lower.h"
#include "tests/e2e/equivalence_batches.h"
#include "worker/cpu/stepper.h"
#include "worker/cuda/train/stepper.h"

namespace millrace {
namespace {

// One document a sequence, the tokens those of SyntheticBatches.
class WholeSequences : public BatchSource {
 public:
  explicit WholeSequences(const ModelSpec& model)
      : length_(model.sequence_length),
        batches_(model.vocab_size, model.sequence_length) {}
  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    RETURN_IF_ERROR(batches_.Fill(request, out));
    std::fill_n(out.document_starts, request.num_sequences * length_, 0);
    return absl::OkStatus();
  }

 private:
  const int64_t length_;
  SyntheticBatches batches_;
};

struct CompareCase {
  std::string name;
  ModelSpec model;
  bool documents;  // Whether some begin inside sequences.
  Recompute recompute = Recompute::kNone;
};

std::vector<CompareCase> Cases() {
  const ModelSpec odd = {.vocab_size = 131,
                         .hidden = 36,
                         .num_layers = 3,
                         .num_heads = 6,
                         .num_kv_heads = 2,
                         .head_dim = 10,
                         .ffn_hidden = 52,
                         .sequence_length = 37,
                         .init_std = 0.08};
  const ModelSpec narrow = {.vocab_size = 1024,
                            .hidden = 512,
                            .num_layers = 2,
                            .num_heads = 8,
                            .num_kv_heads = 2,
                            .head_dim = 64,
                            .ffn_hidden = 1536,
                            .sequence_length = 384};
  const ModelSpec wide = {.vocab_size = 2048,
                          .hidden = 512,
                          .num_layers = 2,
                          .num_heads = 4,
                          .num_kv_heads = 2,
                          .head_dim = 128,
                          .ffn_hidden = 1408,
                          .sequence_length = 640};
  return {{"odd sizes, documents", odd, true},
          {"heads of 64", narrow, false},
          {"heads of 64, documents", narrow, true},
          {"heads of 128", wide, false},
          {"heads of 128, documents", wide, true},
          {"selective recompute", narrow, true, Recompute::kCheap},
          {"full recompute", narrow, true, Recompute::kFull}};
}

absl::StatusOr<Comparison> RunCase(const CompareCase& c, Precision precision,
                                   CompareMode mode,
                                   GemmFormat format = GemmFormat::kAsStored) {
  Layout layout = {.micro_batch = 2,
                   .num_microbatches = 2,
                   .gemm_format = format,
                   .recompute = c.recompute};
  ASSIGN_OR_RETURN(const Program cpu_program,
                   BuildTrainingProgram(c.model, layout, 0));
  layout.precision = precision;
  ASSIGN_OR_RETURN(const Program gpu_program,
                   BuildTrainingProgram(c.model, layout, 0));
  JobSpec job;
  job.model = c.model;
  job.training.num_steps = 10;
  job.training.global_batch = layout.global_batch();
  job.training.seed = 7;
  job.training.optimizer.learning_rate = 1e-3;
  SyntheticBatches with_documents(c.model.vocab_size, c.model.sequence_length);
  WholeSequences whole(c.model);
  BatchSource* batches = &whole;
  if (c.documents) batches = &with_documents;
  ASSIGN_OR_RETURN(
      const auto cpu,
      CpuStepper::Create({.program = &cpu_program,
                          .job = job,
                          .num_threads = static_cast<int32_t>(std::min(
                              16u, std::thread::hardware_concurrency())),
                          .batches = batches}));
  ASSIGN_OR_RETURN(const auto gpu, CreateCudaStepper({.program = &gpu_program,
                                                      .job = job,
                                                      .batches = batches}));
  return CompareSteps(*cpu, *gpu, mode);
}

// Goal: a whole training step on a GPU is the CPU's: every op by itself, and
// one after the other. Method: CompareSteps on models that take the plain and
// the fast kernels, with and without documents, with and without activations
// that are recomputed, two micro-batches each.
TEST(CudaCompareTest, EveryOpOfAStepAgrees) {
  for (const CompareCase& c : Cases()) {
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBfloat16}) {
      for (const CompareMode mode :
           {CompareMode::kIsolated, CompareMode::kChained}) {
        const auto comparison = RunCase(c, precision, mode);
        ASSERT_TRUE(comparison.ok()) << c.name << ": " << comparison.status();
        const std::string text = ComparisonToText(*comparison);
        EXPECT_FALSE(comparison->FirstDifference().has_value()) << c.name;
        std::cout << c.name << ": " << text << std::endl;
      }
    }
  }
}

// The models whose dims 8-bit products take, and one with biases.
std::vector<CompareCase> Float8Cases() {
  std::vector<CompareCase> cases = Cases();
  std::erase_if(cases,
                [](const CompareCase& c) { return c.model.hidden < 64; });
  CompareCase biases = cases[1];
  biases.name = "biases";
  biases.model.qkv_bias = true;
  cases.push_back(biases);
  return cases;
}

// Ops of a model with biases are only compared one by one: the gradient of the
// keys' biases is zero but for rounding, so the first step of AdamW moves them
// either way.
void ExpectAgreement(const std::vector<CompareCase>& cases, GemmFormat format) {
  for (const CompareCase& c : cases) {
    for (const CompareMode mode :
         {CompareMode::kIsolated, CompareMode::kChained}) {
      if (c.model.qkv_bias && mode == CompareMode::kChained) continue;
      const auto comparison = RunCase(c, Precision::kBfloat16, mode, format);
      ASSERT_TRUE(comparison.ok()) << c.name << ": " << comparison.status();
      EXPECT_FALSE(comparison->FirstDifference().has_value()) << c.name;
      std::cout << c.name << ": " << ComparisonToText(*comparison) << std::endl;
    }
  }
}

// Goal: the same with products in 8 bits, whose copies have the CPU's bits.
// Method: the models whose dims such products take; a model with biases.
TEST(CudaCompareTest, EveryOpOfAStepIn8BitsAgrees) {
  ExpectAgreement(Float8Cases(), GemmFormat::kFloat8);
}

// Goal: the same where copies have scales for blocks; devices that do not
// multiply such copies say so. Method: the same models.
TEST(CudaCompareTest, EveryOpOfAStepInBlocksOf8BitsAgrees) {
  const auto limits = CurrentDeviceLimits();
  ASSERT_TRUE(limits.ok()) << limits.status();
  if (limits->IsHopper()) {
    ExpectAgreement(Float8Cases(), GemmFormat::kFloat8Blocks);
    return;
  }
  const absl::Status status =
      RunCase(Float8Cases()[0], Precision::kBfloat16, CompareMode::kIsolated,
              GemmFormat::kFloat8Blocks)
          .status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "runs on Hopper")) << status;
}

// Goal: the same with attention's forward pass in 8 bits, whose copies have the
// CPU's bits, beside products as stored and in 8 bits; devices without it say
// so. Method: the same models, with queries and keys normed in one, with and
// without documents and recompute.
TEST(CudaCompareTest, EveryOpOfAStepWithAttentionIn8BitsAgrees) {
  std::vector<CompareCase> cases = Float8Cases();
  CompareCase normed = cases[1];
  normed.name = "normed heads";
  normed.model.qk_norm = true;
  cases.push_back(normed);
  for (CompareCase& c : cases) {
    c.name += ", attention in 8 bits";
    c.model.attention_format = AttentionFormat::kFloat8;
  }
  const auto limits = CurrentDeviceLimits();
  ASSERT_TRUE(limits.ok()) << limits.status();
  if (limits->IsHopper()) {
    ExpectAgreement(cases, GemmFormat::kAsStored);
    ExpectAgreement({cases[1]}, GemmFormat::kFloat8);
    ExpectAgreement({cases[1]}, GemmFormat::kFloat8Blocks);
    return;
  }
  const absl::Status status =
      RunCase(cases[0], Precision::kBfloat16, CompareMode::kIsolated).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "training.attention fp8"))
      << status;
}

}  // namespace
}  // namespace millrace
