// Reads vTrain's tables of runs; see published_runs.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/evaluate/published_runs.h"

namespace millrace {
namespace {

constexpr int64_t kMaxVtrainCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kVtrainNode = 8;  // Devices of a node.
constexpr size_t kShownText = 60;   // Characters of a cell or header.

// A column of counts.
struct CountColumn {
  const char* name;
  std::optional<int64_t> PublishedRun::*field;
};
constexpr CountColumn kCounts[] = {
    {"GPUs", &PublishedRun::num_gpus},
    {"global batch", &PublishedRun::global_batch},
    {"micro batch", &PublishedRun::micro_batch},
    {"hidden size", &PublishedRun::hidden},
    {"attention heads", &PublishedRun::heads},
    {"layers", &PublishedRun::layers},
    {"sequence length", &PublishedRun::sequence},
    {"tensor parallelism", &PublishedRun::tensor},
    {"data parallelism", &PublishedRun::data},
    {"pipeline parallelism", &PublishedRun::pipeline}};
constexpr char kTimeColumn[] = "iteration time (ms)";
constexpr char kParameterColumn[] = "Parameters (billion)";  // May be absent.

using Cells = std::vector<absl::string_view>;
using Columns = std::map<std::string, size_t>;  // By name, from 0.

Cells CellsOf(absl::string_view line) {
  Cells cells = absl::StrSplit(line, ',');
  for (absl::string_view& cell : cells) {
    cell = absl::StripAsciiWhitespace(cell);
  }
  return cells;
}

// The columns that are read. Names of counts have "# " before them in some
// tables.
absl::StatusOr<Columns> ReadHeader(const Cells& header) {
  std::vector<std::string> needed;
  for (const CountColumn& count : kCounts) needed.emplace_back(count.name);
  needed.emplace_back(kTimeColumn);
  Columns columns;
  for (size_t i = 0; i < header.size(); ++i) {
    const std::string name(
        absl::StripLeadingAsciiWhitespace(absl::StripPrefix(header[i], "#")));
    const bool is_read = name == kParameterColumn ||
                         std::ranges::find(needed, name) != needed.end();
    if (!is_read || columns.emplace(name, i).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("columns ", columns[name] + 1, " and ", i + 1,
                     " are both '", name, "'; remove one"));
  }
  std::vector<std::string> missing;
  for (const std::string& name : needed) {
    if (!columns.contains(name)) missing.push_back("'" + name + "'");
  }
  if (missing.size() == needed.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected JSON, which starts with {, or vTrain's table with the "
        "columns ",
        absl::StrJoin(missing, ", "), "; found '",
        absl::StrJoin(header, ",").substr(0, kShownText), "'"));
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header lacks ", absl::StrJoin(missing, ", ")));
  }
  return columns;
}

absl::Status ReadLine(const Cells& cells, const Columns& columns,
                      PublishedRun* run) {
  const auto error = [&](const char* name, absl::string_view expected) {
    const size_t column = columns.at(name);
    return absl::InvalidArgumentError(absl::StrCat(
        "column ", column + 1, " (", name, "): expected ", expected,
        ", found '", cells[column].substr(0, kShownText), "'"));
  };
  for (const CountColumn& count : kCounts) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(cells[columns.at(count.name)], &value) || value < 1 ||
        value > kMaxVtrainCount) {
      return error(count.name, "a whole number from 1 to 2147483647");
    }
    run->*count.field = value;
  }
  const auto is_positive = [&](const char* name, double* value) {
    return absl::SimpleAtod(cells[columns.at(name)], value) && *value > 0 &&
           std::isfinite(*value);
  };
  const bool has_parameters = columns.contains(kParameterColumn);
  double billions = 0;
  if (has_parameters && !is_positive(kParameterColumn, &billions)) {
    return error(kParameterColumn, "a number above 0");
  }
  double milliseconds = 0;
  if (!is_positive(kTimeColumn, &milliseconds)) {
    return error(kTimeColumn, "milliseconds above 0");
  }
  run->step_time_s = milliseconds / 1e3;
  run->kv_heads = run->heads;
  run->ffn = 4 * *run->hidden;
  run->model =
      has_parameters
          ? absl::StrCat("gpt-", cells[columns.at(kParameterColumn)], "b")
          : absl::StrCat("gpt-", *run->layers, "x", *run->hidden);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<PublishedRun>> ReadVtrainRuns(
    absl::string_view csv, const std::string& file_name) {
  const std::string stem = std::filesystem::path(file_name).stem();
  std::vector<PublishedRun> runs;
  Columns columns;
  size_t num_columns = 0;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const Cells cells = CellsOf(line);
    const std::string place = absl::StrCat(file_name, ":", line_number, ": ");
    if (num_columns == 0) {
      absl::StatusOr<Columns> header = ReadHeader(cells);
      if (!header.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, header.status().message()));
      }
      columns = *std::move(header);
      num_columns = cells.size();
      continue;
    }
    PublishedRun run;
    run.id = absl::StrCat(stem, "/", line_number);
    run.kind = "pretrain";
    run.source = "VIA-Research/vTrain";
    run.precision = "FP16";
    run.mlp = "gelu";
    run.quality = "A-";  // Vocabulary and recompute are not stated.
    run.gpu = "A100 (8/node)";
    run.context = run.expert = run.interleave = 1;
    if (cells.size() != num_columns) {
      run.fault =
          absl::StrCat(place, "expected ", num_columns,
                       " cells as the header has, found ", cells.size());
    } else if (const absl::Status status = ReadLine(cells, columns, &run);
               !status.ok()) {
      run.fault = absl::StrCat(place, status.message());
    }
    // The two tables were made differently. The file's name does not tell them
    // apart, so the number of devices does.
    run.group = run.num_gpus.value_or(1) <= kVtrainNode ? "vtrain_single_node"
                                                        : "vtrain_multi";
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace millrace
