#include "planner/published_runs.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Of every count that a row states: far more than any, and few enough that
// products of two do not overflow.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

// --- JSON ---

// The value as it stands, or what it is where that may be long.
std::string Describe(const Json& value) {
  if (value.is_structured()) {
    return absl::StrCat(value.is_array() ? "a list" : "an object", " of ",
                        value.size());
  }
  constexpr size_t kShown = 60;
  return value.dump().substr(0, kShown);
}

// Reads the fields of one row; the first that is wrong ends up in `status`.
class RowReader {
 public:
  RowReader(const Json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  absl::Status status() const { return status_; }

  void Text(const char* key, std::string* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(key, *value, "text");
    *out = value->get<std::string>();
  }

  void Count(const char* key, std::optional<int64_t>* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    // 256.0 is what some tables make of 256.
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < 0 || number > static_cast<double>(kMaxCount) ||
        number != std::floor(number)) {
      return Fail(key, *value, "a whole number from 0 to 2147483647");
    }
    *out = static_cast<int64_t>(number);
  }

  void Number(const char* key, std::optional<double>* out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      return Fail(key, *value, "a number above 0");
    }
    *out = value->get<double>();
  }

  // Null where the key is absent or null.
  const Json* Object(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) {
      Fail(key, *value, "an object");
      return nullptr;
    }
    return value;
  }

 private:
  const Json* Find(const char* key) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void Fail(const char* key, const Json& value, const char* expected) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, ": ", key, ": expected ", expected,
                     " or null, found ", Describe(value)));
  }

  const Json& object_;
  std::string where_;
  absl::Status status_;
};

absl::Status ReadArchitecture(const Json& row, const std::string& where,
                              PublishedRun* run) {
  RowReader reader(row, where);
  const Json* extra = reader.Object("arch_extra");
  RETURN_IF_ERROR(reader.status());
  if (extra == nullptr) return absl::OkStatus();
  RowReader architecture(*extra, absl::StrCat(where, ": arch_extra"));
  architecture.Text("mlp", &run->mlp);
  architecture.Count("head_dim", &run->head_dim);
  const Json* moe = architecture.Object("moe");
  const Json* attention = architecture.Object("attn");
  RETURN_IF_ERROR(architecture.status());
  if (moe != nullptr) {
    run->has_moe = true;
    RowReader experts(*moe, absl::StrCat(where, ": arch_extra.moe"));
    experts.Count("experts", &run->experts);
    experts.Count("topk", &run->experts_per_token);
    experts.Count("moe_ffn", &run->expert_hidden);
    experts.Count("shared", &run->shared_experts);
    experts.Count("dense_layers", &run->dense_layers);
    RETURN_IF_ERROR(experts.status());
  }
  if (attention != nullptr) {
    RowReader latent(*attention, absl::StrCat(where, ": arch_extra.attn"));
    latent.Text("type", &run->attention);
    latent.Count("q_lora", &run->query_rank);
    latent.Count("kv_lora", &run->kv_rank);
    latent.Count("qk_nope", &run->nope_head_dim);
    latent.Count("qk_rope", &run->rope_head_dim);
    latent.Count("v", &run->value_head_dim);
    RETURN_IF_ERROR(latent.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishedRun> ReadRow(const Json& row,
                                     const std::string& place) {
  if (!row.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": expected an object, found ", Describe(row)));
  }
  PublishedRun run;
  RowReader named(row, place);
  named.Text("id", &run.id);
  RETURN_IF_ERROR(named.status());
  if (run.id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": id: missing; every row needs its own"));
  }
  const std::string where = absl::StrCat(place, " (", run.id, ")");
  RowReader reader(row, where);
  for (const auto& [key, text] :
       std::vector<std::pair<const char*, std::string*>>{
           {"group", &run.group},
           {"kind", &run.kind},
           {"source", &run.source},
           {"model", &run.model},
           {"gpu", &run.gpu},
           {"precision", &run.precision},
           {"recompute", &run.recompute},
           {"zero_or_fsdp", &run.zero},
           {"quality", &run.quality},
           {"notes", &run.notes},
           {"mem_unit", &run.memory_unit}}) {
    reader.Text(key, text);
  }
  for (const auto& [key, count] :
       std::vector<std::pair<const char*, std::optional<int64_t>*>>{
           {"layers", &run.layers},
           {"hidden", &run.hidden},
           {"heads", &run.heads},
           {"kv_heads", &run.kv_heads},
           {"ffn", &run.ffn},
           {"vocab", &run.vocab},
           {"seq", &run.sequence},
           {"n_gpus", &run.num_gpus},
           {"tp", &run.tensor},
           {"pp", &run.pipeline},
           {"vp", &run.interleave},
           {"cp", &run.context},
           {"ep", &run.expert},
           {"dp", &run.data},
           {"fsdp_shard", &run.fsdp_shard},
           {"micro_batch", &run.micro_batch},
           {"global_batch", &run.global_batch}}) {
    reader.Count(key, count);
  }
  reader.Number("step_time_s", &run.step_time_s);
  reader.Number("tokens_per_s_per_gpu", &run.tokens_per_s_per_gpu);
  reader.Number("max_mem_per_gpu", &run.memory);
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(ReadArchitecture(row, where, &run));
  if (run.group.empty()) run.group = run.id.substr(0, run.id.find('/'));
  return run;
}

// --- CSV ---

constexpr char kVtrainHeader[] =
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,"
    "sequence length,tensor parallelism,data parallelism,pipeline parallelism,"
    "iteration time (ms)";
constexpr size_t kNumVtrainColumns = 11;
// Its table of several nodes has this column before the others.
constexpr char kParameterColumn[] = "Parameters (billion),";
constexpr int64_t kVtrainNode = 8;  // Devices.

std::string Stem(const std::string& file_name) {
  const size_t slash = file_name.rfind('/');
  const std::string name =
      slash == std::string::npos ? file_name : file_name.substr(slash + 1);
  return name.substr(0, name.rfind('.'));
}

}  // namespace

absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(
    absl::string_view json, const std::string& file_name) {
  Json document;
  try {
    document = Json::parse(json.begin(), json.end());
  } catch (const Json::exception& error) {  // Of numbers beyond doubles, too.
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": not JSON: ", error.what()));
  }
  if (!document.is_object() || !document.contains("rows") ||
      !document["rows"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name,
        ": expected an object with a list \"rows\"; docs/evaluate.md shows "
        "one"));
  }
  std::vector<PublishedRun> runs;
  std::set<std::string> ids;
  for (const Json& row : document["rows"]) {
    ASSIGN_OR_RETURN(
        PublishedRun run,
        ReadRow(row, absl::StrCat(file_name, ": rows[", runs.size(), "]")));
    if (!ids.insert(run.id).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_name, ": rows[", runs.size(), "]: id: ", run.id,
          " is an earlier row's too; results are told apart by it"));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::StatusOr<std::vector<PublishedRun>> ReadVtrainRuns(
    absl::string_view csv, const std::string& file_name) {
  std::vector<PublishedRun> runs;
  int line_number = 0;
  size_t first_column = 0;
  for (absl::string_view line : absl::StrSplit(csv, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_name, ":", line_number, ": ", what));
    };
    if (line_number == 1) {
      absl::string_view header = line;
      first_column = absl::ConsumePrefix(&header, kParameterColumn) ? 1 : 0;
      if (header != kVtrainHeader) {
        constexpr size_t kShown = 60;
        return error(absl::StrCat(
            "expected JSON, which starts with {, or vTrain's table with the "
            "header '",
            kVtrainHeader, "'; found '", line.substr(0, kShown), "'"));
      }
      continue;
    }
    if (line.empty()) continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (cells.size() != first_column + kNumVtrainColumns) {
      return error(absl::StrCat("expected ", first_column + kNumVtrainColumns,
                                " numbers, found ", cells.size()));
    }
    PublishedRun run;
    run.id = absl::StrCat(Stem(file_name), "/", line_number);
    run.kind = "pretrain";
    run.source = "VIA-Research/vTrain";
    run.precision = "FP16";
    run.mlp = "gelu";
    run.quality = "A-";  // Neither vocabulary nor recompute is stated.
    // In the header's order.
    std::optional<int64_t>* counts[] = {
        &run.num_gpus, &run.global_batch, &run.micro_batch, &run.hidden,
        &run.heads,    &run.layers,       &run.sequence,    &run.tensor,
        &run.data,     &run.pipeline};
    for (size_t i = 0; i < std::size(counts); ++i) {
      const size_t column = first_column + i;
      int64_t value = 0;
      if (!absl::SimpleAtoi(cells[column], &value) || value < 1 ||
          value > kMaxCount) {
        return error(absl::StrCat(
            "column ", column + 1,
            ": expected a whole number from 1 to 2147483647, found '",
            cells[column], "'"));
      }
      *counts[i] = value;
    }
    double billions = 1;
    if (first_column > 0 && (!absl::SimpleAtod(cells.front(), &billions) ||
                             !(billions > 0) || std::isinf(billions))) {
      return error(absl::StrCat("column 1: expected a number above 0, found '",
                                cells.front(), "'"));
    }
    double milliseconds = 0;
    if (!absl::SimpleAtod(cells.back(), &milliseconds) || !(milliseconds > 0) ||
        std::isinf(milliseconds)) {
      return error(absl::StrCat("column ", cells.size(),
                                ": expected milliseconds above 0, found '",
                                cells.back(), "'"));
    }
    run.step_time_s = milliseconds / 1e3;
    run.kv_heads = run.heads;
    run.ffn = 4 * *run.hidden;
    run.model = first_column > 0
                    ? absl::StrCat("gpt-", cells.front(), "b")
                    : absl::StrCat("gpt-", *run.layers, "x", *run.hidden);
    // The two tables were made differently, whatever their file is called.
    run.group =
        *run.num_gpus <= kVtrainNode ? "vtrain_single_node" : "vtrain_multi";
    run.gpu = "A100 (8/node)";
    run.context = run.expert = run.interleave = 1;
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view text, const std::string& file_name) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // A byte order mark.
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(text);
  return absl::StartsWith(start, "{") || absl::StartsWith(start, "[")
             ? ReadPublishedRuns(text, file_name)
             : ReadVtrainRuns(text, file_name);
}

absl::StatusOr<std::vector<PublishedRun>> LoadPublishedRuns(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParsePublishedRuns(text, path);
}

std::string SoftwareOf(const PublishedRun& run) {
  const std::string& source = run.source;
  std::string software = source.substr(0, source.find(':'));
  const size_t open = source.find('[');
  const size_t close = source.find(']', open == source.npos ? 0 : open);
  if (open != source.npos && close != source.npos && open > software.size()) {
    absl::StrAppend(&software, " ", source.substr(open, close + 1 - open));
  }
  return software;
}

std::optional<double> MeasuredStepTime(const PublishedRun& run) {
  if (run.step_time_s) return run.step_time_s;
  if (run.tokens_per_s_per_gpu && run.global_batch && run.sequence &&
      run.num_gpus && *run.num_gpus > 0) {
    return static_cast<double>(*run.global_batch) *
           static_cast<double>(*run.sequence) /
           (*run.tokens_per_s_per_gpu * static_cast<double>(*run.num_gpus));
  }
  return std::nullopt;
}

std::optional<double> MeasuredMemoryBytes(const PublishedRun& run) {
  if (!run.memory) return std::nullopt;
  const bool is_decimal = absl::StrContains(run.memory_unit, "GB") &&
                          !absl::StrContains(run.memory_unit, "GiB");
  return *run.memory * (is_decimal ? 1e9 : 1024.0 * 1024 * 1024);
}

}  // namespace millrace
