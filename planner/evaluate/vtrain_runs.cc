// vTrain's tables of runs: see published_runs.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "planner/evaluate/published_runs.h"

namespace millrace {
namespace {

constexpr int64_t kMaxVtrainCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kVtrainNode = 8;  // Devices.

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
constexpr char kParameterColumn[] = "Parameters (billion)";

using Cells = std::vector<absl::string_view>;

Cells CellsOf(absl::string_view line) {
  Cells cells = absl::StrSplit(line, ',');
  for (absl::string_view& cell : cells) {
    cell = absl::StripAsciiWhitespace(cell);
  }
  return cells;
}

// Which column holds what, from 0.
struct Columns {
  size_t num = 0;
  std::vector<size_t> counts;  // As in kCounts.
  size_t time = 0;
  std::optional<size_t> parameters;
};

// The column of that name; absent where there is none. Names of counts have
// "# " before them in some tables.
absl::StatusOr<std::optional<size_t>> FindColumn(const Cells& header,
                                                 absl::string_view name) {
  std::optional<size_t> found;
  for (size_t i = 0; i < header.size(); ++i) {
    absl::string_view cell = header[i];
    if (absl::ConsumePrefix(&cell, "#")) {
      cell = absl::StripLeadingAsciiWhitespace(cell);
    }
    if (cell != name) continue;
    if (found) {
      return absl::InvalidArgumentError(
          absl::StrCat("columns ", *found + 1, " and ", i + 1, " are both '",
                       name, "'; remove one"));
    }
    found = i;
  }
  return found;
}

absl::StatusOr<Columns> ReadHeader(const Cells& header) {
  Columns columns;
  columns.num = header.size();
  std::vector<std::string> missing;
  for (const CountColumn& count : kCounts) {
    ASSIGN_OR_RETURN(const std::optional<size_t> at,
                     FindColumn(header, count.name));
    columns.counts.push_back(at.value_or(0));
    if (!at) missing.push_back(absl::StrCat("'", count.name, "'"));
  }
  ASSIGN_OR_RETURN(const std::optional<size_t> time,
                   FindColumn(header, kTimeColumn));
  columns.time = time.value_or(0);
  if (!time) missing.push_back(absl::StrCat("'", kTimeColumn, "'"));
  ASSIGN_OR_RETURN(columns.parameters, FindColumn(header, kParameterColumn));
  if (missing.size() == std::size(kCounts) + 1) {
    constexpr size_t kShown = 60;
    return absl::InvalidArgumentError(absl::StrCat(
        "expected JSON, which starts with {, or vTrain's table with the "
        "columns ",
        absl::StrJoin(missing, ", "), "; found '",
        absl::StrJoin(header, ",").substr(0, kShown), "'"));
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header lacks ", absl::StrJoin(missing, ", ")));
  }
  return columns;
}

absl::Status ReadLine(const Cells& cells, const Columns& columns,
                      PublishedRun* run) {
  if (cells.size() != columns.num) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", columns.num,
                     " cells as the header has, found ", cells.size()));
  }
  auto error = [&](size_t column, absl::string_view name,
                   absl::string_view expected) {
    constexpr size_t kShown = 60;
    return absl::InvalidArgumentError(absl::StrCat(
        "column ", column + 1, " (", name, "): expected ", expected,
        ", found '", cells[column].substr(0, kShown), "'"));
  };
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    const size_t column = columns.counts[i];
    int64_t value = 0;
    if (!absl::SimpleAtoi(cells[column], &value) || value < 1 ||
        value > kMaxVtrainCount) {
      return error(column, kCounts[i].name,
                   "a whole number from 1 to 2147483647");
    }
    run->*kCounts[i].field = value;
  }
  auto is_positive = [&](size_t column, double* value) {
    return absl::SimpleAtod(cells[column], value) && *value > 0 &&
           std::isfinite(*value);
  };
  double billions = 0;
  if (columns.parameters && !is_positive(*columns.parameters, &billions)) {
    return error(*columns.parameters, kParameterColumn, "a number above 0");
  }
  double milliseconds = 0;
  if (!is_positive(columns.time, &milliseconds)) {
    return error(columns.time, kTimeColumn, "milliseconds above 0");
  }
  run->step_time_s = milliseconds / 1e3;
  run->kv_heads = run->heads;
  run->ffn = 4 * *run->hidden;
  run->model = columns.parameters
                   ? absl::StrCat("gpt-", cells[*columns.parameters], "b")
                   : absl::StrCat("gpt-", *run->layers, "x", *run->hidden);
  return absl::OkStatus();
}

std::string Stem(const std::string& file_name) {
  const size_t slash = file_name.rfind('/');
  const std::string name =
      slash == std::string::npos ? file_name : file_name.substr(slash + 1);
  return name.substr(0, name.rfind('.'));
}

}  // namespace

absl::StatusOr<std::vector<PublishedRun>> ReadVtrainRuns(
    absl::string_view csv, const std::string& file_name) {
  std::vector<PublishedRun> runs;
  std::optional<Columns> columns;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const Cells cells = CellsOf(line);
    const std::string place = absl::StrCat(file_name, ":", line_number, ": ");
    if (!columns) {
      absl::StatusOr<Columns> header = ReadHeader(cells);
      if (!header.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, header.status().message()));
      }
      columns = *std::move(header);
      continue;
    }
    PublishedRun run;
    run.id = absl::StrCat(Stem(file_name), "/", line_number);
    run.kind = "pretrain";
    run.source = "VIA-Research/vTrain";
    run.precision = "FP16";
    run.mlp = "gelu";
    run.quality = "A-";  // Neither vocabulary nor recompute is stated.
    run.gpu = "A100 (8/node)";
    run.context = run.expert = run.interleave = 1;
    if (const absl::Status status = ReadLine(cells, *columns, &run);
        !status.ok()) {
      run.fault = absl::StrCat(place, status.message());
    }
    // The two tables were made differently, whatever their file is called.
    run.group = run.num_gpus.value_or(1) <= kVtrainNode ? "vtrain_single_node"
                                                        : "vtrain_multi";
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace millrace
