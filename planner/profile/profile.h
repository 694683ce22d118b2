// A HardwareProfile holds measured times of devices and links as tables, with
// the source of each. `millrace profile` measures one, and
// planner/profile/profile_file.h reads and writes it as YAML.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

// Where the figures come from. A plan made with a profile of another machine,
// process count or thread count says so.
struct ProfileProvenance {
  std::string machine;      // Fingerprint: processor model and cores.
  std::string description;  // For people: "AMD EPYC, 2 cores, 24 GiB".
  std::string version;      // Version of Millrace.
  std::string date;         // ISO 8601, UTC.
  int32_t num_ranks = 0;    // Workers that measured at once.
  int32_t threads_per_device = 0;
};

// Seconds of one call on a rank that computes alone on its host. In bf16, c is
// fp32 if trans_a is set.
struct GemmTime {
  int64_t m, n, k;
  bool trans_a, trans_b;
  // A time of kFloat8Gemm or of kFloat8BlockGemm, else of kGemm.
  bool is_float8 = false;
  bool is_float8_blocks = false;
  double seconds;
};
OpKind KindOf(const GemmTime& row);
struct AttentionTime {
  bool backward;
  int64_t num_sequences, sequence_length, num_heads, num_kv_heads, head_dim;
  int64_t window = 0;  // 0: none.
  // A time of kFloat8AttentionForward.
  bool is_float8 = false;
  double seconds;
};
OpKind KindOf(const AttentionTime& row);
// The head with the loss: kLinearCrossEntropy, kCrossEntropyStats and
// kCrossEntropyGradient. Each is a chain of GEMMs and passes over the logits.
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
// Collectives and transfers among `group_size` ranks while the other ranks of
// their hosts do the same, so groups share the hosts' ports as in training.
// `bytes` is the size of the full tensor.
struct CommunicationTime {
  OpKind kind;  // kSend stands for a send and its receive.
  int32_t group_size;
  // The group's ranks are spread evenly over so many hosts.
  int64_t hosts = 1;
  // Transfers between two hosts: as many ranks of one send to the other at
  // once.
  int64_t pairs = 1;
  int64_t bytes;
  double seconds;
};

// The same with copy engines (planner/program/copy_engines.h) instead of NCCL.
struct CopyEngineTime : CommunicationTime {};

// Factors for a rank that computes and communicates at once: on its ops' times,
// and on its collectives' and transfers' times.
struct OverlapFactors {
  double compute = 1;
  double communication = 1;
  // Communication needs multiprocessors, and matrix products and attention hold
  // all of them until they end. So it starts after the op that is running.
  bool waits = false;
  friend bool operator==(const OverlapFactors&,
                         const OverlapFactors&) = default;
};

// Bytes of device memory that a rank uses besides its arenas.
struct MemoryOverhead {
  int64_t process = 0;  // Context, loaded kernels, libraries.
  int64_t first_communicator = 0;
  int64_t communicator = 0;  // Each one after the first.
  friend bool operator==(const MemoryOverhead&,
                         const MemoryOverhead&) = default;
};

// The way between a device and the memory of its host.
struct HostLink {
  // Bytes a second that a copy engine downloads to page-locked memory, while
  // those of all devices of the host do. 0: not known.
  double to_host_bytes_per_s = 0;
  std::string source;
  friend bool operator==(const HostLink&, const HostLink&) = default;
};

// One kind of device by its data sheet, and the constants with which
// planner/cost/sheet_times.h prices ops that no table has. Zero: not stated.
struct DeviceSpec {
  std::string name;  // "H100-SXM-80GB".
  int32_t multiprocessors = 0;
  // Dense rates, without sparsity, by the format that a product reads.
  double bf16_flops_per_s = 0;  // Also fp16.
  double fp8_flops_per_s = 0;
  double fp4_flops_per_s = 0;
  double memory_bytes_per_s = 0;
  std::string source;
  bool is_given() const { return bf16_flops_per_s > 0; }
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// Devices joined by one kind of link: an NVLink domain, a rack, the fabric.
struct NetworkLevel {
  std::string name;        // "nvlink", "fabric".
  int32_t devices = 0;     // In one domain; 0: all devices.
  double bytes_per_s = 0;  // For a device in each direction, by the data sheet.
  double latency_s = 0;    // For one message.
  std::string source;
  friend bool operator==(const NetworkLevel&, const NetworkLevel&) = default;
};

// A constant of the cost formulas and the source of its value.
struct ModelConstant {
  std::string name;
  double value;
  std::string source;
  friend bool operator==(const ModelConstant&, const ModelConstant&) = default;
};

// How far predicted steps are off: 90 % of runs take between low and high times
// the predicted time (planner/profile/prediction_interval.h).
struct StepError {
  double low = 0;  // 0: not stated.
  double high = 0;
  int32_t num_runs = 0;
  std::string source;
  bool is_given() const { return low > 0; }
  friend bool operator==(const StepError&, const StepError&) = default;
};

// Ways to compute that only measuring can rank, found by `millrace profile
// --tune` on one kind of device. kernels/ defines and reads the words
// (kernels/tuning/tuning.h, kernels/gemm/gemm_algorithm_table.h); plans do not
// use them.
struct KernelChoice {
  std::string family;        // "norm_forward"
  std::string shape_class;   // "layer=0 residual=1 vectors=512 cached=0"
  std::string choice;        // "threads=256"
  double seconds = 0;        // With the choice; the next is without it,
  double start_seconds = 0;  // measured in the same run.
  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};
// The choice for one matrix product.
struct ProductChoice {
  std::string shape;      // "m8192n8192k8192-tb"
  std::string algorithm;  // In a library's version, or our kernel's.
  double seconds = 0;
  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};
struct KernelTuning {
  std::string device;   // Its driver's name: "NVIDIA H200".
  std::string machine;  // Fingerprint.
  std::string version;  // Version of Millrace.
  std::string date;     // ISO 8601, UTC.
  std::string command;  // The command that measured.
  std::vector<KernelChoice> kernels;
  std::vector<ProductChoice> products;
  bool is_given() const { return !device.empty(); }
  friend bool operator==(const KernelTuning&, const KernelTuning&) = default;
};

// Time of a step that is not in its ops.
struct StepWaits {
  double between_steps_s = 0;  // From its last instruction to the next step.
  // Ranks with equal work do not reach a collective at the same time, and it
  // waits for the last one. This is the standard deviation of an op's time as a
  // share of it, if the ops since the last collective scatter independently.
  double arrival_spread = 0;
  // Added to an instruction that waits for one of another lane, since it does
  // not start by the end of the kernel before it.
  double between_lanes_s = 0;
  friend bool operator==(const StepWaits&, const StepWaits&) = default;
};

// A run whose measured steps the profile learnt from
// (planner/learn/learn_from_run.h).
struct LearntRun {
  std::string run;        // As planner/learn/learn_from_run.h names it.
  std::string date;       // When it was learnt from; ISO 8601, UTC.
  std::string layout;     // For people.
  int32_t num_steps = 0;  // Steps measured op by op.
  // Ranks that were so much slower than others that their ops were left out.
  int32_t num_slow_ranks = 0;
  // Step times: the measured median, and the profile's prediction for the
  // layout before and after it learnt from the run.
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
  // Measured calls of the op; 0 if other rows of its kind caused the change.
  int64_t num_samples = 0;
  double ratio = 1;     // Measured over `previous`.
  double previous = 0;  // The value before, or what stood for it.
  friend bool operator==(const LearntChange&, const LearntChange&) = default;
};

struct HardwareProfile {
  std::string name;
  ProfileProvenance provenance;
  Precision precision = Precision::kFloat32;  // In which the ops were computed.
  int32_t ranks_per_host = 1;       // Neighbours in rank order share a host.
  int64_t device_memory_bytes = 0;  // Available to one rank.
  MemoryOverhead memory_overhead;
  HostLink host_link;
  double launch_overhead_s = 0;  // For each instruction.
  std::vector<GemmTime> gemms;
  std::vector<AttentionTime> attention;
  std::vector<CrossEntropyTime> cross_entropy;
  std::vector<BandwidthTime> bandwidth;
  std::vector<CommunicationTime> communication;
  // Empty if not measured, or if the devices do not reach each other's memory.
  std::vector<CopyEngineTime> copy_engines;
  // compute_contention[n - 1] is the factor on an op's time when n ranks of one
  // host compute at once. It starts with 1 and has ranks_per_host entries.
  std::vector<double> compute_contention;
  OverlapFactors overlap;
  OverlapFactors copy_engine_overlap;  // For communication by copy engines.
  StepWaits waits;
  // These price ops and links that the tables lack.
  DeviceSpec device;
  std::vector<NetworkLevel> network;  // Innermost first.
  std::vector<ModelConstant> constants;
  StepError step_error;
  KernelTuning tuning;
  // The history of learning, oldest first; only the newest are kept.
  std::vector<LearntRun> learnt_runs;
  std::vector<LearntChange> learnt_changes;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_H_
