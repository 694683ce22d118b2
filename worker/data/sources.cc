#include "worker/data/sources.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

bool IsIndexedName(const std::string& path) {
  return absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".idx");
}

std::optional<RecordFormat> FormatByKey(const std::string& format) {
  if (format == "text") return RecordFormat::kText;
  if (format == "jsonl") return RecordFormat::kJsonLines;
  if (format == "parquet") return RecordFormat::kParquet;
  CHECK(format == "auto") << format;
  return std::nullopt;
}

absl::StatusOr<DataSource> FindSource(const DataSourceSpec& spec,
                                      const std::string& key,
                                      int64_t max_bytes) {
  DataSource source{.key = key,
                    .name = absl::StrJoin(spec.files, ", "),
                    .weight = spec.weight,
                    .column = spec.column,
                    .kind = spec.kind,
                    .train_on = spec.train_on};
  if (spec.format == "indexed" ||
      (spec.format == "auto" && !spec.has_samples() &&
       std::ranges::all_of(spec.files, IsIndexedName))) {
    source.indexed = spec.files;
    return source;
  }
  ASSIGN_OR_RETURN(FoundFiles found, FindDataFiles(spec.files, key, max_bytes));
  const std::optional<RecordFormat> given = FormatByKey(spec.format);
  for (DataFile& file : found.files) {
    const std::optional<RecordFormat> format =
        given.has_value() ? given : FormatByName(file.path);
    if (!format.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, ": the name of ", file.path,
          " does not say what it holds; give the source a `format`: text, "
          "jsonl, parquet or indexed"));
    }
    if (spec.has_samples() && *format == RecordFormat::kText) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, ": ", file.path, " is text by its name; expected ", spec.kind,
          " records, in JSON Lines or Parquet: name such files, or give the "
          "`format`"));
    }
    source.files.push_back({std::move(file), *format});
  }
  source.unmatched = std::move(found.unmatched);
  return source;
}

}  // namespace

int64_t DataSource::num_bytes() const {
  int64_t total = 0;
  for (const SourceFile& file : files) total += file.file.size_bytes;
  return total;
}

absl::StatusOr<std::vector<DataSource>> FindSources(const DataSpec& data) {
  std::vector<DataSource> sources;
  if (data.synthetic) return sources;
  const int num_ways = static_cast<int>(!data.text.empty()) +
                       static_cast<int>(!data.indexed.empty()) +
                       static_cast<int>(!data.sources.empty());
  if (num_ways != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_ways == 0 ? "none" : "more than one",
                     " of data.text, data.indexed and data.sources is given: "
                     "give one of them"));
  }
  std::vector<std::pair<std::string, DataSourceSpec>> specs;
  if (!data.text.empty()) {
    specs.push_back({"data.text", {.files = data.text, .format = "text"}});
  } else if (!data.indexed.empty()) {
    specs.push_back(
        {"data.indexed", {.files = data.indexed, .format = "indexed"}});
  }
  for (size_t i = 0; i < data.sources.size(); ++i) {
    specs.emplace_back(absl::StrCat("data.sources[", i, "]"), data.sources[i]);
  }
  for (const auto& [key, spec] : specs) {
    ASSIGN_OR_RETURN(DataSource source, FindSource(spec, key, data.max_bytes));
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace millrace
