// A JobSpec is what the user asked for. planner/job/job_file.h reads it from
// YAML; docs/job.md documents every key.

#ifndef MILLRACE_PLANNER_JOB_JOB_H_
#define MILLRACE_PLANNER_JOB_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/layout_constraints.h"
#include "planner/layout/model.h"

namespace millrace {

// One source of a mixture.
struct DataSourceSpec {
  std::vector<std::string> files;  // Globs; of indexed data as DataSpec's.
  std::string format = "auto";     // "text", "jsonl", "parquet" or "indexed".
  // Each record is a text, trained wholly, or "chat", or "preference".
  std::string kind = "text";
  // The tokens of chat that are trained; or "completion" or "all".
  std::string train_on = "assistant";
  // The column of records that holds the text, or the messages of chat; empty
  // for chat: the columns have their usual names.
  std::string column = "text";
  double weight = 1;  // Share of samples, beside the others' sum.
  bool is_chat() const { return kind == "chat"; }
  bool is_preference() const { return kind == "preference"; }
  // Whether records become samples with trained and untrained tokens.
  bool has_samples() const { return is_chat() || is_preference(); }
  friend bool operator==(const DataSourceSpec&,
                         const DataSourceSpec&) = default;
};

struct DataSpec {
  bool synthetic = false;         // Random tokens; no files, no tokenizer.
  std::vector<std::string> text;  // Globs of UTF-8 files; ** crosses folders.
  std::vector<std::string>
      indexed;  // Path prefixes or .bin paths of .bin/.idx.
  std::vector<DataSourceSpec> sources;
  std::string tokenizer = "auto";  // auto: trained on `text`; or a path.
  std::string end_of_document;     // A token; empty: the tokenizer's own.
  double validation_fraction = 0.01;
  int64_t max_bytes = 0;        // Most text to read; 0 means all.
  int64_t broken_records = 10;  // More of them stop the job.
  // These are for chat sources.
  std::string chat_template;  // A file; empty: the tokenizer brings one.
  std::string chat_date;      // "2026-11-23", for templates; empty: none.
  bool packing = true;        // Several samples share a sequence.
  std::string long_samples = "cut";  // Longer than a sequence: "cut", "drop".
  int64_t document_length = 0;       // See Layout; 0: counted in the data.
  std::string cache_directory;  // Tokenizer and tokens; empty: the user cache.
  // The host that has the data and gives it to the others: "agent0", or a
  // host's name. Empty: every host has it.
  std::string from;
  // Whether the agent prepares the data on its host, or else fetches it.
  bool is_on(int32_t agent_idx, const std::string& host) const {
    return from.empty() || (from == "agent0" ? agent_idx == 0 : from == host);
  }
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

enum class LearningRateDecay { kNone, kLinear, kCosine };

struct OptimizerSpec {
  double learning_rate = 0;
  double min_learning_rate = 0;  // Reached at the last step.
  int64_t warmup_steps = 0;      // Linear from zero.
  LearningRateDecay decay = LearningRateDecay::kCosine;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  std::string moments = "fp32";  // A name of MomentFormats().
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

struct TrainingSpec {
  int64_t num_steps = 0;
  int64_t global_batch = 0;  // Sequences per step.
  uint64_t seed = 0;
  std::string precision = "fp32";
  std::string gradient_reduction = "fp32";  // Or another name, or "auto".
  std::string objective = "cross_entropy";  // Or "dpo".
  double dpo_beta = 0.1;
  double dpo_label_smoothing = 0;         // Share of pairs taken to be swapped.
  bool deterministic = false;             // Equal runs on GPUs give equal bits.
  double gradient_clip_norm = 1.0;        // 0: no clipping.
  int64_t validation_interval_steps = 0;  // 0: never.
  int64_t validation_steps = 1;
  OptimizerSpec optimizer;
  // Absent where the search chooses: fp32, or bf16 for what hosts send each
  // other alone.
  std::optional<GradientReduction> reduction() const {
    if (gradient_reduction == "auto") return std::nullopt;
    return GradientReductionOf(gradient_reduction);
  }
  bool trains_preferences() const { return objective == "dpo"; }
  Objective minimizes() const {
    return trains_preferences() ? Objective::kPreference
                                : Objective::kCrossEntropy;
  }
  friend bool operator==(const TrainingSpec&, const TrainingSpec&) = default;
};

struct ResourceSpec {
  std::string backend = "cpu";                // "cpu" or "cuda".
  std::optional<int32_t> devices_per_agent;   // Absent: auto.
  std::optional<int32_t> threads_per_device;  // CPU only; absent: cores shared.
  std::optional<int64_t> memory_per_device_bytes;  // Absent: what there is.
  // "auto", "nccl" or "copy_engines": what moves tensors between GPUs of a
  // host.
  std::string transport = "auto";
  bool uses_cuda() const { return backend == "cuda"; }
  Backend kind() const { return uses_cuda() ? Backend::kCuda : Backend::kCpu; }
  friend bool operator==(const ResourceSpec&, const ResourceSpec&) = default;
};

struct CheckpointSpec {
  // A folder, or s3://BUCKET/PREFIX. Empty: "checkpoints" in the run directory.
  std::string directory;
  int64_t interval_steps = 0;  // 0: only at the end.
  // "fixed": every interval_steps; "auto": from what a checkpoint costs and how
  // often the job fails.
  std::string policy = "fixed";
  bool at_end = true;  // After the last step of the job.
  int32_t keep = 2;
  // The most that a rank writes in a second while training goes on; 0: any.
  int64_t bytes_per_second = 0;
  bool is_periodic() const { return interval_steps > 0 || policy == "auto"; }
  // "auto": the newest whole checkpoint in `directory`, if any; "none"; or the
  // path of one checkpoint.
  std::string resume = "auto";
  // The server and the region of s3:// paths. Empty: as the environment says.
  std::string endpoint;
  std::string region;
  friend bool operator==(const CheckpointSpec&,
                         const CheckpointSpec&) = default;
};

// Hugging Face folders that are written from checkpoints during training.
struct ExportSpec {
  int64_t every = 0;  // Steps between exports; 0: none.
  std::string to = "huggingface";
  std::string directory;  // Empty: "exports" in the run directory.
  int32_t keep = 0;       // 0: all.
  friend bool operator==(const ExportSpec&, const ExportSpec&) = default;
};

struct FaultSpec {
  int64_t heartbeat_interval_ms = 200;
  int64_t heartbeat_timeout_ms = 2000;  // A silent worker is replaced.
  // So is a rank that trains and gets on with nothing for three predicted steps
  // and so long; 0: never.
  int64_t hang_timeout_ms = 2000;
  // So is one that was told to end a generation and has not for a predicted
  // step and so long.
  int64_t clear_timeout_ms = 20000;
  int64_t host_timeout_ms = 10000;  // The job goes on without a silent host.
  // Hosts that come back: "auto" (if it pays), "always" or "never".
  std::string take_in_hosts = "auto";
  // Hosts on which nothing trains until one takes a lost host's place.
  int32_t spare_hosts = 0;
  // How long a device is left out that failed twice. Absent: kLeaveOutMs on
  // GPUs, and 0, which leaves none out, on CPUs.
  static constexpr int32_t kLeaveOutMs = 600000;
  std::optional<int32_t> leave_out_ms;
  // Agents that keep the coordinator's log, so that another of them takes its
  // place when its host is lost: 0 (agent 0's process alone) or at least 3.
  int32_t coordinator_replicas = 0;
  int32_t max_restarts = 100;            // Without a checkpoint in between.
  std::string on_slow_rank = "warn";     // Or "replace".
  std::string on_bad_gradient = "skip";  // The step; or "stop".
  int32_t max_skipped_steps = 10;        // In a row; more of them end the job.
  // Steps between comparisons of the replicas' parameters; 0: never.
  int64_t replica_check_steps = 100;
  std::string on_loss_spike = "continue";  // "skip_batch" or "roll_back".
  // Steps between copies of the state in other processes' memory; 0: none.
  // Absent: from what they cost.
  std::optional<int32_t> replica_interval_steps;
  // Other ranks that keep a copy of each rank's part: 1 or 2.
  int32_t replica_partners = 1;
  // Whether each worker has a process that waits to replace it: "auto" (on GPUs
  // with memory left), "always" or "never".
  std::string standby_workers = "auto";
  friend bool operator==(const FaultSpec&, const FaultSpec&) = default;
};

// How often devices fail and what follows: what planner/fleet/goodput.h works
// from.
struct GoodputSpec {
  std::string objective = "step_time";  // "step_time", "goodput" or "cost".
  // For one device; 0: not known, and failures are not considered.
  double mean_time_between_failures_hours = 0;
  // The share of failures after which the node must be repaired; after the
  // others it starts again.
  double repair_share = 1;
  double repair_hours = 24;
  // The probability that no failure waits for a repair.
  double spare_confidence = 0.99;
  double recovery_seconds = 300;
  // Training stands still; absent: from the bytes of a device's state.
  std::optional<double> checkpoint_seconds;
  int64_t checkpoint_bytes_per_second = 0;  // For one device; 0: not known.
  double checkpoint_lag_seconds = 0;
  double price_per_device_hour = 0;  // 0: not known.
  friend bool operator==(const GoodputSpec&, const GoodputSpec&) = default;
};

// Named sets of held-out text, whose loss does not depend on the layout.
struct EvaluationSpec {
  int64_t interval_steps = 0;  // 0: never while training.
  int64_t max_sequences = 0;   // In each set; 0 means all.
  // By the set's name. Those of format "text" may hold .bin paths instead.
  std::map<std::string, DataSourceSpec> sets;
  friend bool operator==(const EvaluationSpec&,
                         const EvaluationSpec&) = default;
};

// Records for dashboards, written while a run goes on.
struct MetricsSpec {
  bool tensorboard = false;  // Event files in the run directory.
  std::string mlflow;        // A folder in MLflow's layout; empty: none.
  std::string textfile;      // For a node exporter; empty: none.
  int32_t port = 0;          // Of Prometheus' /metrics; 0: not served.
  std::string address = "127.0.0.1";
  friend bool operator==(const MetricsSpec&, const MetricsSpec&) = default;
};

// How the hosts of a job reach each other.
struct NetworkSpec {
  std::string interface;  // As NCCL_SOCKET_IFNAME; empty: any.
  std::string subnet;     // "10.0.0.0/8"; empty: any.
  std::string ports;      // The coordinator's: "20000-20100"; empty: any.
  friend bool operator==(const NetworkSpec&, const NetworkSpec&) = default;
};

struct JobSpec {
  std::string name;
  ModelSpec model;
  // Features that the model leaves out of the one that it stands for; empty:
  // none.
  std::string model_approximates;
  // The folder of a Hugging Face model whose weights training starts from;
  // empty: random weights.
  std::string model_from;
  // WeightFolder::Fingerprint() of that folder; empty: not looked at yet.
  std::string model_fingerprint;
  DataSpec data;
  TrainingSpec training;
  ResourceSpec resources;
  LayoutConstraints layout;
  CheckpointSpec checkpoint;
  ExportSpec exports;  // "export" in files, which C++ keeps for itself.
  FaultSpec fault;
  GoodputSpec goodput;
  EvaluationSpec evaluation;
  MetricsSpec metrics;
  NetworkSpec network;
  std::string output_directory = "runs";
  std::string profile = "auto";  // auto: this machine's cached one; or a path.
  // Where what the run measures is learnt: auto: that profile; none; or a path.
  std::string profile_output = "auto";
  // The format in which the job's backend stores tensors: what
  // training.precision says for it (planner/layout/numeric_format.h).
  Precision precision() const {
    return PrecisionOf(training.precision, resources.kind());
  }
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Learning rate of step `step` (the first is 1): linear warmup, then decay to
// min_learning_rate at step num_steps.
double LearningRateAt(const TrainingSpec& training, int64_t step);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_JOB_H_
