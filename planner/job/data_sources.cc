#include "planner/job/data_sources.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/text/nearest_word.h"

namespace millrace {
namespace {

constexpr absl::string_view kSourceFormats[] = {"auto", "text", "jsonl",
                                                "parquet", "indexed"};
constexpr absl::string_view kSourceKinds[] = {"text", "chat", "preference"};
constexpr absl::string_view kTrainOn[] = {"assistant", "completion", "all"};

// "auto, text or jsonl".
std::string AnyOf(std::span<const absl::string_view> words) {
  return absl::StrCat(absl::StrJoin(words.first(words.size() - 1), ", "),
                      " or ", words.back());
}

bool IsSetName(absl::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
}

enum class SourcePlace { kMixture, kSet };

// Reads one section of the list, or a set.
class SourceReader {
 public:
  SourceReader(const YamlTree& section, std::string path, SourcePlace place,
               std::vector<SourceProblem>* problems)
      : section_(section),
        path_(std::move(path)),
        place_(place),
        problems_(problems) {}

  DataSourceSpec Read() {
    if (section_.kind != YamlTree::Kind::kMap) {
      Problem(section_, "",
              absl::StrCat("expected a section such as {path: a.jsonl, "
                           "weight: 0.5}, found ",
                           DescribeYaml(section_)));
      return {};
    }
    for (const YamlTree& entry : section_.children) ReadEntry(entry);
    if (!seen_.contains("path") && !seen_.contains("files")) {
      Problem(section_, "", "expected `path` or `files`, found neither");
    }
    CheckKind();
    return std::move(source_);
  }

  // A set that is a list.
  DataSourceSpec ReadList() {
    ReadFiles(section_, "");
    source_.format = "text";
    return std::move(source_);
  }

 private:
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys = {"path", "files",    "format",
                                     "kind", "train_on", "column"};
    if (place_ == SourcePlace::kMixture) keys.push_back("weight");
    return keys;
  }

  void ReadEntry(const YamlTree& entry) {
    const std::string& key = entry.key;
    const std::vector<std::string> keys = Keys();
    if (!seen_.insert(key).second) {
      Problem(entry, key, "given twice; remove one");
    } else if (std::ranges::find(keys, key) == keys.end()) {
      const auto nearest = NearestWord(key, keys);
      Problem(entry, key,
              nearest.has_value()
                  ? absl::StrCat("unknown key; did you mean '", *nearest, "'?")
                  : absl::StrCat("unknown key; known keys here: ",
                                 absl::StrJoin(keys, ", ")));
    } else if (key == "path") {
      std::string path;
      if (seen_.contains("files")) {
        Problem(entry, key, "given together with files; keep one of the two");
      } else if (ReadText(entry, "a path or glob", &path)) {
        source_.files = {std::move(path)};
      }
    } else if (key == "files") {
      if (seen_.contains("path")) {
        Problem(entry, key, "given together with path; keep one of the two");
      } else {
        ReadFiles(entry, key);
      }
    } else if (key == "format") {
      ReadChoice(entry, kSourceFormats, &source_.format);
    } else if (key == "kind") {
      ReadChoice(entry, kSourceKinds, &source_.kind);
    } else if (key == "train_on") {
      ReadChoice(entry, kTrainOn, &source_.train_on);
    } else if (key == "column") {
      ReadText(entry, "the name of a column", &source_.column);
    } else {
      ReadWeight(entry);
    }
  }

  bool ReadText(const YamlTree& entry, absl::string_view expected,
                std::string* text) {
    if (entry.kind != YamlTree::Kind::kScalar || entry.scalar.empty()) {
      Wrong(entry, expected);
      return false;
    }
    *text = entry.scalar;
    return true;
  }

  void ReadChoice(const YamlTree& entry,
                  std::span<const absl::string_view> choices,
                  std::string* choice) {
    if (entry.kind != YamlTree::Kind::kScalar ||
        std::ranges::find(choices, entry.scalar) == choices.end()) {
      Wrong(entry, AnyOf(choices));
    } else {
      *choice = entry.scalar;
    }
  }

  void ReadWeight(const YamlTree& entry) {
    double weight = 0;
    if (entry.kind != YamlTree::Kind::kScalar ||
        !absl::SimpleAtod(entry.scalar, &weight) || !std::isfinite(weight) ||
        weight <= 0) {
      Wrong(entry,
            "a number above 0 (a source that is not to be read is removed)");
    } else {
      source_.weight = weight;
    }
  }

  void ReadFiles(const YamlTree& entry, const std::string& key) {
    const bool is_list =
        entry.kind == YamlTree::Kind::kList && !entry.children.empty();
    if (!is_list || std::ranges::any_of(entry.children, [](const auto& item) {
          return item.kind != YamlTree::Kind::kScalar || item.scalar.empty();
        })) {
      Problem(entry, key,
              absl::StrCat("expected a list of paths or globs, found ",
                           DescribeYaml(entry)));
      return;
    }
    for (const YamlTree& item : entry.children) {
      source_.files.push_back(item.scalar);
    }
  }

  void CheckKind() {
    if (!source_.is_chat() && seen_.contains("train_on")) {
      Problem(section_, "train_on",
              source_.is_preference()
                  ? "given for preference, of which the answers are trained; "
                    "leave it out"
                  : "given for text, which is trained wholly; add kind: chat, "
                    "or leave it out");
    }
    if (!source_.has_samples()) return;
    if (source_.is_preference() && seen_.contains("column")) {
      Problem(section_, "column",
              "given for preference, whose columns are prompt, chosen and "
              "rejected; leave it out");
    }
    if (!seen_.contains("column")) source_.column.clear();
    if (source_.format == "text" || source_.format == "indexed") {
      Problem(section_, "format",
              absl::StrCat("expected auto, jsonl or parquet where kind is ",
                           source_.kind, ", found '", source_.format, "'"));
    }
  }

  void Wrong(const YamlTree& entry, absl::string_view expected) {
    Problem(
        entry, entry.key,
        absl::StrCat("expected ", expected, ", found ", DescribeYaml(entry)));
  }
  void Problem(const YamlTree& at, const std::string& key, std::string what) {
    problems_->push_back(
        {.line = at.line,
         .path = key.empty() ? path_ : absl::StrCat(path_, ".", key),
         .what = std::move(what)});
  }

  const YamlTree& section_;
  const std::string path_;
  const SourcePlace place_;
  std::vector<SourceProblem>* problems_;
  std::set<std::string> seen_;
  DataSourceSpec source_;
};

std::string ListToYaml(const std::vector<std::string>& files) {
  return absl::StrCat(
      "[",
      absl::StrJoin(files, ", ",
                    [](std::string* out, const std::string& file) {
                      out->append(QuoteYaml(file));
                    }),
      "]");
}

std::string SourceToYaml(const DataSourceSpec& source, SourcePlace place) {
  std::string yaml = absl::StrCat("{files: ", ListToYaml(source.files),
                                  ", format: ", source.format);
  if (source.has_samples()) absl::StrAppend(&yaml, ", kind: ", source.kind);
  if (source.is_chat()) {
    absl::StrAppend(&yaml, ", train_on: ", source.train_on);
  }
  if (!source.column.empty()) {
    absl::StrAppend(&yaml, ", column: ", QuoteYaml(source.column));
  }
  if (place == SourcePlace::kMixture) {
    absl::StrAppend(&yaml, ", weight: ", NumberToText(source.weight));
  }
  return yaml + "}";
}

}  // namespace

std::vector<DataSourceSpec> ReadDataSources(
    const YamlTree& tree, std::vector<SourceProblem>* problems) {
  std::vector<DataSourceSpec> sources;
  if (tree.kind != YamlTree::Kind::kList) {
    problems->push_back(
        {.line = tree.line,
         .path = "data.sources",
         .what = absl::StrCat("expected a list of sections such as {path: "
                              "a.jsonl, weight: 0.5}, found ",
                              DescribeYaml(tree))});
    return sources;
  }
  for (const YamlTree& section : tree.children) {
    const std::string path = absl::StrCat("data.sources[", sources.size(), "]");
    sources.push_back(
        SourceReader(section, path, SourcePlace::kMixture, problems).Read());
  }
  return sources;
}

std::map<std::string, DataSourceSpec> ReadDataSets(
    const YamlTree& tree, std::vector<SourceProblem>* problems) {
  std::map<std::string, DataSourceSpec> sets;
  if (tree.kind == YamlTree::Kind::kNull) return sets;
  const auto wrong = [&](int line, const std::string& found) {
    problems->push_back(
        {.line = line,
         .path = "evaluation.sets",
         .what = absl::StrCat("expected lists of texts, or sources, by names "
                              "of letters, digits, '_' and '-', found ",
                              found)});
  };
  if (tree.kind != YamlTree::Kind::kMap) {
    wrong(tree.line, DescribeYaml(tree));
    return sets;
  }
  for (const YamlTree& item : tree.children) {
    if (!IsSetName(item.key) || sets.contains(item.key)) {
      wrong(item.line, absl::StrCat("'", item.key, "'",
                                    sets.contains(item.key) ? " twice" : ""));
      continue;
    }
    SourceReader reader(item, absl::StrCat("evaluation.sets.", item.key),
                        SourcePlace::kSet, problems);
    sets[item.key] =
        item.kind == YamlTree::Kind::kMap ? reader.Read() : reader.ReadList();
  }
  return sets;
}

std::string DataSourcesToYaml(const std::vector<DataSourceSpec>& sources) {
  return absl::StrCat(
      "[",
      absl::StrJoin(sources, ", ",
                    [](std::string* out, const DataSourceSpec& source) {
                      out->append(SourceToYaml(source, SourcePlace::kMixture));
                    }),
      "]");
}

std::string DataSetsToYaml(const std::map<std::string, DataSourceSpec>& sets) {
  return absl::StrCat(
      "{",
      absl::StrJoin(sets, ", ",
                    [](std::string* out, const auto& set) {
                      const DataSourceSpec& source = set.second;
                      const DataSourceSpec list = {.files = source.files,
                                                   .format = "text"};
                      absl::StrAppend(
                          out, QuoteYaml(set.first), ": ",
                          source == list
                              ? ListToYaml(source.files)
                              : SourceToYaml(source, SourcePlace::kSet));
                    }),
      "}");
}

}  // namespace millrace
