// Published runs: training steps that others measured, as rows of dims, layout
// and result, each with its source. Two readers; what a row means for the
// planner is run_setup.h.

#ifndef MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_
#define MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// A row as it stands. Empty text and absent numbers: the row does not say.
struct PublishedRun {
  std::string id;
  std::string group;  // Rows of one source; "" stands for the id's first part.
  std::string kind;   // "pretrain", "memory_formula" ...
  std::string source;
  std::string model;
  std::string gpu;
  std::string precision;
  std::string recompute;
  std::string zero;
  std::string quality;  // "A+", "A", "A-", "B", "C".
  std::string notes;
  std::string memory_unit;

  // The model.
  std::optional<int64_t> layers, hidden, heads, kv_heads, ffn, vocab, sequence;
  std::optional<int64_t> head_dim;
  std::string mlp;       // "swiglu", "gelu", "relu2 ...".
  bool has_moe = false;  // The five below are its.
  std::optional<int64_t> experts, experts_per_token, expert_hidden;
  std::optional<int64_t> shared_experts, dense_layers;
  std::string attention;  // "MLA"; the five below are its.
  std::optional<int64_t> query_rank, kv_rank, nope_head_dim, rope_head_dim;
  std::optional<int64_t> value_head_dim;

  // How it was spread.
  std::optional<int64_t> num_gpus, tensor, pipeline, interleave, context;
  std::optional<int64_t> expert, data, fsdp_shard, micro_batch, global_batch;

  // What was measured.
  std::optional<double> step_time_s;
  std::optional<double> tokens_per_s_per_gpu;
  std::optional<double> memory;  // In memory_unit.

  // What is wrong with the row, by file, line and key; empty for a sound one.
  // Of another only `id` and `group` are sure to be filled.
  std::string fault;
};

// JSON of {"meta": ..., "rows": [{"id": ..., ...}, ...]}, or of the list of
// rows alone.
// Keys that are not among those above are passed over, null is "does not say".
// A row that is no object, has no id or an earlier row's, a value of the wrong
// type, a count below zero or beyond 2^31 - 1 or a key twice is a run with a
// `fault`; a row without an id is called "rows[INDEX]". InvalidArgument with
// file and line for text that is not this.
absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(
    absl::string_view json, const std::string& file_name);

// One of vTrain's tables of runs (VIA-Research/vTrain, data/): a header line
// with the columns of theirs, in any order, with or without one of parameters
// ("Parameters (billion)"), then as many cells a line. Other columns are passed
// over. Ids are "NAME/LINE" with the file's name and the line; the group
// follows from the number of devices, whatever the file is called. A line that
// has not as many cells as the header, or no number where one must be, is a
// run with a `fault`. InvalidArgument with file and line for a header that
// lacks a column or has one twice.
absl::StatusOr<std::vector<PublishedRun>> ReadVtrainRuns(
    absl::string_view csv, const std::string& file_name);

// Either, by the first character that is not a space. InvalidArgument for an
// empty file, too.
absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view text, const std::string& file_name);
absl::StatusOr<std::vector<PublishedRun>> LoadPublishedRuns(
    const std::string& path);

// The part of `source` that names the software and its version: what stands
// before the first colon, and a section in brackets. Empty if `source` is.
std::string SoftwareOf(const PublishedRun& run);

// Seconds of a step: as the row says, else by tokens of a step over tokens a
// second. Absent where neither can be had.
std::optional<double> MeasuredStepTime(const PublishedRun& run);
// Bytes of the fullest device. A unit that names GB and not GiB counts 10^9,
// others 2^30.
std::optional<double> MeasuredMemoryBytes(const PublishedRun& run);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_
