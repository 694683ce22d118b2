// A HardwareProfile holds what was measured of devices and links: tables, not
// formulas, each with where it came from. `millrace profile` measures one;
// planner/profile/profile_file.h reads and writes it as YAML.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

// Where the figures came from. A plan made with a profile of another machine,
// process count or thread count says so.
struct ProfileProvenance {
  std::string machine;      // Fingerprint: processor model and cores.
  std::string description;  // For people: "AMD EPYC, 2 cores, 24 GiB".
  std::string version;      // Of Millrace.
  std::string date;         // ISO 8601, UTC.
  int32_t num_ranks = 0;    // Workers that measured together.
  int32_t threads_per_device = 0;
};

// Seconds of one call on a rank that computes alone on its host. In bf16 c is
// fp32 where trans_a is set.
struct GemmTime {
  int64_t m, n, k;
  bool trans_a, trans_b;
  double seconds;
};
struct AttentionTime {
  bool backward;
  int64_t num_sequences, sequence_length, num_heads, num_kv_heads, head_dim;
  double seconds;
};
// The head with the loss: kLinearCrossEntropy, kCrossEntropyStats and
// kCrossEntropyGradient, each a chain of GEMMs and passes over the logits.
struct CrossEntropyTime {
  OpKind kind;
  int64_t num_tokens, hidden, vocab_rows;
  double seconds;
};
// Bandwidth-bound kinds, by the bytes they read and write (WorkOf, op_work.h).
struct BandwidthTime {
  OpKind kind;
  int64_t bytes;
  double seconds;
};
// Collectives and transfers among `group_size` ranks while the others of the
// host do the same. `bytes` of the full tensor.
struct CommunicationTime {
  OpKind kind;  // kSend stands for a send and its receive.
  int32_t group_size;
  int64_t bytes;
  double seconds;
};

// The same by copy engines (planner/program/copy_engines.h) in place of NCCL.
struct CopyEngineTime : CommunicationTime {};

// Factors on the times of a rank that computes and communicates at once: on its
// ops, and on its collectives and transfers.
struct OverlapFactors {
  double compute = 1;
  double communication = 1;
  // Communication needs multiprocessors of its own, and matrix products and
  // attention hold all of them until they end: it starts after the one under
  // way.
  bool waits = false;
  friend bool operator==(const OverlapFactors&,
                         const OverlapFactors&) = default;
};

// Bytes of device memory that a rank takes beside its arenas.
struct MemoryOverhead {
  int64_t process = 0;  // Context, loaded kernels, libraries.
  int64_t first_communicator = 0;
  int64_t communicator = 0;  // Each further one.
  friend bool operator==(const MemoryOverhead&,
                         const MemoryOverhead&) = default;
};

// One kind of device by its data sheet, and the constants with which
// planner/cost/sheet_times.h prices ops that no table has. Zero: not stated.
struct DeviceSpec {
  std::string name;  // "H100-SXM-80GB".
  int32_t multiprocessors = 0;
  // Dense, without sparsity, by what a product reads.
  double bf16_flops_per_s = 0;  // fp16 too.
  double fp8_flops_per_s = 0;
  double fp4_flops_per_s = 0;
  double memory_bytes_per_s = 0;
  std::string source;
  bool is_given() const { return bf16_flops_per_s > 0; }
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Devices joined by one kind of link: a domain of NVLink, a rack, the fabric.
struct NetworkLevel {
  std::string name;        // "nvlink", "fabric".
  int32_t devices = 0;     // That one domain joins; 0: all there are.
  double bytes_per_s = 0;  // A device, each direction, as the data sheet says.
  double latency_s = 0;    // Of one message.
  std::string source;
  friend bool operator==(const NetworkLevel&, const NetworkLevel&) = default;
};

// A constant of the cost formulas, with where its value comes from.
struct ModelConstant {
  std::string name;
  double value;
  std::string source;
  friend bool operator==(const ModelConstant&, const ModelConstant&) = default;
};

// How far steps planned with a profile were off: of runs measured so far, or to
// come, 90 % took between low and high times the predicted time
// (planner/profile/prediction_interval.h).
struct StepError {
  double low = 0;  // 0: not stated.
  double high = 0;
  int32_t num_runs = 0;
  std::string source;
  bool is_given() const { return low > 0; }
  friend bool operator==(const StepError&, const StepError&) = default;
};

// Ways to compute that only measuring can rank, as `millrace profile --tune`
// found them on one kind of device. The words are those of kernels/, which
// reads them (kernels/tuning/tuning.h, kernels/gemm/gemm_algorithm_table.h);
// plans do not.
struct KernelChoice {
  std::string family;       // "norm_forward"
  std::string shape_class;  // "layer=0 residual=1 vectors=512 cached=0"
  std::string choice;       // "threads=256"
  double seconds = 0;       // With the choice, and in the same run with what is
  double start_seconds = 0;  // chosen where nothing was measured.
  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};
// Of a matrix product.
struct ProductChoice {
  std::string shape;      // "m8192n8192k8192-tb"
  std::string algorithm;  // Of a library in one version, or of our kernel.
  double seconds = 0;
  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};
struct KernelTuning {
  std::string device;   // As its driver names it: "NVIDIA H200".
  std::string machine;  // Fingerprint.
  std::string version;  // Of Millrace.
  std::string date;     // ISO 8601, UTC.
  std::string command;  // What measured.
  std::vector<KernelChoice> kernels;
  std::vector<ProductChoice> products;
  bool is_given() const { return !device.empty(); }
  friend bool operator==(const KernelTuning&, const KernelTuning&) = default;
};

// What a step takes beside its ops.
struct StepWaits {
  double between_steps_s = 0;  // From its last instruction to the next step.
  // Ranks do not reach a collective at the same time, however alike their work
  // is, and it waits for the last one: standard deviation of an op's time, as a
  // share of it, where ops since the last collective scatter independently.
  double arrival_spread = 0;
  // By which an instruction is longer that waits for one of another lane: what
  // starts it is not the end of the kernel before it.
  double between_lanes_s = 0;
  friend bool operator==(const StepWaits&, const StepWaits&) = default;
};

// A run whose measured steps the profile learnt from
// (planner/learn/learn_from_run.h).
struct LearntRun {
  std::string run;        // As planner/learn/learn_from_run.h names it.
  std::string date;       // ISO 8601, UTC: when it was learnt from.
  std::string layout;     // For people.
  int32_t num_steps = 0;  // Measured instruction by instruction.
  // Whose ops counted for nothing, so much slower were they than others'.
  int32_t num_slow_ranks = 0;
  // Step times: the median of those measured, and what the profile predicts for
  // the layout before and after it learnt from the run.
  double measured_s = 0;
  double predicted_s = 0;
  double predicted_after_s = 0;
  friend bool operator==(const LearntRun&, const LearntRun&) = default;
};

// A value that a run changed.
struct LearntChange {
  std::string value;  // As planner/learn/learn_from_run.h names it.
  std::string run;
  std::string date;
  // Calls of the op that were measured; 0: learnt from others of its kind.
  int64_t num_samples = 0;
  double ratio = 1;     // Measured over `previous`.
  double previous = 0;  // The value until then, or what stood for it.
  friend bool operator==(const LearntChange&, const LearntChange&) = default;
};

struct HardwareProfile {
  std::string name;
  ProfileProvenance provenance;
  Precision precision = Precision::kFloat32;  // Of what computes.
  int32_t ranks_per_host = 1;
  int64_t device_memory_bytes = 0;  // Really available to one rank.
  MemoryOverhead memory_overhead;
  double launch_overhead_s = 0;  // Per instruction.
  std::vector<GemmTime> gemms;
  std::vector<AttentionTime> attention;
  std::vector<CrossEntropyTime> cross_entropy;
  std::vector<BandwidthTime> bandwidth;
  std::vector<CommunicationTime> communication;
  // Empty: not measured, or the devices do not reach each other's memory.
  std::vector<CopyEngineTime> copy_engines;
  // compute_contention[n - 1]: factor on an op's time when n ranks of one host
  // compute at once. Starts with 1; as long as ranks_per_host.
  std::vector<double> compute_contention;
  OverlapFactors overlap;
  OverlapFactors copy_engine_overlap;  // Of what copy engines do.
  StepWaits waits;
  // What prices ops and links that the tables lack.
  DeviceSpec device;
  std::vector<NetworkLevel> network;  // Innermost first.
  std::vector<ModelConstant> constants;
  StepError step_error;
  KernelTuning tuning;
  // What runs taught, oldest first; few are kept.
  std::vector<LearntRun> learnt_runs;
  std::vector<LearntChange> learnt_changes;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_H_
