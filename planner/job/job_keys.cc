#include "planner/job/job_keys.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "planner/job/job_key_rows.h"

namespace millrace {
namespace {

// All keys behind those of the model.
const JobKey kOtherKeys[] = {
    {KEY(data.synthetic),
     .doc = "true: random tokens from seed and step, no files; for measuring "
            "speed. One of synthetic, text, indexed and sources is required."},
    {KEY(data.text), .doc = "Globs of UTF-8 text files; ** crosses folders."},
    {KEY(data.indexed),
     .doc = "Tokens in the .bin/.idx indexed format of Megatron-LM: path "
            "prefixes or .bin paths."},
    {KEY(data.sources),
     .doc = "A mixture (docs/data.md): each source has the globs `files`, or "
            "one `path`; a `format` of text, jsonl, parquet or indexed, or "
            "auto, which goes by the files' names; the `column` with the text "
            "(text); and the `weight` of its samples beside the others' (1). "
            "With `kind` chat instead of text, its records are conversations, "
            "or prompts with completions (docs/tuning.md), which `train_on` "
            "assistant trains in all that the assistant says, completion in "
            "the last answer alone, and all wholly. With `kind` preference "
            "they are pairs of answers, for training.objective dpo."},
    {KEY(data.tokenizer),
     .doc = "auto trains a SentencePiece BPE tokenizer on text, or takes that "
            "in the folder of model.from; else the path "
            "of a SentencePiece model, of a Hugging Face tokenizer.json or of "
            "a folder with one."},
    {KEY(data.end_of_document),
     .doc = "The token that ends each document of text. Empty: the one that "
            "the tokenizer, or a file beside it, says."},
    {KEY(data.validation_fraction),
     .doc = "Share of the data held out for validation.",
     .range = {.most = 1, .excludes_most = true}},
    {KEY(data.max_bytes),
     .doc = "Bytes of text read, from the first files in order; 0 reads all.",
     .range = {0, kMaximumInteger}, .is_bytes = true},
    {KEY(data.broken_records),
     .doc =
         "Records that may be broken. They are left out and counted, and the "
         "first one is named; one more stops the job. So it is with samples of "
         "a token file whose ids are outside the vocabulary: the next whole "
         "one "
         "takes the place of each.",
     .range = {0, kMaximumInteger}},
    {KEY(data.chat_template),
     .doc = "The file with the Jinja template of chat sources. Empty: "
            "chat_template.jinja, or chat_template of tokenizer_config.json, "
            "beside the tokenizer."},
    {KEY(data.chat_date),
     .doc = "The date that chat templates see, such as 2026-11-23. Empty: "
            "none, so that those which can do without take their own."},
    {KEY(data.packing),
     .doc = "Whether chat samples share sequences, each attending to itself "
            "alone. false: one sample a sequence."},
    {KEY(data.long_samples),
     .doc = "Chat samples longer than a sequence: cut keeps their beginning, "
            "drop leaves them out. Both are counted.",
     .choices = "cut|drop"},
    {KEY(data.document_length),
     .doc = "Tokens of the document that a token lies in, averaged over "
            "tokens, by which plans price attention. 0: a run counts it in its "
            "data, and a plan without data takes sequences for one document.",
     .range = {0, kMaximumInt32}},
    {KEY(data.cache_directory),
     .doc = "Where trained tokenizer and tokens are kept. Empty: "
            "$XDG_CACHE_HOME/millrace, or ~/.cache/millrace."},
    {KEY(data.from),
     .doc = "The one host that has the data, agent0 or a host's name: it sends "
            "the tokens to the others, which keep them in their caches. Empty: "
            "every host has the data."},

    {NAMED_KEY("training.steps", training.num_steps),
     .doc = "Optimizer steps of the whole training.", .required = true,
     .range = {1, kMaximumInteger}},
    {KEY(training.global_batch),
     .doc = "Sequences of one step over all devices, at most 1048576.",
     .required = true, .range = {1, kMaximumBatch},
     .maximum_reason = "because a plan lists every micro-batch of a step"},
    {KEY(training.seed), .doc = "Decides initial weights and data order.",
     .range = {0, kMaximumInteger}},
    {KEY(training.precision),
     .doc = "What forward and backward compute in. bf16, on cuda only, keeps "
            "gradients, weights of norms, master weights and moments in fp32. "
            "fp8 is the same with products of layers in 8 bits; on cpu, which "
            "computes what a GPU would, all else is fp32. A tensor has one "
            "scale; with fp8_blockwise each 128 numbers along the inner dim "
            "have one, and weights one for each 128 x 128. fp4 is planned "
            "only.",
     .choices = "fp32|bf16|fp8|fp8_blockwise|fp4"},
    {NAMED_KEY("training.attention", model.attention_format),
     .doc = "What attention's forward pass computes in. fp8: queries, keys and "
            "values in 8 bits, with scales of blocks of tokens, beside any "
            "precision but fp32 on cuda; the backward pass stays in bf16. It "
            "takes head_dim 128, or 64 without a gain in time, neither a window "
            "nor a softcap, and Hopper GPUs.",
     .choices = "bf16|fp8"},
    {NAMED_KEY("training.bf16_end_layers", model.stored_end_layers),
     .doc = "With precision fp8 or fp8_blockwise, or with attention fp8, so "
            "many first and so many last layers compute in bf16 (on cpu, in "
            "fp32), as those nearest to embedding and loss suffer most from 8 "
            "bits. 0: none.",
     .range = {0, 10000}},
    {KEY(training.gradient_reduction),
     .doc = "What data replicas send each other gradients of matrices in, to "
            "sum them. bf16 halves the data axis' traffic, for slow networks "
            "between hosts; it takes time to round, and rounds what is learnt. "
            "bf16_across does so between the groups of layout.data_groups and "
            "sums in fp32 inside them. auto: fp32, or bf16 for what hosts send "
            "each other alone, where that is faster. Gradients are kept and "
            "added up over micro-batches in fp32 in any case.",
     .choices = "fp32|bf16|bf16_across|auto"},
    {KEY(training.objective),
     .doc = "What training minimizes. dpo: the loss of pairs of answers, the "
            "chosen one against the rejected one (direct preference "
            "optimization), beside the weights that training starts from.",
     .choices = "cross_entropy|dpo"},
    {KEY(training.dpo_beta),
     .doc = "How firmly dpo holds the model to the weights that it starts "
            "from: more is firmer.",
     .range = {.excludes_least = true}},
    {KEY(training.dpo_label_smoothing),
     .doc = "For dpo, the share of pairs whose answers are taken to be "
            "swapped.",
     .range = {.most = 0.5, .excludes_most = true}},
    {KEY(training.deterministic),
     .doc = "true: equal runs on GPUs give equal bits, at some cost in time. "
            "CPUs always do."},
    {KEY(training.gradient_clip_norm),
     .doc = "Gradients of a larger global norm are scaled down to it; 0 never "
            "clips."},
    {KEY(training.validation_interval_steps),
     .doc = "Steps between validations; 0 never validates.",
     .range = {0, kMaximumInteger}},
    {KEY(training.validation_steps), .doc = "Forward passes of one validation.",
     .range = {1, kMaximumInteger}},
    {KEY(training.optimizer.learning_rate),
     .doc = "Peak learning rate of AdamW.", .required = true,
     .range = {.excludes_least = true}},
    {KEY(training.optimizer.min_learning_rate),
     .doc = "Learning rate at the last step. At most learning_rate."},
    {KEY(training.optimizer.warmup_steps),
     .doc = "Steps of linear rise from zero to learning_rate.",
     .range = {0, kMaximumInteger}},
    {KEY(training.optimizer.decay),
     .doc = "Course from learning_rate to min_learning_rate after the warmup.",
     .choices = "none|linear|cosine"},
    {KEY(training.optimizer.beta1), .doc = "Decay of the first moment.",
     .range = {.most = 1, .excludes_most = true}},
    {KEY(training.optimizer.beta2), .doc = "Decay of the second moment.",
     .range = {.most = 1, .excludes_most = true}},
    {KEY(training.optimizer.epsilon),
     .doc = "Added to the square root of the second moment.",
     .range = {.excludes_least = true}},
    {KEY(training.optimizer.weight_decay),
     .doc = "Decoupled weight decay of all but the norm weights."},
    {KEY(training.optimizer.moments),
     .doc = "What moments are kept in. bf16 halves their memory and rounds at "
            "random; 8bit quarters it, with a scale for 256 numbers. "
            "Checkpoints hold fp32.",
     .choices = "fp32|bf16|8bit"},

    {KEY(resources.backend),
     .doc = "What computes: cpu cores, or NVIDIA GPUs by cuda.",
     .choices = "cpu|cuda"},
    {KEY(resources.devices_per_agent),
     .doc = "Workers of each agent; auto shares the host's cores, or GPUs.",
     .range = {1, 4096}},
    {KEY(resources.threads_per_device),
     .doc = "Threads of a worker, which compute on cpu; auto shares the host's "
            "cores.",
     .range = {1, 4096}},
    {NAMED_KEY("resources.memory_per_device",
               resources.memory_per_device_bytes),
     .doc =
         "What one worker may use; auto is what the machine, or the GPU, has "
         "to give.",
     .range = {1, kMaximumInteger}, .is_bytes = true},
    {KEY(resources.transport),
     .doc = "What moves activations and gathered parameters between the GPUs "
            "of a host: NCCL's kernels, or copy engines, which need no "
            "multiprocessor; auto is the faster by the profile, NCCL where it "
            "has no times of copy engines.",
     .choices = "auto|nccl|copy_engines"},

    {KEY(layout.pipeline), .doc = "Stages.", .range = {1, kMaximumInt32}},
    {KEY(layout.data),
     .doc = "Replicas, each with its share of the global batch.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.data_groups),
     .doc = "Equal groups of neighbours into which the data axis is cut, one "
            "a node for example. ZeRO shards inside a group and groups hold "
            "copies (hybrid sharding); with zero 0 gradients are summed inside "
            "first (hierarchical all-reduce). auto is 1, or one a node where "
            "the data axis spans nodes and that is faster.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.tensor), .doc = "Shards of each layer.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.context),
     .doc = "Shards of each sequence. Above 1 only planned so far.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.expert),
     .doc = "Shards of the experts of a layer, over the ranks of a stage. "
            "Above 1 only planned so far.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.expert_tensor),
     .doc = "Shards of one expert: 1, or as many as tensor. Above 1 only "
            "planned so far.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.interleave),
     .doc = "Chunks of layers a pipeline stage holds, in turn. Above 1 only "
            "planned so far.",
     .range = {1, 10000}},
    {KEY(layout.devices),
     .doc = "How many of the devices to use. auto is all that a run has; a "
            "plan-only layout may leave some idle.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.micro_batch), .doc = "Sequences of one micro-batch.",
     .range = {1, kMaximumInt32}},
    {KEY(layout.zero),
     .doc = "What the data axis shards, and context with it: nothing; 1 the "
            "optimizer state, 2 gradients too, 3 parameters too. auto takes 2 "
            "and 3 only where "
            "memory asks for it.",
     .range = {0, 3}},
    {KEY(layout.recompute),
     .doc = "What the backward pass computes again instead of keeping it: "
            "nothing, some ops of each layer, or whole layers; or a list, of "
            "each pipeline stage. selective leaves it to the planner which "
            "ops: those that save most bytes for their time, as few as fit. "
            "auto takes the least of all that fits, in each stage.",
     .choices = "auto|none|selective|full", .by_stage = true},
    {KEY(layout.schedule),
     .doc = "The order of passes in a pipeline: one forward, one backward; or "
            "zero_bubble, which also puts off weight gradients to fill its "
            "end, with ZeRO 0 or 1; or list, which orders passes by what they "
            "cost, as far as memory allows, likewise; or interleaved, only "
            "planned so far. auto takes the fastest.",
     .choices = "auto|1f1b|zero_bubble|list|interleaved"},

    {KEY(checkpoint.directory),
     .doc = "Where checkpoints go: a folder, or s3://BUCKET/PREFIX in a bucket "
            "of an S3-compatible server (docs/checkpoint.md). Empty: "
            "checkpoints/ in the run directory."},
    {KEY(checkpoint.interval_steps),
     .doc = "Steps between checkpoints; 0 writes none between.",
     .range = {0, kMaximumInteger}},
    {KEY(checkpoint.policy),
     .doc = "fixed: a checkpoint every interval_steps. auto: as often as loses "
            "least time, by what checkpoints of this run have cost and how "
            "often devices fail: goodput.mean_time_between_failures_hours if "
            "it is given, else 50,000 hours a device, and what failed in this "
            "run (docs/checkpoint.md).",
     .choices = "fixed|auto"},
    {KEY(checkpoint.at_end),
     .doc = "Whether one is written after the last step. When a run is "
            "stopped early, one always is, unless its hosts share no folder "
            "(docs/cluster.md)."},
    {KEY(checkpoint.keep), .doc = "Newest checkpoints kept.",
     .range = {1, kMaximumInt32}},
    {KEY(checkpoint.bytes_per_second),
     .doc = "The most that each rank writes of a checkpoint in a second while "
            "training goes on, which leaves disks and networks to others; 0: as "
            "fast as it goes. What training waits for is written at full speed.",
     .range = {0, kMaximumInteger}, .is_bytes = true},
    {KEY(checkpoint.resume),
     .doc =
         "auto: from the newest whole checkpoint in directory, if any; none; "
         "or the path of one checkpoint."},
    {KEY(checkpoint.endpoint),
     .doc = "The server of s3:// paths, such as http://minio:9000, which is "
            "asked for http://minio:9000/BUCKET/KEY. Empty: AWS_ENDPOINT_URL_S3 "
            "or AWS_ENDPOINT_URL of the environment, else Amazon's."},
    {KEY(checkpoint.region),
     .doc = "The region of the bucket. Empty: AWS_REGION or AWS_DEFAULT_REGION "
            "of the environment, else us-east-1."},

    {NAMED_KEY("export.every", exports.every),
     .doc = "Steps between exports of the weights, which are written from "
            "checkpoints while training goes on (docs/models.md); also after "
            "the last step. 0 writes none.",
     .range = {0, kMaximumInteger}},
    {NAMED_KEY("export.to", exports.to),
     .doc = "What is written: a Hugging Face folder, in bf16.",
     .choices = "huggingface"},
    {NAMED_KEY("export.directory", exports.directory),
     .doc = "Where the folders step-NNNNNNNN go. Empty: exports/ in the run "
            "directory."},
    {NAMED_KEY("export.keep", exports.keep),
     .doc = "Newest exports kept; 0 keeps all.", .range = {0, kMaximumInt32}},

    {KEY(fault.heartbeat_interval_ms),
     .doc = "Milliseconds between a worker's heartbeats.",
     .range = {1, kMaximumInt32}},
    {KEY(fault.heartbeat_timeout_ms),
     .doc = "A worker silent for so many milliseconds is replaced. Above the "
            "interval. A worker that is still preparing to train has 10 s at "
            "least.",
     .range = {1, kMaximumInt32}},
    {KEY(fault.hang_timeout_ms),
     .doc = "A rank whose heartbeats go on, but which gets on with nothing for "
            "three predicted steps and so many milliseconds, is replaced; 0: "
            "never. Its first step, checkpoints, validation and evaluation are "
            "exempt.",
     .range = {0, kMaximumInt32}},
    {KEY(fault.clear_timeout_ms),
     .doc = "A worker that was told to end a generation and has not reported "
            "itself free of it after a predicted step and so many "
            "milliseconds is replaced, heartbeats or not. A CPU is free at "
            "once, while a GPU runs its step to the end; ends of graphs with "
            "many collectives have taken 10 s.",
     .range = {1, kMaximumInt32}},
    {KEY(fault.host_timeout_ms),
     .doc = "A host silent for so many milliseconds is lost: the others go on "
            "without it from the last checkpoint, by a plan for their devices, "
            "and take it in again when it comes back (docs/cluster.md).",
     .range = {1, kMaximumInt32}},
    {KEY(fault.take_in_hosts),
     .doc = "Whether a host that comes back is taken in: auto, if the steps "
            "that are left gain more than the change costs.",
     .choices = "auto|always|never"},
    {KEY(fault.spare_hosts),
     .doc = "Hosts that are kept spare: they join the job and have its data, "
            "and train nothing until one takes the place of a host that is "
            "lost, under the same layout (docs/cluster.md).",
     .range = {0, kMaximumInt32}},
    {KEY(fault.leave_out_ms),
     .doc = "For how many milliseconds a device is left out whose worker failed "
            "twice within an hour; each time after that is twice as long. The "
            "others go on by a plan of their own, or a spare host takes the "
            "place. Over several hosts, the device's host is left out. auto: "
            "600000 on GPUs, 0 on CPUs. 0: none is left out.",
     .range = {0, kMaximumInt32}},
    {KEY(fault.coordinator_replicas),
     .doc = "Agents that keep the coordinator's log, so that it survives the "
            "loss of one of 3 hosts, or two of 5 (docs/cluster.md); 0: none.",
     .range = {0, 99}},
    {KEY(fault.replica_interval_steps),
     .doc = "Steps between copies of the training state in host memory, of "
            "which a partner on another host keeps one, so that a recovery "
            "needs no disk (docs/checkpoint.md). auto: on CPUs, as often as "
            "costs half a percent of the step, and nothing is sent where "
            "data-parallel ranks hold the same state anyway; on GPUs, none. "
            "0: none.",
     .range = {0, kMaximumInt32}},
    {KEY(fault.replica_partners),
     .doc = "Other ranks that keep a copy of each rank's part of the state in "
            "host memory, each on a host of its own (docs/checkpoint.md). With "
            "2 and on three hosts or more, the job goes on from memory after "
            "any two hosts are lost at once; the time and memory of what is "
            "sent double.",
     .range = {1, 2}},
    {KEY(fault.standby_workers),
     .doc = "Whether each worker has a standby process, which has prepared the "
            "worker's GPU and becomes its next process when it dies: auto, on "
            "GPUs if the layout leaves the memory of a process free; always, "
            "in memory that layouts may then not take.",
     .choices = "auto|always|never"},
    {KEY(fault.max_restarts),
     .doc = "Failures without a checkpoint or progress in between after which "
            "the run gives up.",
     .range = {0, kMaximumInt32}},
    {KEY(fault.on_slow_rank),
     .doc = "What follows when a rank computes longer than its Program's "
            "prediction, as learnt: warn says so; replace also restarts its "
            "process, once, if the rank computes at least 1.5 times as long.",
     .choices = "warn|replace"},
    {KEY(fault.on_bad_gradient),
     .doc = "What follows when loss or gradient is not a number also after the "
            "step was run again, and no rank is found to compute wrongly: skip "
            "leaves the weights as they were and goes on; stop ends the run.",
     .choices = "skip|stop"},
    {KEY(fault.max_skipped_steps),
     .doc = "Steps in a row that may be skipped for such a gradient; the run "
            "fails at the next one.",
     .range = {0, kMaximumInt32}},
    {KEY(fault.replica_check_steps),
     .doc = "Steps between comparisons of data-parallel replicas, by hashes "
            "of the parameters and moments that several ranks hold "
            "(layout.zero 0, or layout.data_groups above 1); 0: never. They "
            "are also compared at each checkpoint, which is not committed if "
            "they differ. Parameters that a rank gathered under layout.zero 1 "
            "or 2 are compared with their owner's.",
     .range = {0, kMaximumInteger}},
    {KEY(fault.on_loss_spike),
     .doc = "What follows when the loss jumps: continue says so; skip_batch "
            "goes back to the last checkpoint and leaves out the batch of that "
            "step; roll_back leaves out all batches since that checkpoint.",
     .choices = "continue|skip_batch|roll_back"},

    {KEY(goodput.objective),
     .doc = "What the plan makes best: the step; tokens per second over weeks "
            "with failures; or tokens for the money.",
     .choices = "step_time|goodput|cost"},
    {KEY(goodput.mean_time_between_failures_hours),
     .doc = "Hours of one device between failures that stop training; 0: not "
            "known, failures are not considered."},
    {KEY(goodput.repair_share),
     .doc = "Share of failures after which a node must be repaired; after the "
            "others it starts again.",
     .range = {0, 1}},
    {KEY(goodput.repair_hours),
     .doc = "Hours until a node that failed for good is back.",
     .range = {.excludes_least = true}},
    {KEY(goodput.spare_confidence),
     .doc = "Probability with which spare nodes should last until others are "
            "repaired.",
     .range = {.most = 1, .excludes_most = true}},
    {KEY(goodput.recovery_seconds),
     .doc = "Seconds from a failure until training goes on."},
    {KEY(goodput.checkpoint_seconds),
     .doc = "Seconds that training stands still for a checkpoint; auto: the "
            "state of a device over checkpoint_bytes_per_second.",
     .range = {.excludes_least = true}},
    {KEY(goodput.checkpoint_bytes_per_second),
     .doc = "What one device writes in a second while all do.",
     .range = {0, kMaximumInteger}, .is_bytes = true},
    {KEY(goodput.checkpoint_lag_seconds),
     .doc = "Seconds until a checkpoint counts after training went on, for one "
            "that is written meanwhile."},
    {KEY(goodput.price_per_device_hour),
     .doc = "What a device costs an hour, in any currency; 0: not known."},

    {KEY(evaluation.interval_steps),
     .doc = "Steps between evaluations of all sets; 0 never evaluates.",
     .range = {0, kMaximumInteger}},
    {KEY(evaluation.max_sequences),
     .doc = "Sequences that are read of each set, drawn from all over it, the "
            "same ones each time; 0: all of it.",
     .range = {0, kMaximumInteger}},
    {KEY(evaluation.sets),
     .doc = "Held-out data, each set under its name (docs/evaluation.md): "
            "globs of UTF-8 text files, or paths of .bin files of the indexed "
            "format, or a source as in data.sources, without a weight. Layout "
            "and micro-batch do not change which samples are read."},

    {KEY(metrics.tensorboard),
     .doc = "true: event files in tensorboard/ of the run directory "
            "(docs/dashboards.md)."},
    {KEY(metrics.mlflow),
     .doc = "The folder, such as mlruns, to which the run is added in MLflow's "
            "file layout. Empty: none."},
    {KEY(metrics.textfile),
     .doc = "The .prom file that holds the newest values, for the textfile "
            "collector of Prometheus' node exporter. Empty: none."},
    {KEY(metrics.port),
     .doc = "Port at which the coordinator serves /metrics to Prometheus. 0: "
            "none.",
     .range = {0, 65535}},
    {KEY(metrics.address),
     .doc = "IP address of that port. 0.0.0.0 lets other hosts read it, "
            "without a password."},

    {KEY(network.interface),
     .doc = "Interfaces over which the hosts of a job talk, by the beginnings "
            "of their names, as in NCCL_SOCKET_IFNAME: ib,eth takes some, "
            "=eth0 a whole name, ^docker all but some. Empty: the environment "
            "variables GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, else any "
            "(docs/cluster.md)."},
    {KEY(network.subnet),
     .doc = "Subnet in which their addresses lie, such as 10.0.0.0/8 or "
            "fd00::/64. Empty: any."},
    {KEY(network.ports),
     .doc = "Ports, such as 20000-20100, of which agent 0's host listens at "
            "the first free one. Empty: any free port."},

    {NAMED_KEY("output.directory", output_directory),
     .doc = "Run directories are made in it."},

    {KEY(profile),
     .doc = "auto: this machine's cached hardware profile, measured when there "
            "is none; else the path of one."},
    {KEY(profile_output),
     .doc = "Which profile learns from the run's measured steps. auto: the one "
            "that it was planned with, or a copy in the run directory of one "
            "that comes with Millrace; none; else a path, whose file is begun "
            "where there is none."},
};

}  // namespace

std::span<const JobKey> JobKeys() {
  static const std::vector<JobKey>* const kKeys = [] {
    const std::span<const JobKey> model = ModelKeys();
    auto* keys = new std::vector<JobKey>(model.begin(), model.end());
    keys->insert(keys->end(), std::begin(kOtherKeys), std::end(kOtherKeys));
    return keys;
  }();
  return *kKeys;
}

const JobKey* FindJobKey(absl::string_view path) {
  const std::span<const JobKey> keys = JobKeys();
  const auto found =
      std::find_if(keys.begin(), keys.end(),
                   [path](const JobKey& key) { return path == key.path; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace millrace
