#include "planner/evaluate/published_runs.h"

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
#include "planner/evaluate/row_lines.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Of every count that a row states: far more than any, and few enough that
// products of two do not overflow.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

// The value as it stands, or what it is where that may be long.
std::string Describe(const Json& value) {
  if (value.is_structured()) {
    return absl::StrCat(value.is_array() ? "a list" : "an object", " of ",
                        value.size());
  }
  constexpr size_t kShown = 60;
  return value.dump(-1, ' ', /*ensure_ascii=*/true).substr(0, kShown);
}

// The first thing that is wrong with a row.
struct Mistake {
  std::string key;   // "" where it is the row itself.
  std::string what;  // Empty: nothing is wrong.
};

// Reads the fields of a row, or of an object in it: all but wrong ones.
class RunFieldReader {
 public:
  // `path`: of the object, as in RowLines; "" for the row.
  RunFieldReader(const Json& object, std::string path, Mistake* mistake)
      : object_(object), path_(std::move(path)), mistake_(*mistake) {}

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
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void Fail(const char* key, const Json& value, const char* expected) {
    if (!mistake_.what.empty()) return;
    mistake_.key = absl::StrCat(path_, path_.empty() ? "" : ".", key);
    mistake_.what = absl::StrCat("expected ", expected, " or null, found ",
                                 Describe(value));
  }

  const Json& object_;
  const std::string path_;
  Mistake& mistake_;
};

void ReadArchitecture(const Json& row, PublishedRun* run, Mistake* mistake) {
  const Json* extra = RunFieldReader(row, "", mistake).Object("arch_extra");
  if (extra == nullptr) return;
  RunFieldReader architecture(*extra, "arch_extra", mistake);
  architecture.Text("mlp", &run->mlp);
  architecture.Count("head_dim", &run->head_dim);
  if (const Json* moe = architecture.Object("moe"); moe != nullptr) {
    run->has_moe = true;
    RunFieldReader experts(*moe, "arch_extra.moe", mistake);
    experts.Count("experts", &run->experts);
    experts.Count("topk", &run->experts_per_token);
    experts.Count("moe_ffn", &run->expert_hidden);
    experts.Count("shared", &run->shared_experts);
    experts.Count("dense_layers", &run->dense_layers);
  }
  if (const Json* attention = architecture.Object("attn");
      attention != nullptr) {
    RunFieldReader latent(*attention, "arch_extra.attn", mistake);
    latent.Text("type", &run->attention);
    latent.Count("q_lora", &run->query_rank);
    latent.Count("kv_lora", &run->kv_rank);
    latent.Count("qk_nope", &run->nope_head_dim);
    latent.Count("qk_rope", &run->rope_head_dim);
    latent.Count("v", &run->value_head_dim);
  }
}

void ReadFields(const Json& row, PublishedRun* out, Mistake* mistake) {
  PublishedRun& run = *out;
  RunFieldReader reader(row, "", mistake);
  reader.Text("id", &run.id);
  if (run.id.empty() && mistake->what.empty()) {
    *mistake = {.key = "id", .what = "missing; every row needs its own"};
  }
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
  ReadArchitecture(row, &run, mistake);
}

}  // namespace

absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(
    absl::string_view json, const std::string& file_name) {
  ASSIGN_OR_RETURN(const RowDocument document, ParseRows(json, file_name));
  std::vector<PublishedRun> runs;
  std::set<std::string> ids;
  for (const Json& row : document.rows) {
    const RowLines& lines = document.lines[runs.size()];
    const std::string name = absl::StrCat("rows[", runs.size(), "]");
    PublishedRun run;
    Mistake mistake;
    if (!row.is_object()) {
      mistake.what = absl::StrCat("expected an object, found ", Describe(row));
    } else {
      ReadFields(row, &run, &mistake);
    }
    if (mistake.what.empty() && !lines.repeated.empty()) {
      mistake = {.key = lines.repeated, .what = "given twice; remove one"};
    }
    if (!run.id.empty() && !ids.insert(run.id).second) {
      mistake = {.key = "id",
                 .what = absl::StrCat(
                     run.id,
                     " is an earlier row's too; results are told apart by it")};
    }
    if (!mistake.what.empty()) {
      run.fault = absl::StrCat(
          file_name, ":", lines.Of(mistake.key), ": ", name,
          run.id.empty() ? "" : absl::StrCat(" (", run.id, ")"), ": ",
          mistake.key, mistake.key.empty() ? "" : ": ", mistake.what);
    }
    if (run.id.empty()) run.id = name;
    if (run.group.empty()) run.group = run.id.substr(0, run.id.find('/'));
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::StatusOr<std::vector<PublishedRun>> ParsePublishedRuns(
    absl::string_view text, const std::string& file_name) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // A byte order mark.
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(text);
  if (start.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name,
                     ": the file is empty; expected runs as JSON or vTrain's "
                     "table, see docs/evaluate.md"));
  }
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
