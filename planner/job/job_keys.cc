#include "planner/job/job_keys.h"

namespace millrace {
namespace {

// Sequences of a step. Published runs have at most some ten thousand.
constexpr double kMaximumBatch = 1 << 20;
constexpr double kMaximumInt32 = std::numeric_limits<int32_t>::max();
// Doubles, which hold the ranges, are exact up to here.
constexpr double kMaximumInteger = 9007199254740992;  // 2^53

#define FIELD(member) [](JobSpec& job) -> JobField { return &job.member; }

const JobKey kJobKeys[] = {
    {.path = "name",
     .doc = "Names the run directory. Letters, digits, '.', '_' and '-'.",
     .field = FIELD(name),
     .required = true},

    {.path = "model.family",
     .doc = "Pre-norm RMSNorm, rotary positions, grouped-query attention, "
            "SwiGLU, no biases, untied embedding and head, but for what other "
            "keys of model change.",
     .field = [](JobSpec&) -> JobField { return FixedChoice{}; },
     .choices = "llama"},
    {.path = "model.vocab_size",
     .doc = "Rows of embedding and head. A trained tokenizer gets this size.",
     .field = FIELD(model.vocab_size),
     .required = true,
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "model.hidden",
     .doc = "Width of the residual stream.",
     .field = FIELD(model.hidden),
     .required = true,
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "model.layers",
     .doc = "Transformer layers.",
     .field = FIELD(model.num_layers),
     .required = true,
     .minimum = 1,
     .maximum = 10000},
    {.path = "model.heads",
     .doc = "Query heads. A multiple of kv_heads and of the tensor axis.",
     .field = FIELD(model.num_heads),
     .required = true,
     .minimum = 1,
     .maximum = 1 << 20},
    {.path = "model.kv_heads",
     .doc = "Key-value heads. A multiple of the tensor axis.",
     .field = FIELD(model.num_kv_heads),
     .minimum = 1,
     .maximum = 1 << 20,
     .default_note = "heads"},
    {.path = "model.head_dim",
     .doc = "Width of one head. Even.",
     .field = FIELD(model.head_dim),
     .minimum = 2,
     .maximum = 1 << 20,
     .default_note = "hidden / heads, or nope + rope of mla"},
    {.path = "model.ffn_hidden",
     .doc = "Width inside the feed-forward block of dense layers. A multiple "
            "of the tensor axis.",
     .field = FIELD(model.ffn_hidden),
     .maximum = kMaximumInt32,
     .default_note = "required, unless all layers have experts"},
    {.path = "model.feed_forward",
     .doc = "What the feed-forward block computes between its projections. "
            "Others than swiglu are only planned so far.",
     .field = FIELD(model.feed_forward),
     .choices = "swiglu|gelu|relu2"},
    {.path = "model.ties_embedding",
     .doc = "true: the head is the embedding's transpose. Only planned so far.",
     .field = FIELD(model.ties_embedding)},
    {.path = "model.moe.num_experts",
     .doc = "Experts of a layer, of which each token goes to some. 0: layers "
            "are dense. Above 0 only planned so far.",
     .field = FIELD(model.moe.num_experts),
     .maximum = 1 << 20},
    {.path = "model.moe.experts_per_token",
     .doc = "Experts that a token goes to.",
     .field = FIELD(model.moe.experts_per_token),
     .maximum = 1 << 20},
    {.path = "model.moe.expert_hidden",
     .doc = "Width inside one expert.",
     .field = FIELD(model.moe.expert_hidden),
     .maximum = kMaximumInt32},
    {.path = "model.moe.num_shared_experts",
     .doc = "Experts beside these that see every token.",
     .field = FIELD(model.moe.num_shared_experts),
     .maximum = 1 << 20},
    {.path = "model.moe.num_dense_layers",
     .doc = "The first layers, without experts, of width ffn_hidden.",
     .field = FIELD(model.moe.num_dense_layers),
     .maximum = 10000},
    {.path = "model.mla.kv_rank",
     .doc = "Width of the latent vector that keys and values come from. 0: "
            "plain attention. Above 0 only planned so far.",
     .field = FIELD(model.mla.kv_rank),
     .maximum = kMaximumInt32},
    {.path = "model.mla.query_rank",
     .doc = "Width of the latent vector that queries come from. 0: none.",
     .field = FIELD(model.mla.query_rank),
     .maximum = kMaximumInt32},
    {.path = "model.mla.nope_head_dim",
     .doc = "Width of a query or key head without position.",
     .field = FIELD(model.mla.nope_head_dim),
     .maximum = 1 << 20},
    {.path = "model.mla.rope_head_dim",
     .doc = "Width of a query or key head with rotary position. Even.",
     .field = FIELD(model.mla.rope_head_dim),
     .maximum = 1 << 20},
    {.path = "model.mla.value_head_dim",
     .doc = "Width of a value head.",
     .field = FIELD(model.mla.value_head_dim),
     .maximum = 1 << 20},
    {.path = "model.sequence_length",
     .doc = "Tokens of a training sequence.",
     .field = FIELD(model.sequence_length),
     .required = true,
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "model.rope_theta",
     .doc = "Base of the rotary position embedding.",
     .field = FIELD(model.rope_theta),
     .open_minimum = true},
    {.path = "model.norm_epsilon",
     .doc = "Added to the mean square in RMSNorm.",
     .field = FIELD(model.norm_epsilon),
     .open_minimum = true},
    {.path = "model.init_std",
     .doc = "Standard deviation of the initial embedding, head and linear "
            "weights.",
     .field = FIELD(model.init_std),
     .open_minimum = true},
    {.path = "model.approximates",
     .doc = "What the model leaves out of the one that it stands for, in "
            "words; plans and runs repeat it as a warning. Empty: nothing.",
     .field = FIELD(model_approximates)},

    {.path = "data.synthetic",
     .doc = "true: random tokens from seed and step, no files; for measuring "
            "speed. One of synthetic, text and indexed is required.",
     .field = FIELD(data.synthetic)},
    {.path = "data.text",
     .doc = "Globs of UTF-8 text files; ** crosses folders.",
     .field = FIELD(data.text)},
    {.path = "data.indexed",
     .doc = "Tokens in the .bin/.idx indexed format of Megatron-LM: path "
            "prefixes or .bin paths.",
     .field = FIELD(data.indexed)},
    {.path = "data.tokenizer",
     .doc = "auto trains a SentencePiece BPE tokenizer on text; else the path "
            "of a SentencePiece model.",
     .field = FIELD(data.tokenizer)},
    {.path = "data.validation_fraction",
     .doc = "Share of the data held out for validation.",
     .field = FIELD(data.validation_fraction),
     .maximum = 1,
     .open_maximum = true},
    {.path = "data.max_bytes",
     .doc = "Bytes of text read, from the first files in order; 0 reads all.",
     .field = FIELD(data.max_bytes),
     .maximum = kMaximumInteger,
     .is_bytes = true},
    {.path = "data.cache_directory",
     .doc = "Where trained tokenizer and tokens are kept. Empty: "
            "$XDG_CACHE_HOME/millrace, or ~/.cache/millrace.",
     .field = FIELD(data.cache_directory)},

    {.path = "training.steps",
     .doc = "Optimizer steps of the whole training.",
     .field = FIELD(training.num_steps),
     .required = true,
     .minimum = 1,
     .maximum = kMaximumInteger},
    {.path = "training.global_batch",
     .doc = "Sequences of one step over all devices, at most 1048576.",
     .field = FIELD(training.global_batch),
     .required = true,
     .minimum = 1,
     .maximum = kMaximumBatch,
     .maximum_reason = "because a plan lists every micro-batch of a step"},
    {.path = "training.seed",
     .doc = "Decides initial weights and data order.",
     .field = FIELD(training.seed),
     .maximum = kMaximumInteger},
    {.path = "training.precision",
     .doc = "What forward and backward compute in. bf16, on cuda only, keeps "
            "gradients, weights of norms, master weights and moments in fp32. "
            "fp8 and fp4 are bf16 with products of 8 or 4 bits, only planned "
            "so far.",
     .field = FIELD(training.precision),
     .choices = "fp32|bf16|fp8|fp4"},
    {.path = "training.gradient_reduction",
     .doc = "What data replicas send each other gradients of matrices in, to "
            "sum them. bf16 halves the data axis' traffic, for slow networks "
            "between hosts; it takes time to round, and rounds what is learnt. "
            "Gradients are kept and added up over micro-batches in fp32 either "
            "way.",
     .field = FIELD(training.gradient_reduction),
     .choices = "fp32|bf16"},
    {.path = "training.deterministic",
     .doc = "true: equal runs on GPUs give equal bits, at some cost in time. "
            "CPUs always do.",
     .field = FIELD(training.deterministic)},
    {.path = "training.gradient_clip_norm",
     .doc = "Gradients of a larger global norm are scaled down to it; 0 never "
            "clips.",
     .field = FIELD(training.gradient_clip_norm)},
    {.path = "training.validation_interval_steps",
     .doc = "Steps between validations; 0 never validates.",
     .field = FIELD(training.validation_interval_steps),
     .maximum = kMaximumInteger},
    {.path = "training.validation_steps",
     .doc = "Forward passes of one validation.",
     .field = FIELD(training.validation_steps),
     .minimum = 1,
     .maximum = kMaximumInteger},
    {.path = "training.optimizer.learning_rate",
     .doc = "Peak learning rate of AdamW.",
     .field = FIELD(training.optimizer.learning_rate),
     .required = true,
     .open_minimum = true},
    {.path = "training.optimizer.min_learning_rate",
     .doc = "Learning rate at the last step. At most learning_rate.",
     .field = FIELD(training.optimizer.min_learning_rate)},
    {.path = "training.optimizer.warmup_steps",
     .doc = "Steps of linear rise from zero to learning_rate.",
     .field = FIELD(training.optimizer.warmup_steps),
     .maximum = kMaximumInteger},
    {.path = "training.optimizer.decay",
     .doc = "Course from learning_rate to min_learning_rate after the warmup.",
     .field = FIELD(training.optimizer.decay),
     .choices = "none|linear|cosine"},
    {.path = "training.optimizer.beta1",
     .doc = "Decay of the first moment.",
     .field = FIELD(training.optimizer.beta1),
     .maximum = 1,
     .open_maximum = true},
    {.path = "training.optimizer.beta2",
     .doc = "Decay of the second moment.",
     .field = FIELD(training.optimizer.beta2),
     .maximum = 1,
     .open_maximum = true},
    {.path = "training.optimizer.epsilon",
     .doc = "Added to the square root of the second moment.",
     .field = FIELD(training.optimizer.epsilon),
     .open_minimum = true},
    {.path = "training.optimizer.weight_decay",
     .doc = "Decoupled weight decay of all but the norm weights.",
     .field = FIELD(training.optimizer.weight_decay)},

    {.path = "resources.backend",
     .doc = "What computes: cpu cores, or NVIDIA GPUs by cuda.",
     .field = FIELD(resources.backend),
     .choices = "cpu|cuda"},
    {.path = "resources.devices_per_agent",
     .doc = "Workers of each agent; auto shares the host's cores, or GPUs.",
     .field = FIELD(resources.devices_per_agent),
     .minimum = 1,
     .maximum = 4096},
    {.path = "resources.threads_per_device",
     .doc = "Threads of a worker, which compute on cpu; auto shares the host's "
            "cores.",
     .field = FIELD(resources.threads_per_device),
     .minimum = 1,
     .maximum = 4096},
    {.path = "resources.memory_per_device",
     .doc =
         "What one worker may use; auto is what the machine, or the GPU, has "
         "to give.",
     .field = FIELD(resources.memory_per_device_bytes),
     .minimum = 1,
     .maximum = kMaximumInteger,
     .is_bytes = true},
    {.path = "resources.transport",
     .doc = "What moves activations and gathered parameters between the GPUs "
            "of a host: NCCL's kernels, or copy engines, which need no "
            "multiprocessor; auto is the faster by the profile, NCCL where it "
            "has no times of copy engines.",
     .field = FIELD(resources.transport),
     .choices = "auto|nccl|copy_engines"},

    {.path = "layout.pipeline",
     .doc = "Stages.",
     .field = FIELD(layout.pipeline),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.data",
     .doc = "Replicas, each with its share of the global batch.",
     .field = FIELD(layout.data),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.tensor",
     .doc = "Shards of each layer.",
     .field = FIELD(layout.tensor),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.context",
     .doc = "Shards of each sequence. Above 1 only planned so far.",
     .field = FIELD(layout.context),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.expert",
     .doc = "Shards of the experts of a layer, over the ranks of a stage. "
            "Above 1 only planned so far.",
     .field = FIELD(layout.expert),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.expert_tensor",
     .doc = "Shards of one expert: 1, or as many as tensor. Above 1 only "
            "planned so far.",
     .field = FIELD(layout.expert_tensor),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.interleave",
     .doc = "Chunks of layers a pipeline stage holds, in turn. Above 1 only "
            "planned so far.",
     .field = FIELD(layout.interleave),
     .minimum = 1,
     .maximum = 10000},
    {.path = "layout.devices",
     .doc = "How many of the devices to use. auto is all that a run has; a "
            "plan-only layout may leave some idle.",
     .field = FIELD(layout.devices),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.micro_batch",
     .doc = "Sequences of one micro-batch.",
     .field = FIELD(layout.micro_batch),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "layout.zero",
     .doc = "What the data axis shards, and context with it: nothing; 1 the "
            "optimizer state, 2 gradients too, 3 parameters too. auto takes 2 "
            "and 3 only where "
            "memory asks for it.",
     .field = FIELD(layout.zero),
     .maximum = 3},
    {.path = "layout.recompute",
     .doc = "What the backward pass computes again instead of keeping it: "
            "nothing, some ops of each layer, or whole layers; or a list, of "
            "each pipeline stage. selective leaves it to the planner which "
            "ops: those that save most bytes for their time, as few as fit. "
            "auto takes the least of all that fits, in each stage.",
     .field = FIELD(layout.recompute),
     .choices = "auto|none|selective|full",
     .by_stage = true},
    {.path = "layout.schedule",
     .doc = "The order of passes in a pipeline: one forward, one backward; or "
            "zero_bubble, which also puts off weight gradients to fill its "
            "end, with ZeRO 0 or 1; or list, which orders passes by what they "
            "cost, as far as memory allows, likewise; or interleaved, only "
            "planned so far. auto takes the fastest.",
     .field = FIELD(layout.schedule),
     .choices = "auto|1f1b|zero_bubble|list|interleaved"},

    {.path = "checkpoint.directory",
     .doc = "Where checkpoints go. Empty: checkpoints/ in the run directory.",
     .field = FIELD(checkpoint.directory)},
    {.path = "checkpoint.interval_steps",
     .doc = "Steps between checkpoints; 0 writes none between.",
     .field = FIELD(checkpoint.interval_steps),
     .maximum = kMaximumInteger},
    {.path = "checkpoint.at_end",
     .doc = "Whether one is written after the last step. When a run is "
            "stopped early, one always is.",
     .field = FIELD(checkpoint.at_end)},
    {.path = "checkpoint.keep",
     .doc = "Newest checkpoints kept.",
     .field = FIELD(checkpoint.keep),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "checkpoint.resume",
     .doc =
         "auto: from the newest whole checkpoint in directory, if any; none; "
         "or the path of one checkpoint.",
     .field = FIELD(checkpoint.resume)},

    {.path = "fault.heartbeat_interval_ms",
     .doc = "Milliseconds between a worker's heartbeats.",
     .field = FIELD(fault.heartbeat_interval_ms),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "fault.heartbeat_timeout_ms",
     .doc = "A worker silent for so many milliseconds is replaced. Above the "
            "interval.",
     .field = FIELD(fault.heartbeat_timeout_ms),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "fault.clear_timeout_ms",
     .doc = "A worker that was told to end a generation and has not reported "
            "itself free of it after so many milliseconds is replaced, "
            "heartbeats or not. Most are free at once; ends of graphs with "
            "many collectives have taken 10 s.",
     .field = FIELD(fault.clear_timeout_ms),
     .minimum = 1,
     .maximum = kMaximumInt32},
    {.path = "fault.max_restarts",
     .doc = "Replaced workers after which the run gives up.",
     .field = FIELD(fault.max_restarts),
     .maximum = kMaximumInt32},

    {.path = "goodput.objective",
     .doc = "What the plan makes best: the step; tokens per second over weeks "
            "with failures; or tokens for the money.",
     .field = FIELD(goodput.objective),
     .choices = "step_time|goodput|cost"},
    {.path = "goodput.mean_time_between_failures_hours",
     .doc = "Hours of one device between failures that stop training; 0: not "
            "known, failures are not considered.",
     .field = FIELD(goodput.mean_time_between_failures_hours)},
    {.path = "goodput.repair_share",
     .doc = "Share of failures after which a node must be repaired; after the "
            "others it starts again.",
     .field = FIELD(goodput.repair_share),
     .maximum = 1},
    {.path = "goodput.repair_hours",
     .doc = "Hours until a node that failed for good is back.",
     .field = FIELD(goodput.repair_hours),
     .open_minimum = true},
    {.path = "goodput.spare_confidence",
     .doc = "Probability with which spare nodes should last until others are "
            "repaired.",
     .field = FIELD(goodput.spare_confidence),
     .maximum = 1,
     .open_maximum = true},
    {.path = "goodput.recovery_seconds",
     .doc = "Seconds from a failure until training goes on.",
     .field = FIELD(goodput.recovery_seconds)},
    {.path = "goodput.checkpoint_seconds",
     .doc = "Seconds that training stands still for a checkpoint; auto: the "
            "state of a device over checkpoint_bytes_per_second.",
     .field = FIELD(goodput.checkpoint_seconds),
     .open_minimum = true},
    {.path = "goodput.checkpoint_bytes_per_second",
     .doc = "What one device writes in a second while all do.",
     .field = FIELD(goodput.checkpoint_bytes_per_second),
     .maximum = kMaximumInteger,
     .is_bytes = true},
    {.path = "goodput.checkpoint_lag_seconds",
     .doc = "Seconds until a checkpoint counts after training went on, for one "
            "that is written meanwhile.",
     .field = FIELD(goodput.checkpoint_lag_seconds)},
    {.path = "goodput.price_per_device_hour",
     .doc = "What a device costs an hour, in any currency; 0: not known.",
     .field = FIELD(goodput.price_per_device_hour)},

    {.path = "output.directory",
     .doc = "Run directories are made in it.",
     .field = FIELD(output_directory)},

    {.path = "profile",
     .doc = "auto: this machine's cached hardware profile, measured when there "
            "is none; else the path of one.",
     .field = FIELD(profile)},
    {.path = "profile_output",
     .doc = "Which profile learns from the run's measured steps. auto: the one "
            "that it was planned with, or a copy in the run directory of one "
            "that comes with Millrace; none; else a path, whose file is begun "
            "where there is none.",
     .field = FIELD(profile_output)},
};

#undef FIELD

}  // namespace

std::span<const JobKey> JobKeys() { return kJobKeys; }

const JobKey* FindJobKey(absl::string_view path) {
  for (const JobKey& key : kJobKeys) {
    if (path == key.path) return &key;
  }
  return nullptr;
}

}  // namespace millrace
