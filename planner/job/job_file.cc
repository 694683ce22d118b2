#include "planner/job/job_file.h"

#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/data_sources.h"
#include "planner/job/job_keys.h"
#include "planner/job/object_path.h"
#include "planner/job/precision_problems.h"
#include "planner/job/subnet.h"
#include "planner/layout/numeric_format.h"
#include "planner/text/nearest_word.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// Reads a whole file, collecting every error rather than the first.
class JobReader {
 public:
  JobReader(const std::string& file_name, const FolderReader& read_folder)
      : file_name_(file_name), read_folder_(read_folder) {}

  absl::StatusOr<JobSpec> Read(const YamlTree& tree) {
    if (tree.kind != YamlTree::Kind::kMap) {
      Error(tree.line, "",
            absl::StrCat("expected a map of sections such as "
                         "model: and training:, found ",
                         DescribeYaml(tree)));
      return Result();
    }
    ReadSection(tree, "");
    if (!job_.model_from.empty() && read_folder_ != nullptr) TakeFolder();
    ReportMissing();
    if (errors_.empty()) FillDefaults();
    if (errors_.empty()) CheckTogether();
    return Result();
  }

 private:
  static bool IsSection(absl::string_view path) {
    const std::string prefix = absl::StrCat(path, ".");
    return std::any_of(
        JobKeys().begin(), JobKeys().end(),
        [&](const JobKey& key) { return absl::StartsWith(key.path, prefix); });
  }

  void ReadSection(const YamlTree& section, const std::string& prefix) {
    std::map<std::string, int> first_lines;
    for (const YamlTree& entry : section.children) {
      const std::string path = absl::StrCat(prefix, entry.key);
      const auto [first, inserted] = first_lines.emplace(entry.key, entry.line);
      if (!inserted) {
        Error(entry.line, path,
              absl::StrCat("given twice, first on line ", first->second,
                           "; remove one"));
        continue;
      }
      lines_[path] = entry.line;
      // A key with a dot in it is no path.
      const bool is_word = !absl::StrContains(entry.key, '.');
      if (const JobKey* key = FindJobKey(path); key != nullptr && is_word) {
        ReadKey(*key, entry);
      } else if (is_word && IsSection(path)) {
        ReadSubsection(entry, path);
      } else {
        UnknownKey(entry, prefix);
      }
    }
  }

  void ReadSubsection(const YamlTree& entry, const std::string& path) {
    if (entry.kind == YamlTree::Kind::kMap) {
      ReadSection(entry, path + ".");
      return;
    }
    const bool is_auto_layout = path == "layout" &&
                                entry.kind == YamlTree::Kind::kScalar &&
                                entry.scalar == "auto";
    // A section whose keys are all commented out sets nothing.
    if (is_auto_layout || entry.kind == YamlTree::Kind::kNull) return;
    Error(entry.line, path,
          absl::StrCat("expected ", path == "layout" ? "auto or " : "",
                       "a section with the keys ",
                       absl::StrJoin(WordsIn(path + "."), ", "), "; found ",
                       DescribeYaml(entry)));
  }

  void ReadKey(const JobKey& key, const YamlTree& entry) {
    // On failure the field keeps a default: the error ends the job anyway.
    if (SetFromTree(key, entry, &job_)) return;
    const absl::string_view path = key.path;
    if (path == "data.sources" || path == "evaluation.sets") {
      std::vector<SourceProblem> problems;
      if (path == "data.sources") {
        ReadDataSources(entry, &problems);
      } else {
        ReadDataSets(entry, &problems);
      }
      for (const SourceProblem& problem : problems) {
        Error(problem.line, problem.path, problem.what);
      }
      return;
    }
    const bool is_only_choice =
        key.choices != nullptr && !absl::StrContains(key.choices, '|');
    Error(entry.line, key.path,
          absl::StrCat("expected ", DescribeExpected(key),
                       is_only_choice ? ", all that this version supports" : "",
                       ", found ", DescribeYaml(entry),
                       entry.kind == YamlTree::Kind::kScalar
                           ? TooLargeText(key, entry.scalar)
                           : ""));
  }

  // Keys and sections directly under a prefix.
  static std::vector<std::string> WordsIn(const std::string& prefix) {
    std::vector<std::string> words;
    for (const JobKey& key : JobKeys()) {
      absl::string_view rest = key.path;
      if (!absl::ConsumePrefix(&rest, prefix)) continue;
      std::string word(rest.substr(0, rest.find('.')));
      if (words.empty() || words.back() != word) {
        words.push_back(std::move(word));
      }
    }
    return words;
  }

  void UnknownKey(const YamlTree& entry, const std::string& prefix) {
    std::string hint;
    const std::vector<std::string> words = WordsIn(prefix);
    if (prefix + entry.key == "layout.tensor_chunks") {
      hint =
          "it was removed, since chunks of tokens made hardly any step "
          "faster; delete the line";
    } else if (auto nearest = NearestWord(entry.key, words);
               nearest.has_value()) {
      hint = absl::StrCat("did you mean '", *nearest, "'?");
    } else {
      // The right key in the wrong section is the other common slip.
      for (const JobKey& key : JobKeys()) {
        if (absl::EndsWith(key.path, "." + entry.key)) {
          hint = absl::StrCat("did you mean ", key.path, "?");
          break;
        }
      }
    }
    if (hint.empty()) {
      hint = absl::StrCat("known keys here: ", absl::StrJoin(words, ", "));
    }
    Error(entry.line, prefix + entry.key, absl::StrCat("unknown key; ", hint));
  }

  // Sets the keys that the folder of model.from states; refuses those that the
  // job states otherwise.
  void TakeFolder() {
    std::optional<int64_t> length;
    if (lines_.contains("model.sequence_length")) {
      length = job_.model.sequence_length;
    }
    const absl::StatusOr<FolderModel> folder =
        read_folder_(job_.model_from, length);
    if (!folder.ok()) {
      has_folder_error_ = true;
      for (const absl::string_view line :
           absl::StrSplit(folder.status().message(), '\n')) {
        Error(LineOf("model.from"), "model.from", std::string(line));
      }
      return;
    }
    for (const auto& [path, stated] : *folder) {
      const JobKey* key = FindJobKey(path);
      CHECK(key != nullptr) << path;
      JobSpec with_folder = job_;
      CHECK(SetJobValue(*key, stated.value, &with_folder))
          << path << " " << stated.value;
      const auto line = lines_.find(path);
      if (line != lines_.end() &&
          JobValueToYaml(*key, with_folder) != JobValueToYaml(*key, job_)) {
        Error(line->second, path,
              absl::StrCat("found ", JobValueToYaml(*key, job_), ", but ",
                           stated.place, " says ", stated.value,
                           "; remove this key, or name another folder"));
        continue;
      }
      job_ = std::move(with_folder);
      lines_.emplace(path, LineOf("model.from"));
    }
  }

  // Line of the key, or of the innermost section of it that is there.
  int LineOf(std::string path) const {
    while (true) {
      if (const auto found = lines_.find(path); found != lines_.end()) {
        return found->second;
      }
      const size_t dot = path.rfind('.');
      if (dot == std::string::npos) return 1;
      path.resize(dot);
    }
  }

  void ReportMissing() {
    for (const JobKey& key : JobKeys()) {
      // A folder that could not be read would have set most of the model.
      if (has_folder_error_ && absl::StartsWith(key.path, "model.")) continue;
      if (key.required && !lines_.contains(key.path)) {
        Error(LineOf(key.path), key.path,
              absl::StrCat("missing; expected ", DescribeExpected(key)));
      }
    }
    if (job_.model.num_dense_layers() > 0 && !has_folder_error_ &&
        !lines_.contains("model.ffn_hidden")) {
      Error(LineOf("model.ffn_hidden"), "model.ffn_hidden",
            "missing; expected an integer of at least 1");
    }
    if (!job_.data.synthetic && job_.data.text.empty() &&
        job_.data.indexed.empty() && job_.data.sources.empty() &&
        !has_error_at_data_) {
      Error(LineOf("data"), "data",
            "expected text: [globs of files], indexed: [path prefixes], "
            "sources: [{path: a.jsonl}] or synthetic: true, found none of "
            "them");
    }
    if (job_.data.synthetic && !job_.data.from.empty()) {
      Error(LineOf("data.from"), "data.from",
            "given together with data.synthetic, whose tokens every host makes "
            "itself; remove one of the two");
    }
  }

  void FillDefaults() {
    ModelSpec& model = job_.model;
    if (!lines_.contains("model.kv_heads"))
      model.num_kv_heads = model.num_heads;
    if (lines_.contains("model.head_dim")) return;
    if (model.mla.kv_rank > 0) {
      model.head_dim = model.mla.nope_head_dim + model.mla.rope_head_dim;
    } else if (model.hidden % model.num_heads != 0) {
      Error(LineOf("model.heads"), "model.heads",
            absl::StrCat("hidden ", model.hidden, " is not divisible by heads ",
                         model.num_heads, "; change one or give head_dim"));
      return;
    } else {
      model.head_dim = model.hidden / model.num_heads;
    }
    const double most = FindJobKey("model.head_dim")->range.most;
    if (static_cast<double>(model.head_dim) > most) {
      Error(LineOf("model.heads"), "model.head_dim",
            absl::StrCat("follows as ", model.head_dim, " from ",
                         model.mla.kv_rank > 0 ? "mla" : "hidden and heads",
                         "; the most is ", NumberToText(most)));
    }
  }

  // Rules that join several keys.
  void CheckTogether() {
    if (absl::Status status = ValidateModel(job_.model); !status.ok()) {
      const std::string message(status.message());
      Error(LineOf(message.substr(0, message.find(' '))), "model", message);
    }
    if (job_.name.empty() || job_.name[0] == '.' ||
        !std::all_of(job_.name.begin(), job_.name.end(), [](char c) {
          return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                 c == '.' || c == '_' || c == '-';
        })) {
      Error(LineOf("name"), "name",
            absl::StrCat("expected letters, digits, '.', '_' and '-', not "
                         "starting with '.', found '",
                         job_.name, "'"));
    }
    const OptimizerSpec& optimizer = job_.training.optimizer;
    if (optimizer.min_learning_rate > optimizer.learning_rate) {
      Error(LineOf("training.optimizer.min_learning_rate"),
            "training.optimizer.min_learning_rate",
            absl::StrCat("expected at most learning_rate ",
                         NumberToText(optimizer.learning_rate), ", found ",
                         NumberToText(optimizer.min_learning_rate)));
    }
    if (optimizer.warmup_steps > job_.training.num_steps) {
      Error(LineOf("training.optimizer.warmup_steps"),
            "training.optimizer.warmup_steps",
            absl::StrCat("expected at most training.steps ",
                         job_.training.num_steps, ", found ",
                         optimizer.warmup_steps));
    }
    if (job_.checkpoint.policy == "auto" &&
        job_.checkpoint.interval_steps > 0) {
      Error(LineOf("checkpoint.interval_steps"), "checkpoint.interval_steps",
            "given together with checkpoint.policy auto, which chooses the "
            "interval; keep one of the two");
    }
    if (job_.fault.heartbeat_timeout_ms <= job_.fault.heartbeat_interval_ms) {
      Error(LineOf("fault.heartbeat_timeout_ms"), "fault.heartbeat_timeout_ms",
            absl::StrCat("expected above heartbeat_interval_ms ",
                         job_.fault.heartbeat_interval_ms, ", found ",
                         job_.fault.heartbeat_timeout_ms));
    }
    const int32_t keepers = job_.fault.coordinator_replicas;
    if (keepers == 1 || keepers == 2) {
      Error(LineOf("fault.coordinator_replicas"), "fault.coordinator_replicas",
            absl::StrCat("expected 0 or at least 3, found ", keepers,
                         ": a majority of ", keepers, " is ", keepers,
                         ", so none of them might be lost"));
    }
    if (job_.fault.replica_partners > 1 &&
        job_.fault.replica_interval_steps == 0) {
      Error(LineOf("fault.replica_partners"), "fault.replica_partners",
            absl::StrCat("expected 1 with replica_interval_steps 0, which "
                         "takes no copies, found ",
                         job_.fault.replica_partners));
    }
    for (const auto& [key, what] : ProblemsOfPrecision(job_)) {
      Error(LineOf(key), key, what);
    }
    for (const auto& [key, what] : ProblemsOfObjectKeys(job_)) {
      Error(LineOf(key), key, what);
    }
    CheckOneSource();
    CheckFrom();
    CheckChat();
    CheckObjective();
    CheckGoodput();
    CheckEvaluation();
    CheckMetrics();
    CheckNetwork();
  }

  void CheckNetwork() {
    const NetworkSpec& network = job_.network;
    if (!network.subnet.empty() && !ParseSubnet(network.subnet).has_value()) {
      Error(LineOf("network.subnet"), "network.subnet",
            absl::StrCat("expected a subnet such as 10.0.0.0/8 or fd00::/64, "
                         "found '",
                         network.subnet, "'"));
    }
    if (!ParsePorts(network.ports).has_value()) {
      Error(LineOf("network.ports"), "network.ports",
            absl::StrCat("expected ports from 1 to 65535 such as 20000-20100, "
                         "found '",
                         network.ports, "'"));
    }
  }

  void CheckEvaluation() {
    if (job_.evaluation.interval_steps > 0 && job_.evaluation.sets.empty()) {
      Error(LineOf("evaluation.interval_steps"), "evaluation.interval_steps",
            "there is nothing to evaluate; name a set in evaluation.sets");
    }
    if (!job_.evaluation.sets.empty() && job_.data.synthetic) {
      Error(LineOf("evaluation.sets"), "evaluation.sets",
            "given together with data.synthetic, whose random tokens teach "
            "nothing that could be evaluated; remove one");
    }
  }

  void CheckMetrics() {
    unsigned char bytes[sizeof(in6_addr)];
    const char* address = job_.metrics.address.c_str();
    if (inet_pton(AF_INET, address, bytes) != 1 &&
        inet_pton(AF_INET6, address, bytes) != 1) {
      Error(LineOf("metrics.address"), "metrics.address",
            absl::StrCat("expected an IP address such as 127.0.0.1 or 0.0.0.0, "
                         "found '",
                         job_.metrics.address, "'"));
    }
    if (!job_.metrics.textfile.empty() &&
        !absl::EndsWith(job_.metrics.textfile, ".prom")) {
      Error(LineOf("metrics.textfile"), "metrics.textfile",
            absl::StrCat("expected a path that ends in .prom, the only files "
                         "that node exporters read, found '",
                         job_.metrics.textfile, "'"));
    }
  }

  void CheckFrom() {
    if (job_.model_from.empty()) {
      if (job_.model_fingerprint.empty()) return;
      Error(LineOf("model.fingerprint"), "model.fingerprint",
            "given without model.from, whose weights it identifies; give both "
            "or neither");
    } else if (!job_.model_approximates.empty()) {
      Error(LineOf("model.approximates"), "model.approximates",
            "given together with model.from; weights are trained as the model "
            "that they are of, so leave it out");
    } else if ((!job_.data.text.empty() || !job_.data.sources.empty()) &&
               job_.data.tokenizer == "auto") {
      // Ids of any other would mean nothing to its weights.
      job_.data.tokenizer = job_.model_from;
    }
  }

  void CheckChat() {
    std::vector<DataSourceSpec> sources = job_.data.sources;
    for (const auto& [name, set] : job_.evaluation.sets) sources.push_back(set);
    if (std::ranges::any_of(sources, &DataSourceSpec::has_samples) &&
        job_.data.tokenizer == "auto") {
      Error(LineOf("data.tokenizer"), "data.tokenizer",
            "missing where records are chat or preference: their template and "
            "its tokens "
            "are a model's own; name its folder, or its tokenizer.json");
    }
    if (std::ranges::any_of(sources, &DataSourceSpec::has_samples) &&
        job_.data.packing && job_.model.learned_positions > 0) {
      Error(LineOf("data.packing"), "data.packing",
            "expected false where the model has learned positions: packed "
            "samples would not begin at the first one");
    }
    absl::CivilDay day;
    if (!job_.data.chat_date.empty() &&
        !absl::ParseCivilTime(job_.data.chat_date, &day)) {
      Error(LineOf("data.chat_date"), "data.chat_date",
            absl::StrCat("expected a date such as 2026-11-23, found '",
                         job_.data.chat_date, "'"));
    }
  }

  // Sources of pairs, and nothing else, are what dpo trains.
  void CheckObjective() {
    const char* const key = "training.objective";
    const std::vector<DataSourceSpec>& sources = job_.data.sources;
    if (job_.training.trains_preferences()) {
      if (sources.empty() ||
          !std::ranges::all_of(sources, &DataSourceSpec::is_preference)) {
        Error(LineOf(key), key,
              "dpo trains pairs of answers: expected every source in "
              "data.sources with kind: preference, and no other data");
      }
      if (job_.model.learned_positions > 0) {
        Error(LineOf(key), key,
              "dpo puts both answers of a pair into one sequence, so the "
              "second would not begin at the first learned position; expected "
              "a model with rotary positions");
      }
      return;
    }
    const bool has_pairs =
        std::ranges::any_of(sources, &DataSourceSpec::is_preference) ||
        std::ranges::any_of(job_.evaluation.sets, [](const auto& set) {
          return set.second.is_preference();
        });
    if (has_pairs) {
      Error(LineOf(key), key,
            "expected dpo where a source or set has kind: preference, found "
            "cross_entropy");
    }
  }

  void CheckGoodput() {
    const GoodputSpec& goodput = job_.goodput;
    if (goodput.mean_time_between_failures_hours > 0) {
      if (!goodput.checkpoint_seconds.has_value() &&
          goodput.checkpoint_bytes_per_second == 0) {
        Error(LineOf("goodput.checkpoint_seconds"),
              "goodput.checkpoint_seconds",
              "missing where devices fail; give it, or "
              "goodput.checkpoint_bytes_per_second");
      }
      if (goodput.repair_share * goodput.repair_hours >
          goodput.mean_time_between_failures_hours) {
        Error(LineOf("goodput.mean_time_between_failures_hours"),
              "goodput.mean_time_between_failures_hours",
              absl::StrCat("a device fails every ",
                           goodput.mean_time_between_failures_hours,
                           " hours and takes ", goodput.repair_hours,
                           " to repair (goodput.repair_hours), so that more "
                           "nodes would be away than there are devices; give "
                           "the hours of one device, not of the cluster"));
      }
    } else if (goodput.objective == "goodput") {
      Error(LineOf("goodput.objective"), "goodput.objective",
            "goodput follows from failures; give "
            "goodput.mean_time_between_failures_hours");
    }
    if (goodput.objective == "cost" && goodput.price_per_device_hour == 0) {
      Error(LineOf("goodput.objective"), "goodput.objective",
            "cost follows from a price; give goodput.price_per_device_hour");
    }
  }

  void CheckOneSource() {
    std::vector<std::string> sources;
    if (job_.data.synthetic) sources.push_back("data.synthetic");
    if (!job_.data.text.empty()) sources.push_back("data.text");
    if (!job_.data.indexed.empty()) sources.push_back("data.indexed");
    if (!job_.data.sources.empty()) sources.push_back("data.sources");
    if (!job_.data.sources.empty() && job_.data.max_bytes > 0) {
      Error(LineOf("data.max_bytes"), "data.max_bytes",
            "given together with data.sources; it limits data.text alone");
    }
    for (size_t i = 1; i < sources.size(); ++i) {
      Error(LineOf(sources[i]), sources[i],
            absl::StrCat("given together with ", sources[0],
                         "; keep one of the two"));
    }
  }

  void Error(int line, const std::string& path, const std::string& what) {
    if (absl::StartsWith(path, "data")) has_error_at_data_ = true;
    errors_.emplace_back(line, absl::StrCat(file_name_, ":", line, ": ", path,
                                            path.empty() ? "" : ": ", what));
  }

  absl::StatusOr<JobSpec> Result() {
    if (errors_.empty()) return std::move(job_);
    std::stable_sort(
        errors_.begin(), errors_.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    return absl::InvalidArgumentError(
        absl::StrJoin(errors_, "\n", [](std::string* out, const auto& error) {
          out->append(error.second);
        }));
  }

  const std::string& file_name_;
  const FolderReader& read_folder_;
  JobSpec job_;
  std::map<std::string, int> lines_;  // For every known key and section given.
  std::vector<std::pair<int, std::string>> errors_;  // By line.
  bool has_error_at_data_ = false;
  bool has_folder_error_ = false;
};

}  // namespace

absl::StatusOr<JobSpec> ParseJob(absl::string_view yaml,
                                 const std::string& file_name,
                                 const FolderReader& read_folder) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  return JobReader(file_name, read_folder).Read(tree);
}

absl::StatusOr<JobSpec> LoadJob(const std::string& path,
                                const FolderReader& read_folder) {
  const absl::StatusOr<std::string> yaml = ReadFile(path);
  if (!yaml.ok()) {
    // A path that cannot be read is the caller's slip, like any other in a job.
    return absl::InvalidArgumentError(
        absl::StrCat("job file ", path, ": ", yaml.status().message()));
  }
  return ParseJob(*yaml, path, read_folder);
}

std::string JobToYaml(const JobSpec& job,
                      const std::map<std::string, std::string>& remarks) {
  std::string yaml;
  std::vector<std::string> open;  // Sections of the line before.
  for (const JobKey& key : JobKeys()) {
    std::vector<std::string> words = absl::StrSplit(key.path, '.');
    const std::string name = std::move(words.back());
    words.pop_back();
    size_t depth = 0;
    while (depth < words.size() && depth < open.size() &&
           words[depth] == open[depth]) {
      ++depth;
    }
    for (; depth < words.size(); ++depth) {
      absl::StrAppend(&yaml, std::string(2 * depth, ' '), words[depth], ":\n");
    }
    absl::StrAppend(&yaml, std::string(2 * words.size(), ' '), name, ": ",
                    JobValueToYaml(key, job));
    const auto remark = remarks.find(key.path);
    if (remark != remarks.end()) {
      absl::StrAppend(&yaml, "  # ", remark->second);
    }
    yaml.push_back('\n');
    open = std::move(words);
  }
  return yaml;
}

bool SetJobValue(const JobKey& key, absl::string_view text, JobSpec* job) {
  return SetFromTree(
      key, {.kind = YamlTree::Kind::kScalar, .scalar = std::string(text)}, job);
}

}  // namespace millrace
