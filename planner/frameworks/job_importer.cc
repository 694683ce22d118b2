#include "planner/frameworks/job_importer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "planner/frameworks/megatron_core_keys.h"
#include "planner/job/executable.h"
#include "planner/job/job_file.h"
#include "planner/job/job_keys.h"
#include "planner/text/nearest_word.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

constexpr size_t kMostUnusedNamed = 16;
constexpr char kUnused[] = "not used: ";

bool IsTrue(const Setting& setting) {
  return setting.value == "True" || setting.value == "true";
}

bool Accepts(const JobKey& key, absl::string_view value) {
  const std::vector<std::string> choices = absl::StrSplit(key.choices, '|');
  return std::ranges::find(choices, value) != choices.end();
}

}  // namespace

std::string Importer::OwnKey(absl::string_view key) const {
  if (IsOnCore(framework_)) {
    const std::string own = CoreKeyOf(framework_, key).name;
    if (!own.empty()) return own;
  }
  return std::string(key);
}

const Setting* Importer::Look(absl::string_view key) {
  const std::string own = OwnKey(key);
  looked_at_.emplace(own);
  const Setting* setting = settings_.Find(own);
  const bool is_off = IsOnCore(framework_) && setting != nullptr &&
                      setting->value == kSwitchOff;
  return is_off ? nullptr : setting;
}

bool Importer::IsSaid(absl::string_view key) const {
  return settings_.Find(OwnKey(key)) != nullptr;
}

bool Importer::IsEmpty(absl::string_view key) const {
  return std::ranges::find(settings_.empty_keys, key) !=
         settings_.empty_keys.end();
}

int64_t Importer::Integer(absl::string_view key, int64_t minimum,
                          int64_t fallback, int64_t maximum) {
  const Setting* setting = Look(key);
  if (setting == nullptr) return fallback;
  int64_t value = 0;
  if (absl::SimpleAtoi(setting->value, &value) && value >= minimum &&
      value <= maximum) {
    return value;
  }
  Error(setting, key,
        absl::StrCat("expected an integer from ", minimum, " to ", maximum,
                     ", found '", setting->value, "'"));
  return fallback;
}

bool Importer::IsOn(absl::string_view key) {
  const Setting* setting = Look(key);
  return setting != nullptr && IsTrue(*setting);
}

void Importer::TakeTable() {
  for (const FrameworkKey& key : framework_->keys) {
    if (IsSet(key.job_path)) continue;
    if (const Setting* setting = Look(key.name); setting != nullptr) {
      Set(key.job_path, setting->value, key.name, setting);
    } else if (key.default_text != nullptr) {
      Set(key.job_path, key.default_text,
          absl::StrCat("default of ", framework_->title));
    }
  }
}

void Importer::Set(absl::string_view job_path, const std::string& text,
                   const std::string& remark, const Setting* setting) {
  const JobKey* key = FindJobKey(job_path);
  CHECK(key != nullptr) << job_path;
  imported_.remarks[std::string(job_path)] = remark;
  if (SetJobValue(*key, text, &imported_.job)) return;
  Error(setting, setting == nullptr ? job_path : setting->key,
        absl::StrCat("expected ", DescribeExpected(*key), ", found '", text,
                     "'"));
}

bool Importer::IsSet(absl::string_view job_path) const {
  return imported_.remarks.contains(std::string(job_path));
}

void Importer::Require(absl::string_view job_path) {
  if (IsSet(job_path)) return;
  const std::string name = NameOf(job_path);
  std::vector<std::string> given;
  for (const Setting& entry : settings_.entries) {
    if (!looked_at_.contains(entry.key)) given.push_back(entry.key);
  }
  const auto nearest = NearestWord(name, given);
  Error(nullptr, name,
        absl::StrCat(
            "missing; expected ", DescribeExpected(*FindJobKey(job_path)),
            nearest.has_value()
                ? absl::StrCat("; is '", *nearest, "' on line ",
                               settings_.Find(*nearest)->line, " meant?")
                : ""));
}

void Importer::Missing(absl::string_view job_path, absl::string_view key,
                       const std::string& what) {
  imported_.remarks[std::string(job_path)] = "missing";
  Error(nullptr, key, what);
}

void Importer::RefuseUnless(absl::string_view key,
                            const std::vector<std::string>& allowed,
                            const std::string& why) {
  const Setting* setting = Look(key);
  const std::string value = setting == nullptr ? "" : setting->value;
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  const std::string found =
      setting == nullptr ? "missing" : absl::StrCat("found '", value, "'");
  Error(setting, key, absl::StrCat(found, "; ", why));
}

void Importer::NoteIfThere(const std::vector<const char*>& keys,
                           const std::string& what) {
  for (const char* key : keys) {
    if (const Setting* setting = Look(key); setting != nullptr) {
      Note(absl::StrCat(OwnKey(key), " (line ", setting->line, "): ", what));
    }
  }
}

void Importer::Approximate(const Setting& setting, const std::string& what) {
  if (is_exact_) {
    Error(&setting, setting.key,
          absl::StrCat("found '", setting.value, "'; ", what));
    return;
  }
  if (!approximates_ && IsTrainable()) {
    Error(&setting, setting.key,
          absl::StrCat("found '", setting.value, "'; ", what,
                       "; --approximate takes the model without, to plan it"));
    return;
  }
  Note(absl::StrCat(setting.key, " '", setting.value, "' (line ", setting.line,
                    "): ", what));
  constexpr char kApproximates[] = "model.approximates";
  const std::string others = imported_.job.model_approximates;
  Set(kApproximates,
      absl::StrCat(others, others.empty() ? "" : "; ", setting.key, " '",
                   setting.value, "': ", what),
      "what was left out");
  if (!IsTrainable() || !others.empty()) return;
  Note("so the job is for plans: what workers train of it is another model");
}

bool Importer::IsTrainable() const {
  return PlanOnlyKeys(imported_.job.model).empty();
}

void Importer::Error(const Setting* setting, absl::string_view key,
                     const std::string& what) {
  const int line = setting == nullptr ? 0 : setting->line;
  errors_.emplace_back(
      line,
      absl::StrCat(settings_.file_name, line > 0 ? absl::StrCat(":", line) : "",
                   ": ", OwnKey(key), ": ", what));
}

void Importer::SetModel(const ModelSpec& model, const std::string& remark) {
  const JobSpec of_model{.model = model};
  for (const JobKey& key : JobKeys()) {
    const absl::string_view path = key.path;
    if (!absl::StartsWith(path, "model.") || path == "model.init_std" ||
        path == "model.sequence_length" || path == "model.approximates" ||
        path == "model.from" || path == "model.fingerprint") {
      continue;
    }
    Set(path, JobValueToYaml(key, of_model), remark);
  }
}

void Importer::TakeModelOf(const Settings& config,
                           std::optional<int64_t> length,
                           const Setting* setting) {
  const absl::StatusOr<ImportedJob> imported =
      ImportJob(HuggingFaceAdapter(), config,
                {.sequence_length = length, .approximates = approximates_});
  if (!imported.ok()) {
    Error(setting, "--model", std::string(imported.status().message()));
    return;
  }
  SetModel(imported->job.model, config.file_name);
  Set("model.init_std", NumberToText(imported->job.model.init_std),
      config.file_name);
  if (const std::string& text = imported->job.model_approximates;
      !text.empty()) {
    Set("model.approximates", text, config.file_name);
  }
  if (!length.has_value()) {
    Set("model.sequence_length",
        absl::StrCat(imported->job.model.sequence_length),
        absl::StrCat(config.file_name, ": the model's longest"));
  }
  for (const std::string& note : imported->notes) {
    if (!absl::StartsWith(note, kUnused)) Note(note);
  }
}

void Importer::SetPrecision(const std::string& precision,
                            const std::string& remark, const Setting* setting) {
  if (precision == "fp16") {
    Note(absl::StrCat(remark,
                      ": asks for fp16; ours is bf16, which is as fast"));
    SetPrecision("bf16", remark, setting);
    return;
  }
  const JobKey* key = FindJobKey("training.precision");
  if (Accepts(*key, precision)) {
    Set(key->path, precision, remark, setting);
    if (precision != "fp32") {
      Set("resources.backend", "cuda",
          absl::StrCat("what computes in ", precision));
    }
    return;
  }
  Note(absl::StrCat(remark, ": asks for ", precision,
                    "; this version trains in ", DescribeExpected(*key)));
}

std::string Importer::NameOf(absl::string_view job_path) const {
  for (const FrameworkKey& key : framework_->keys) {
    if (job_path == key.job_path) return key.name;
  }
  return std::string(job_path);
}

const Setting* Importer::SettingOf(absl::string_view job_path) const {
  return settings_.Find(NameOf(job_path));
}

void Importer::CheckModel() {
  if (leaves_model_) return;
  for (const JobKey& key : JobKeys()) {
    if (key.required && absl::StartsWith(key.path, "model.")) {
      Require(key.path);
    }
  }
  ModelSpec& model = imported_.job.model;
  if (model.num_dense_layers() > 0) Require("model.ffn_hidden");
  if (has_errors()) return;
  if (!IsSet("model.kv_heads")) {
    Set("model.kv_heads", absl::StrCat(model.num_heads),
        absl::StrCat("as ", NameOf("model.heads")));
  }
  if (!IsSet("model.head_dim")) {
    if (model.hidden % model.num_heads != 0) {
      Error(SettingOf("model.hidden"), NameOf("model.hidden"),
            absl::StrCat(model.hidden, " is not divisible by ",
                         NameOf("model.heads"), " ", model.num_heads,
                         "; change one, or give ", NameOf("model.head_dim")));
      return;
    }
    Set("model.head_dim", absl::StrCat(model.hidden / model.num_heads),
        absl::StrCat(NameOf("model.hidden"), " / ", NameOf("model.heads")));
  }
  if (model.num_heads % model.num_kv_heads != 0) {
    Error(SettingOf("model.kv_heads"), NameOf("model.kv_heads"),
          absl::StrCat(model.num_kv_heads, " does not divide ",
                       NameOf("model.heads"), " ", model.num_heads));
    return;
  }
  if (has_errors()) return;
  if (const absl::Status status = ValidateModel(model); !status.ok()) {
    Error(nullptr, "model", std::string(status.message()));
  }
}

void Importer::CheckLayout() {
  const JobSpec& job = imported_.job;
  const int64_t tensor = job.layout.tensor.value_or(1);
  const std::pair<const char*, int64_t> divisible[] = {
      {"model.heads", job.model.num_heads},
      {"model.kv_heads", job.model.num_kv_heads},
      {"model.ffn_hidden", job.model.ffn_hidden},
      {"model.vocab_size", job.model.vocab_size}};
  for (const auto& [path, value] : divisible) {
    const bool is_unused = absl::string_view(path) == "model.ffn_hidden" &&
                           job.model.num_dense_layers() == 0;
    if (is_unused || value % tensor == 0) continue;
    Error(SettingOf("layout.tensor"), NameOf("layout.tensor"),
          absl::StrCat(tensor, " equal shards cannot be cut from ",
                       NameOf(path), " ", value, "; change one of them"));
  }
  if (job.layout.pipeline.value_or(1) > job.model.num_layers) {
    Error(SettingOf("layout.pipeline"), NameOf("layout.pipeline"),
          absl::StrCat(*job.layout.pipeline, " stages, but ",
                       NameOf("model.layers"), " is ", job.model.num_layers,
                       "; each stage needs a layer"));
  }
  const int64_t unit =
      int64_t{job.layout.micro_batch.value_or(1)} * job.layout.data.value_or(1);
  if (IsSet("training.global_batch") && job.training.global_batch % unit != 0) {
    Error(SettingOf("training.global_batch"), NameOf("training.global_batch"),
          absl::StrCat(job.training.global_batch,
                       " sequences cannot be cut into micro-batches of ",
                       job.layout.micro_batch.value_or(1), " on ",
                       job.layout.data.value_or(1),
                       " data replicas; use a multiple of ", unit));
  }
}

void Importer::FillUnsaid(const ImportOptions& options) {
  const std::string assumed = "assumed: choose it for your training";
  Set("name", options.name, "names the run directory");
  imported_.job.data.text = {"data/**/*.txt"};
  if (imported_.job.data.indexed.empty()) {
    imported_.remarks["data.text"] = assumed;
  } else {
    imported_.job.data.text.clear();
  }
  const std::pair<const char*, const char*> unsaid[] = {
      {"training.steps", "1000"},
      {"training.global_batch", "16"},
      {"training.optimizer.learning_rate", "0.0003"}};
  for (const auto& [path, value] : unsaid) {
    if (!IsSet(path)) Set(path, value, assumed);
  }
}

void Importer::NoteUnused() {
  std::vector<std::string> unused;
  for (const Setting& entry : settings_.entries) {
    if (!looked_at_.contains(entry.key)) unused.push_back(entry.key);
  }
  if (unused.empty()) return;
  const size_t count = unused.size();
  if (settings_.is_complete) {
    Note(absl::StrCat(count, " other arguments of the dump were not used"));
    return;
  }
  unused.resize(std::min(count, kMostUnusedNamed));
  Note(absl::StrCat(kUnused, absl::StrJoin(unused, ", "),
                    count > unused.size()
                        ? absl::StrCat(" and ", count - unused.size(), " more")
                        : ""));
}

void Importer::RefuseUnused() {
  for (const Setting& entry : settings_.entries) {
    if (looked_at_.contains(entry.key)) continue;
    Error(&entry, entry.key,
          absl::StrCat("found '", entry.value,
                       "'; ours does not know this key, so the weights might "
                       "mean something else; remove it if it changes nothing"));
  }
}

absl::StatusOr<ImportedJob> Importer::Finish(const ImportOptions& options) {
  if (options.sequence_length.has_value()) {
    Set("model.sequence_length", absl::StrCat(*options.sequence_length),
        "as asked for");
  }
  CheckModel();
  if (!has_errors()) CheckLayout();
  FillUnsaid(options);
  if (!is_exact_) {
    NoteUnused();
  } else if (!leaves_model_) {
    RefuseUnused();
  }
  if (!has_errors()) {
    // The remaining rules are those of any job file.
    const absl::StatusOr<JobSpec> read_back =
        ParseJob(JobToYaml(imported_.job, imported_.remarks), "the job");
    if (!read_back.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          settings_.file_name,
          ": the job it gives cannot work: ", read_back.status().message()));
    }
    return std::move(imported_);
  }
  std::ranges::stable_sort(errors_, {}, &std::pair<int, std::string>::first);
  // Two keys of the job can come from one key of the source and repeat its
  // error.
  errors_.erase(std::unique(errors_.begin(), errors_.end()), errors_.end());
  return absl::InvalidArgumentError(absl::StrJoin(
      errors_, "\n",
      [](std::string* out, const auto& error) { out->append(error.second); }));
}

}  // namespace millrace
