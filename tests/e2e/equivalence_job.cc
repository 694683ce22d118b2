#include "tests/e2e/equivalence_job.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/recompute_sets.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"

namespace millrace {
JobSpec SmallJob() {
  JobSpec job;
  job.name = "small";
  job.model = {.vocab_size = 128,
               .hidden = 64,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 4,
               .head_dim = 16,
               .ffn_hidden = 128,
               .sequence_length = 32};
  job.training.num_steps = 100;
  job.training.global_batch = 8;
  job.training.seed = 1234;
  job.training.optimizer.learning_rate = 1e-3;
  job.training.optimizer.warmup_steps = 5;
  return job;
}

std::vector<std::pair<std::string, JobSpec>> JobsOfFamilies() {
  std::vector<std::pair<std::string, JobSpec>> jobs;
  const auto add = [&](const char* name) -> ModelSpec& {
    return jobs.emplace_back(name, SmallJob()).second.model;
  };
  add("scaled_rope").rope_scaling = {.kind = RopeScalingKind::kLlama3,
                                     .factor = 8,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_max_position_embeddings = 64};
  add("biases").qkv_bias = true;
  add("qk_norm").qk_norm = true;
  add("tied").ties_embedding = true;
  add("sliding_window").sliding_window = 5;
  ModelSpec& gpt2 = add("gpt2");
  gpt2.feed_forward = FeedForward::kGelu;
  gpt2.norm = NormKind::kLayer;
  gpt2.learned_positions = 48;
  gpt2.qkv_bias = gpt2.linear_bias = gpt2.ties_embedding = true;
  for (const bool is_third : {false, true}) {
    ModelSpec& gemma = add(is_third ? "gemma3" : "gemma2");
    gemma.feed_forward = FeedForward::kGeglu;
    gemma.norm_adds_one = gemma.output_norms = gemma.scales_embedding = true;
    gemma.ties_embedding = true;
    gemma.sliding_window = 5;
    gemma.global_layer_period = is_third ? 3 : 2;
    gemma.query_pre_attn_scalar = 24;
    if (is_third) {
      gemma.qk_norm = true;
      gemma.sliding_rope_theta = 100;
      gemma.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 8};
    } else {
      gemma.attention_softcap = 2;
      gemma.logit_softcap = 3;
    }
  }
  ModelSpec& phi = add("phi4_mini");
  phi.ties_embedding = true;
  phi.rotary_dim = 12;
  phi.rope_factors = {1, 1.5, 2, 4, 8, 16};
  phi.rope_scaling = {.kind = RopeScalingKind::kLongrope,
                      .attention_factor = 1.25};
  add("gelu_erf").feed_forward = FeedForward::kGeluErf;
  ModelSpec& grouped = add("grouped_biases_and_norms");
  grouped.num_kv_heads = 2;
  grouped.qkv_bias = true;
  grouped.qk_norm = true;
  return jobs;
}

std::unique_ptr<BatchSource> NewSyntheticBatches(const JobSpec& job) {
  return std::make_unique<SyntheticBatches>(job.model.vocab_size,
                                            job.model.sequence_length);
}

absl::Status RunRanks(const JobSpec& job, const Layout& layout,
                      const NewFactory& new_factory,
                      const std::function<absl::Status(Rank, Trainer&)>& body,
                      const NewBatches& new_batches, ProgressBoard* progress) {
  std::mutex mutex;
  absl::Status first_error;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = [&]() -> absl::Status {
        const std::unique_ptr<BatchSource> batches = new_batches(job);
        const std::unique_ptr<CommunicatorFactory> factory = new_factory();
        ASSIGN_OR_RETURN(
            std::unique_ptr<Trainer> trainer,
            CreateCpuTrainer({.job = job,
                              .layout = layout,
                              .rank = Rank{rank},
                              .communicators = factory.get(),
                              .batches = batches.get(),
                              .progress = rank == 0 ? progress : nullptr}));
        return body(Rank{rank}, *trainer);
      }();
      std::lock_guard lock(mutex);
      if (first_error.ok()) first_error = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

void CollectOwned(const std::vector<StatePiece>& pieces, Tensors* tensors) {
  for (const StatePiece& piece : pieces) {
    if (!piece.is_owner) continue;
    std::vector<float>& whole = (*tensors)[piece.tensor];
    whole.resize(piece.rows * piece.cols);
    const int64_t box_cols = piece.box.col_end - piece.box.col_begin;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t row = piece.box.row_begin + i / box_cols;
      const int64_t col = piece.box.col_begin + i % box_cols;
      whole[row * piece.cols + col] = piece.data[i - piece.begin];
    }
  }
}

JobResult RunJob(const JobSpec& job, const Layout& layout, int64_t num_steps,
                 const NewFactory& new_factory, const NewBatches& new_batches) {
  JobResult result;
  std::mutex mutex;
  std::vector<std::vector<double>> losses(layout.num_ranks());
  result.status = RunRanks(
      job, layout, new_factory,
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        for (int64_t i = 0; i < num_steps; ++i) {
          ASSIGN_OR_RETURN(const auto step, trainer.RunStep({}));
          losses[ToInt(rank)].push_back(step->loss);
          if (rank == Rank{0}) {
            result.gradient_norms.push_back(step->gradient_norm);
          }
        }
        ASSIGN_OR_RETURN(const double validation_loss,
                         trainer.RunValidation(2));
        ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                         trainer.ReadState());
        std::lock_guard lock(mutex);
        if (rank == Rank{0}) result.validation_loss = validation_loss;
        CollectOwned(pieces, &result.tensors);
        return absl::OkStatus();
      },
      new_batches);
  result.losses = losses[0];
  for (const std::vector<double>& other : losses) {
    if (result.status.ok() && other != result.losses) {
      result.status = absl::InternalError("ranks saw different losses");
    }
  }
  return result;
}

JobResult RunJob(const JobSpec& job, const Layout& layout, int64_t num_steps,
                 const NewBatches& new_batches) {
  InProcessHub hub;
  return RunJob(
      job, layout, num_steps, [&] { return hub.NewFactory(); }, new_batches);
}

std::vector<Layout> SmallLayouts() {
  std::vector<Layout> layouts;
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t tensor : {1, 2, 4}) {
      for (const int32_t data : {1, 2, 4}) {
        for (const int32_t num_microbatches : {1, 2, 4}) {
          for (const int32_t zero : {0, 1, 2, 3}) {
            if (pipeline * tensor * data > 4) continue;
            if (8 % (data * num_microbatches) != 0) continue;
            if (zero >= 1 && data == 1) continue;
            layouts.push_back(
                {.pipeline = pipeline,
                 .data = data,
                 .tensor = tensor,
                 .micro_batch = 8 / (data * num_microbatches),
                 .num_microbatches = num_microbatches,
                 .zero = zero,
                 .recompute =
                     kTestedRecomputes[layouts.size() % kNumTestedRecomputes]});
            Layout& layout = layouts.back();
            if (pipeline > 1 && !layout.shards_gradients() &&
                layouts.size() % 2 == 0) {
              layout.schedule = Schedule::kZeroBubble;
            }
          }
        }
      }
    }
  }
  // Hybrid sharding, and hierarchical all-reduces.
  for (const int32_t num_microbatches : {1, 2}) {
    for (const int32_t zero : {0, 1, 2, 3}) {
      layouts.push_back({.data = 4,
                         .data_groups = 2,
                         .micro_batch = 2 / num_microbatches,
                         .num_microbatches = num_microbatches,
                         .zero = zero});
    }
  }
  // Four micro-batches on three replicas.
  for (const int32_t zero : {0, 1}) {
    layouts.push_back({.data = 3,
                       .micro_batch = 2,
                       .num_microbatches = 1,
                       .extra_microbatches = 1,
                       .zero = zero});
  }
  for (const Layout& layout :
       {Layout{.pipeline = 2,
       .data = 2,
       .micro_batch = 1,
       .num_microbatches = 4,
       .zero = 1,
       .recompute = Recompute::kFull},
        Layout{.pipeline = 2,
        .tensor = 2,
        .micro_batch = 2,
        .num_microbatches = 4,
        .recompute = Recompute::kCheap},
        Layout{.pipeline = 4, .micro_batch = 1, .num_microbatches = 8}}) {
    layouts.push_back(ListScheduled(layout));
  }
  return layouts;
}

}  // namespace millrace
