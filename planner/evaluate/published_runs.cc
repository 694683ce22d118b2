#include "planner/evaluate/published_runs.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
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
#include "base/utf8.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// The limit of every count in a row. It is far above any real count, and
// products of two counts do not overflow.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

// Returns the value itself, or for a list or object its kind and size.
std::string Describe(const YamlTree& value) {
  switch (value.kind) {
    case YamlTree::Kind::kNull:
      return "null";
    case YamlTree::Kind::kList:
      return absl::StrCat("a list of ", value.children.size());
    case YamlTree::Kind::kMap:
      return absl::StrCat("an object of ", value.children.size());
    case YamlTree::Kind::kScalar:
      break;
  }
  constexpr size_t kShown = 60;
  absl::string_view shown = absl::string_view(value.scalar).substr(0, kShown);
  while (!IsUtf8(shown)) shown.remove_suffix(1);
  const std::string quoted = QuoteYaml(shown);
  // Bytes that no terminal should print are escaped and quoted.
  const bool is_plain = quoted.size() == shown.size() + 2;
  return is_plain && !value.is_quoted ? std::string(shown) : quoted;
}

// Returns the value as a number; nothing for text and infinities.
std::optional<double> NumberIn(const YamlTree& value) {
  double number = 0;
  if (value.kind != YamlTree::Kind::kScalar || value.is_quoted ||
      !absl::SimpleAtod(value.scalar, &number) || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

// The first thing that is wrong with a row.
struct Mistake {
  int line = 0;
  std::string key;   // With the enclosing keys: "arch_extra.mlp".
  std::string what;  // Empty: nothing is wrong.
};

std::string KeyIn(const std::string& path, const YamlTree& entry) {
  return absl::StrCat(path, path.empty() || entry.key.empty() ? "" : ".",
                      entry.key);
}

// Finds a key that the object, or an object inside it, has twice.
void FindRepeatedKey(const YamlTree& tree, const std::string& path,
                     Mistake* mistake) {
  std::set<absl::string_view> keys;
  for (const YamlTree& entry : tree.children) {
    const std::string key = KeyIn(path, entry);
    if (tree.kind == YamlTree::Kind::kMap && !keys.insert(entry.key).second &&
        mistake->what.empty()) {
      *mistake = {
          .line = entry.line, .key = key, .what = "given twice; remove one"};
    }
    FindRepeatedKey(entry, key, mistake);
  }
}

// Reads the fields of a row, or of an object in it. Skips wrong ones and
// records the first mistake.
class RunFieldReader {
 public:
  // `path` is the object's key; "" for the row itself.
  RunFieldReader(const YamlTree& object, std::string path, Mistake* mistake)
      : object_(object), path_(std::move(path)), mistake_(*mistake) {}

  void Text(const char* key, std::string* out) {
    const YamlTree* value = Find(key);
    if (value == nullptr) return;
    if (value->kind != YamlTree::Kind::kScalar || !value->is_quoted) {
      return Fail(*value, "text in quotes");
    }
    *out = value->scalar;
  }

  void Count(const char* key, std::optional<int64_t>* out) {
    const YamlTree* value = Find(key);
    if (value == nullptr) return;
    // Some tables write 256.0 for 256.
    const double number = NumberIn(*value).value_or(-1);
    if (number < 0 || number > static_cast<double>(kMaxCount) ||
        number != std::floor(number)) {
      return Fail(*value, "a whole number from 0 to 2147483647");
    }
    *out = static_cast<int64_t>(number);
  }

  void Number(const char* key, std::optional<double>* out) {
    const YamlTree* value = Find(key);
    if (value == nullptr) return;
    const std::optional<double> number = NumberIn(*value);
    if (number.value_or(0) <= 0) return Fail(*value, "a number above 0");
    *out = number;
  }

  // Returns null if the key is absent or its value is null.
  const YamlTree* Object(const char* key) {
    const YamlTree* value = Find(key);
    if (value == nullptr) return nullptr;
    if (value->kind != YamlTree::Kind::kMap) {
      Fail(*value, "an object");
      return nullptr;
    }
    return value;
  }

 private:
  const YamlTree* Find(absl::string_view key) {
    for (const YamlTree& entry : object_.children) {
      if (entry.key != key) continue;
      return entry.kind == YamlTree::Kind::kNull ? nullptr : &entry;
    }
    return nullptr;
  }

  void Fail(const YamlTree& value, const char* expected) {
    if (!mistake_.what.empty()) return;
    mistake_ = {.line = value.line,
                .key = KeyIn(path_, value),
                .what = absl::StrCat("expected ", expected, " or null, found ",
                                     Describe(value))};
  }

  const YamlTree& object_;
  const std::string path_;
  Mistake& mistake_;
};

void ReadArchitecture(const YamlTree& row, PublishedRun* run,
                      Mistake* mistake) {
  const YamlTree* extra = RunFieldReader(row, "", mistake).Object("arch_extra");
  if (extra == nullptr) return;
  RunFieldReader architecture(*extra, "arch_extra", mistake);
  architecture.Text("mlp", &run->mlp);
  architecture.Count("head_dim", &run->head_dim);
  if (const YamlTree* moe = architecture.Object("moe"); moe != nullptr) {
    run->has_moe = true;
    RunFieldReader experts(*moe, "arch_extra.moe", mistake);
    experts.Count("experts", &run->experts);
    experts.Count("topk", &run->experts_per_token);
    experts.Count("moe_ffn", &run->expert_hidden);
    experts.Count("shared", &run->shared_experts);
    experts.Count("dense_layers", &run->dense_layers);
  }
  if (const YamlTree* attention = architecture.Object("attn");
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

void ReadFields(const YamlTree& row, PublishedRun* out, Mistake* mistake) {
  PublishedRun& run = *out;
  RunFieldReader reader(row, "", mistake);
  reader.Text("id", &run.id);
  if (run.id.empty() && mistake->what.empty()) {
    *mistake = {.line = row.line,
                .key = "id",
                .what = "missing; every row needs its own"};
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

// Returns the list of rows of {"rows": [...], ...}, or the document if it is a
// list.
absl::StatusOr<const YamlTree*> RowsOf(const YamlTree& document,
                                       const std::string& file_name) {
  if (document.kind == YamlTree::Kind::kList) return &document;
  const YamlTree* rows = nullptr;
  if (document.kind == YamlTree::Kind::kMap) {
    for (const YamlTree& entry : document.children) {
      if (entry.key != "rows") continue;
      if (rows != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_name, ":", entry.line,
                         ": \"rows\" is given twice; keep one list of rows"));
      }
      rows = &entry;
    }
  }
  if (rows == nullptr || rows->kind != YamlTree::Kind::kList) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":", document.line,
        ": expected an object with a list \"rows\"; docs/evaluate.md shows "
        "one"));
  }
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(
    absl::string_view json, const std::string& file_name) {
  // JSON is YAML too, and the YAML reader knows the line of every value.
  ASSIGN_OR_RETURN(const YamlTree document, ParseYaml(json, file_name));
  ASSIGN_OR_RETURN(const YamlTree* rows, RowsOf(document, file_name));
  std::vector<PublishedRun> runs;
  std::set<std::string> ids;
  for (const YamlTree& row : rows->children) {
    const std::string name = absl::StrCat("rows[", runs.size(), "]");
    PublishedRun run;
    Mistake mistake;
    if (row.kind != YamlTree::Kind::kMap) {
      mistake = {
          .line = row.line,
          .key = "",
          .what = absl::StrCat("expected an object, found ", Describe(row))};
    } else {
      ReadFields(row, &run, &mistake);
      FindRepeatedKey(row, "", &mistake);
    }
    if (!run.id.empty() && !ids.insert(run.id).second) {
      mistake = {.line = row.line,
                 .key = "id",
                 .what = absl::StrCat(
                     run.id,
                     " is an earlier row's too; results are told apart by it")};
    }
    if (!mistake.what.empty()) {
      run.fault = absl::StrCat(
          file_name, ":", mistake.line, ": ", name,
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
