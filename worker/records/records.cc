#include "worker/records/records.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/records/json_lines.h"
#include "worker/records/parquet_records.h"

namespace millrace {
namespace {

using Columns = nlohmann::ordered_json;

constexpr absl::string_view kExample = "an object such as {\"text\": \"...\"}";

const char* KindOfValue(const Columns& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a text";
  if (value.is_array()) return "a list";
  return "an object";
}

// At most the first six.
std::string NamesOfColumns(const Columns& columns) {
  constexpr size_t kNumShown = 6;
  std::vector<std::string> names;
  for (const auto& column : columns.items()) {
    if (names.size() == kNumShown) {
      names.emplace_back("...");
      break;
    }
    names.push_back(column.key());
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// A file of text, read as a whole.
class TextReader : public RecordReader {
 public:
  explicit TextReader(DataFile file) : file_(std::move(file)) {}

  absl::StatusOr<std::optional<Record>> Next() override {
    if (std::exchange(is_read_, true)) return std::nullopt;
    const RecordPlace place = {.path = file_.path};
    std::string text;
    const TextVerdict verdict = ReadText(file_, &text);
    if (verdict != TextVerdict::kText) {
      return Record::FromSkippedFile(place, verdict);
    }
    const auto num_bytes = static_cast<int64_t>(text.size());
    return Record::FromColumns(place, {{"text", std::move(text)}}, num_bytes);
  }

 private:
  const DataFile file_;
  bool is_read_ = false;
};

}  // namespace

std::string DescribePlace(const RecordPlace& place) {
  switch (place.format) {
    case RecordFormat::kText:
      return place.path;
    case RecordFormat::kJsonLines:
      return absl::StrCat(
          place.path, ":",
          CountLineEnds(place.path, place.first_byte) + place.number);
    case RecordFormat::kParquet:
      return absl::StrCat(place.path, ", row ", place.number);
  }
  CHECK(false) << "unknown format";
}

Record Record::FromLine(RecordPlace place, std::string line) {
  Record record;
  record.place_ = std::move(place);
  record.num_bytes_ = static_cast<int64_t>(line.size());
  record.line_ = std::move(line);
  return record;
}

Record Record::FromColumns(RecordPlace place, Columns columns,
                           int64_t num_bytes) {
  Record record;
  record.place_ = std::move(place);
  record.num_bytes_ = num_bytes;
  record.columns_ = std::move(columns);
  return record;
}

Record Record::FromSkippedFile(RecordPlace place, TextVerdict verdict) {
  Record record;
  record.place_ = std::move(place);
  record.verdict_ = verdict;
  record.broken_ = "expected UTF-8 text";
  return record;
}

Record Record::Broken(RecordPlace place, std::string why) {
  Record record;
  record.place_ = std::move(place);
  record.broken_ = std::move(why);
  return record;
}

absl::StatusOr<Columns> Record::TakeColumns() {
  if (!broken_.empty()) return absl::InvalidArgumentError(broken_);
  if (!line_.has_value()) return std::move(columns_);
  if (!IsUtf8(*line_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", kExample, " in UTF-8, found bytes that are not UTF-8"));
  }
  absl::StatusOr<Columns> columns = ParseOrderedJson(*line_);
  if (!columns.ok()) {
    absl::string_view why = columns.status().message();
    absl::ConsumePrefix(&why, "line 1: ");
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", kExample, " on one line: ", why));
  }
  if (!columns->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", kExample, ", found ", KindOfValue(*columns)));
  }
  return columns;
}

absl::StatusOr<std::string> Record::TakeText(const std::string& column) {
  ASSIGN_OR_RETURN(Columns columns, TakeColumns());
  const auto found = columns.find(column);
  if (found == columns.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a column `", column, "`, found ", NamesOfColumns(columns),
        "; name the one with the text in "
        "`column` of the source"));
  }
  if (!found->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a text in column `", column, "`, found ",
                     KindOfValue(*found)));
  }
  return std::move(found->get_ref<std::string&>());
}

absl::StatusOr<std::vector<RecordPart>> CutIntoParts(const DataFile& file,
                                                     RecordFormat format,
                                                     int64_t part_bytes) {
  CHECK(part_bytes > 0) << part_bytes;
  switch (format) {
    case RecordFormat::kText:
      return std::vector{RecordPart{
          .file = file, .format = format, .num_bytes = file.size_bytes}};
    case RecordFormat::kJsonLines:
      return CutJsonLines(file, part_bytes);
    case RecordFormat::kParquet:
      return CutParquet(file, part_bytes);
  }
  CHECK(false) << "unknown format";
}

absl::StatusOr<std::unique_ptr<RecordReader>> OpenRecords(
    const RecordPart& part, const std::vector<std::string>& columns) {
  switch (part.format) {
    case RecordFormat::kText:
      return std::make_unique<TextReader>(part.file);
    case RecordFormat::kJsonLines:
      return OpenJsonLines(part);
    case RecordFormat::kParquet:
      return OpenParquet(part, columns);
  }
  CHECK(false) << "unknown format";
}

std::optional<RecordFormat> FormatByName(const std::string& path) {
  absl::string_view name = path;
  if (!absl::ConsumeSuffix(&name, ".gz")) absl::ConsumeSuffix(&name, ".zst");
  const bool is_packed = name.size() < path.size();
  constexpr std::array<absl::string_view, 2> kLines = {".jsonl", ".ndjson"};
  constexpr std::array<absl::string_view, 2> kTexts = {".txt", ".md"};
  const auto has_ending = [&](absl::string_view ending) {
    return absl::EndsWith(name, ending);
  };
  if (std::ranges::any_of(kLines, has_ending)) return RecordFormat::kJsonLines;
  if (is_packed) return std::nullopt;
  if (std::ranges::any_of(kTexts, has_ending)) return RecordFormat::kText;
  if (has_ending(".parquet")) return RecordFormat::kParquet;
  return std::nullopt;
}

}  // namespace millrace
