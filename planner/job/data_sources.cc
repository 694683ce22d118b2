#include "planner/job/data_sources.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/text/nearest_word.h"

namespace millrace {
namespace {

const std::vector<std::string>& SourceKeys() {
  static const auto* keys = new std::vector<std::string>{
      "path", "files", "format", "column", "weight"};
  return *keys;
}

const std::vector<std::string>& SourceFormats() {
  static const auto* formats = new std::vector<std::string>{
      "auto", "text", "jsonl", "parquet", "indexed"};
  return *formats;
}

// Reads one section of the list.
class SourceReader {
 public:
  SourceReader(const YamlTree& section, std::string path,
               std::vector<SourceProblem>* problems)
      : section_(section), path_(std::move(path)), problems_(problems) {}

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
    return std::move(source_);
  }

 private:
  void ReadEntry(const YamlTree& entry) {
    const bool is_scalar = entry.kind == YamlTree::Kind::kScalar;
    const std::string& key = entry.key;
    if (!seen_.insert(key).second) {
      Problem(entry, key, "given twice; remove one");
    } else if (key == "path") {
      if (seen_.contains("files")) {
        Problem(entry, key, "given together with files; keep one of the two");
      } else if (!is_scalar || entry.scalar.empty()) {
        Wrong(entry, "a path or glob");
      } else {
        source_.files = {entry.scalar};
      }
    } else if (key == "files") {
      ReadFiles(entry);
    } else if (key == "format") {
      if (!is_scalar || std::ranges::find(SourceFormats(), entry.scalar) ==
                            SourceFormats().end()) {
        Wrong(entry, "auto, text, jsonl, parquet or indexed");
      } else {
        source_.format = entry.scalar;
      }
    } else if (key == "column") {
      if (!is_scalar || entry.scalar.empty()) {
        Wrong(entry, "the name of a column");
      } else {
        source_.column = entry.scalar;
      }
    } else if (key == "weight") {
      double weight = 0;
      if (!is_scalar || !absl::SimpleAtod(entry.scalar, &weight) ||
          !std::isfinite(weight) || weight <= 0) {
        Wrong(entry,
              "a number above 0 (a source that is not to be read is removed)");
      } else {
        source_.weight = weight;
      }
    } else {
      const auto nearest = NearestWord(key, SourceKeys());
      Problem(entry, key,
              nearest.has_value()
                  ? absl::StrCat("unknown key; did you mean '", *nearest, "'?")
                  : absl::StrCat("unknown key; known keys here: ",
                                 absl::StrJoin(SourceKeys(), ", ")));
    }
  }

  void ReadFiles(const YamlTree& entry) {
    if (seen_.contains("path")) {
      Problem(entry, "files", "given together with path; keep one of the two");
      return;
    }
    const bool is_list =
        entry.kind == YamlTree::Kind::kList && !entry.children.empty();
    if (!is_list || std::ranges::any_of(entry.children, [](const auto& item) {
          return item.kind != YamlTree::Kind::kScalar || item.scalar.empty();
        })) {
      Wrong(entry, "a list of paths or globs");
      return;
    }
    for (const YamlTree& item : entry.children) {
      source_.files.push_back(item.scalar);
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
  std::vector<SourceProblem>* problems_;
  std::set<std::string> seen_;
  DataSourceSpec source_;
};

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
    sources.push_back(SourceReader(section, path, problems).Read());
  }
  return sources;
}

std::string DataSourcesToYaml(const std::vector<DataSourceSpec>& sources) {
  const auto quote = [](std::string* out, const std::string& file) {
    out->append(QuoteYaml(file));
  };
  return absl::StrCat(
      "[",
      absl::StrJoin(sources, ", ",
                    [&](std::string* out, const DataSourceSpec& source) {
                      absl::StrAppend(out, "{files: [",
                                      absl::StrJoin(source.files, ", ", quote),
                                      "], format: ", source.format,
                                      ", column: ", QuoteYaml(source.column),
                                      ", weight: ", NumberToText(source.weight),
                                      "}");
                    }),
      "]");
}

}  // namespace millrace
