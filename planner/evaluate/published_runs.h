// Published runs: training steps that others measured. A row states dims,
// layout and result with their source. This file reads rows in two formats;
// run_setup.h turns a row into the planner's terms.

#ifndef MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_
#define MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// A row as its source states it. Empty text and absent numbers mean that the
// row does not say.
struct PublishedRun {
  std::string id;
  std::string group;  // Rows of one source; if empty, the id's first part.
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
  bool has_moe = false;  // If true, the five fields below hold.
  std::optional<int64_t> experts, experts_per_token, expert_hidden;
  std::optional<int64_t> shared_experts, dense_layers;
  std::string attention;  // If "MLA", the five fields below hold.
  std::optional<int64_t> query_rank, kv_rank, nope_head_dim, rope_head_dim;
  std::optional<int64_t> value_head_dim;

  // The layout.
  std::optional<int64_t> num_gpus, tensor, pipeline, interleave, context;
  std::optional<int64_t> expert, data, fsdp_shard, micro_batch, global_batch;

  // The measurements.
  std::optional<double> step_time_s;
  std::optional<double> tokens_per_s_per_gpu;
  std::optional<double> memory;  // In memory_unit.

  // The row's first error, with file, line and key; empty for a sound row. A
  // row with a fault is sure to have only `id` and `group`.
  std::string fault;
};

// Reads JSON of the form {"meta": ..., "rows": [{"id": ..., ...}, ...]}, or the
// list of rows alone. Keys other than those above are ignored; null means that
// the row does not say.
//
// A row becomes a run with a `fault` if it is no object, has no id or the id of
// an earlier row, has a value of the wrong type, a count below zero or above
// 2^31 - 1, or a key twice. A row without an id is called "rows[INDEX]".
// Returns InvalidArgument with file and line for text that is not of this form.
absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(
    absl::string_view json, const std::string& file_name);

// Reads one of vTrain's tables of runs (VIA-Research/vTrain, data/). The first
// line names the columns, in any order; that of parameters ("Parameters
// (billion)") may be missing, and unknown columns are ignored. Ids are
// "NAME/LINE" with the file's name and the line. The group follows from the
// number of devices, whatever the file is called.
//
// A line is a run with a `fault` if it has not as many cells as the header, or
// no number where one must be. Returns InvalidArgument with file and line for a
// header that lacks a column or has one twice.
absl::StatusOr<std::vector<PublishedRun>> ReadVtrainRuns(
    absl::string_view csv, const std::string& file_name);

// Reads either format. The first character that is not a space decides which.
// Returns InvalidArgument for an empty file too.
absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view text, const std::string& file_name);
absl::StatusOr<std::vector<PublishedRun>> LoadPublishedRuns(
    const std::string& path);

// Returns the part of `source` that names the software and its version: the
// text before the first colon, and a section in brackets. Empty if `source` is
// empty.
std::string SoftwareOf(const PublishedRun& run);

// Returns the seconds of a step, as the row states them or as its tokens of a
// step over its tokens a second. Absent if the row gives neither.
std::optional<double> MeasuredStepTime(const PublishedRun& run);
// Returns the bytes of the fullest device. A unit that names GB and not GiB
// counts 10^9 bytes, any other 2^30.
std::optional<double> MeasuredMemoryBytes(const PublishedRun& run);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_PUBLISHED_RUNS_H_
