#include "worker/records/parquet_records.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/records/parquet_column.h"
#include "worker/records/parquet_file.h"
#include "worker/records/parquet_footer.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

const ParquetNode& FirstColumnOf(const ParquetNode& node) {
  return node.is_column() ? node : FirstColumnOf(node.children.front());
}

// The first column under `node` that has no plain value; null if all have.
const ParquetNode* FindUnreadable(const ParquetNode& node) {
  if (node.is_column()) {
    const bool is_plain = node.type != ParquetType::kInt96 &&
                          node.type != ParquetType::kFixedLenByteArray &&
                          !node.is_scaled;
    return is_plain ? nullptr : &node;
  }
  for (const ParquetNode& child : node.children) {
    if (const ParquetNode* found = FindUnreadable(child)) return found;
  }
  return nullptr;
}

// The columns of the file that are read, in the order of the file.
absl::StatusOr<std::vector<const ParquetNode*>> ChooseColumns(
    const std::string& path, const ParquetNode& root,
    const std::vector<std::string>& columns) {
  std::vector<const ParquetNode*> chosen;
  std::vector<std::string> names;
  for (const ParquetNode& child : root.children) {
    names.push_back(child.name);
    const ParquetNode* unreadable = FindUnreadable(child);
    if (columns.empty()) {
      if (unreadable == nullptr) chosen.push_back(&child);
      continue;
    }
    if (std::ranges::find(columns, child.name) == columns.end()) continue;
    if (unreadable != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": column `", child.name,
          "`: expected text or numbers, found a decimal, a time or bytes of a "
          "fixed size",
          unreadable == &child ? "" : " in `",
          unreadable == &child ? "" : unreadable->name,
          unreadable == &child ? "" : "`", "; name another column"));
    }
    chosen.push_back(&child);
  }
  if (chosen.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": expected a column `", absl::StrJoin(columns, "` or `"),
        "`, found ", absl::StrJoin(names, ", "),
        "; name the one with the text in `column` of the source"));
  }
  return chosen;
}

class ParquetReader : public RecordReader {
 public:
  ParquetReader(const RecordPart& part, ParquetFile file, ParquetFooter footer)
      : file_(std::move(file)),
        footer_(std::move(footer)),
        group_idx_(static_cast<size_t>(part.begin)),
        end_group_(static_cast<size_t>(part.end)) {
    place_ = {
        .path = file_.path(), .format = RecordFormat::kParquet, .number = 0};
    for (size_t i = 0; i < group_idx_; ++i) {
      place_.number += footer_.row_groups[i].num_rows;
    }
  }

  absl::Status Start(const std::vector<std::string>& columns) {
    ASSIGN_OR_RETURN(chosen_,
                     ChooseColumns(file_.path(), footer_.root, columns));
    OpenGroup();
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Record>> Next() override {
    while (rows_left_ == 0) {
      if (group_idx_ >= end_group_) return std::nullopt;
      ++group_idx_;
      OpenGroup();
    }
    --rows_left_;
    ++place_.number;
    broken_.clear();
    num_bytes_ = 0;
    Json row = Json::object();
    for (const ParquetNode* node : chosen_) {
      ParquetColumn& first = FirstColumn(*node);
      RETURN_IF_ERROR(LoadEntry(first));
      if (first.repetition() != 0) {
        return file_.Damaged(absl::StrCat("column `", node->name,
                                          "`: its rows do not begin "
                                          "where the others' do"));
      }
      ASSIGN_OR_RETURN(row[node->name], ReadNode(*node));
    }
    if (!broken_.empty()) return Record::Broken(place_, broken_);
    return Record::FromColumns(place_, std::move(row), num_bytes_);
  }

 private:
  void OpenGroup() {
    columns_.clear();
    rows_left_ = 0;
    if (group_idx_ >= end_group_) return;
    const ParquetRowGroup& group = footer_.row_groups[group_idx_];
    rows_left_ = group.num_rows;
    for (const ParquetNode* node : chosen_) OpenColumns(*node, "", group);
  }

  void OpenColumns(const ParquetNode& node, const std::string& prefix,
                   const ParquetRowGroup& group) {
    const std::string name = absl::StrCat(prefix, node.name);
    if (node.is_column()) {
      columns_.emplace(node.column_idx,
                       std::make_unique<ParquetColumn>(
                           file_, node, group.columns[node.column_idx], name));
    }
    for (const ParquetNode& child : node.children) {
      OpenColumns(child, name + ".", group);
    }
  }

  ParquetColumn& FirstColumn(const ParquetNode& node) {
    return *columns_.at(FirstColumnOf(node).column_idx);
  }

  absl::Status LoadEntry(ParquetColumn& column) {
    ASSIGN_OR_RETURN(const bool has_entry, column.Load());
    if (has_entry) return absl::OkStatus();
    return file_.Damaged(absl::StrCat("row group ", group_idx_,
                                      ": a column has fewer rows than others"));
  }

  // An absent value has one entry in each of the columns below it.
  absl::Status DropEntry(const ParquetNode& node) {
    if (node.is_column()) {
      ParquetColumn& column = FirstColumn(node);
      RETURN_IF_ERROR(LoadEntry(column));
      column.Drop();
    }
    for (const ParquetNode& child : node.children) {
      RETURN_IF_ERROR(DropEntry(child));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> ReadNode(const ParquetNode& node) {
    if (node.repetition == ParquetRepetition::kRepeated) {
      return ReadItems(node, /*is_wrapper=*/false);
    }
    if (node.repetition == ParquetRepetition::kOptional) {
      ParquetColumn& first = FirstColumn(node);
      RETURN_IF_ERROR(LoadEntry(first));
      if (first.definition() < node.max_definition) {
        RETURN_IF_ERROR(DropEntry(node));
        return Json(nullptr);
      }
    }
    return ReadContent(node);
  }

  absl::StatusOr<Json> ReadContent(const ParquetNode& node) {
    if (node.is_column()) {
      ParquetColumn& column = FirstColumn(node);
      RETURN_IF_ERROR(LoadEntry(column));
      Json value = column.Take(&broken_);
      num_bytes_ +=
          value.is_string()
              ? static_cast<int64_t>(value.get_ref<const std::string&>().size())
              : 8;
      return value;
    }
    const ParquetNode& only = node.children.front();
    if (node.is_list && node.children.size() == 1 &&
        only.repetition == ParquetRepetition::kRepeated) {
      // Mostly a group around the item; in old files the item itself.
      const bool is_wrapper = only.children.size() == 1 &&
                              only.name != "array" &&
                              only.name != node.name + "_tuple";
      return ReadItems(only, is_wrapper);
    }
    Json object = Json::object();
    for (const ParquetNode& child : node.children) {
      ASSIGN_OR_RETURN(object[child.name], ReadNode(child));
    }
    return object;
  }

  absl::StatusOr<Json> ReadItems(const ParquetNode& node, bool is_wrapper) {
    Json items = Json::array();
    ParquetColumn& first = FirstColumn(node);
    RETURN_IF_ERROR(LoadEntry(first));
    if (first.definition() < node.max_definition) {
      RETURN_IF_ERROR(DropEntry(node));
      return items;
    }
    bool goes_on = true;
    while (goes_on) {
      Json item;
      if (is_wrapper) {
        ASSIGN_OR_RETURN(item, ReadNode(node.children.front()));
      } else {
        ASSIGN_OR_RETURN(item, ReadContent(node));
      }
      items.push_back(std::move(item));
      // A few bytes of the file can stand for any number of items.
      num_bytes_ += static_cast<int64_t>(sizeof(Json));
      if (num_bytes_ > kMaxRecordTextBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            file_.path(), ", row ", place_.number, ": expected a record of ",
            "at most ", FormatBytes(kMaxRecordTextBytes),
            ", found a larger one; remove the row"));
      }
      ASSIGN_OR_RETURN(const bool has_entry, first.Load());
      goes_on = has_entry && first.repetition() == node.max_repetition;
    }
    return items;
  }

  const ParquetFile file_;
  const ParquetFooter footer_;
  RecordPlace place_;
  std::vector<const ParquetNode*> chosen_;  // In footer_.
  size_t group_idx_;
  const size_t end_group_;
  int64_t rows_left_ = 0;  // In the row group.
  std::map<size_t, std::unique_ptr<ParquetColumn>> columns_;
  std::string broken_;  // Why the row is; empty: it is not.
  int64_t num_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<RecordPart>> CutParquet(const DataFile& file,
                                                   int64_t part_bytes) {
  ASSIGN_OR_RETURN(const ParquetFooter footer, ReadParquetFooter(file.path));
  std::vector<RecordPart> parts;
  for (size_t i = 0; i < footer.row_groups.size(); ++i) {
    const int64_t num_bytes = footer.row_groups[i].num_bytes;
    if (parts.empty() || parts.back().num_bytes + num_bytes > part_bytes) {
      parts.push_back({.file = file,
                       .format = RecordFormat::kParquet,
                       .begin = static_cast<int64_t>(i)});
    }
    parts.back().end = static_cast<int64_t>(i) + 1;
    parts.back().num_bytes += num_bytes;
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<RecordReader>> OpenParquet(
    const RecordPart& part, const std::vector<std::string>& columns) {
  ASSIGN_OR_RETURN(ParquetFooter footer, ReadParquetFooter(part.file.path));
  if (part.end > static_cast<int64_t>(footer.row_groups.size())) {
    return absl::DataLossError(
        absl::StrCat(part.file.path, ": the file has changed meanwhile"));
  }
  ASSIGN_OR_RETURN(ParquetFile file, ParquetFile::Open(part.file.path));
  auto reader =
      std::make_unique<ParquetReader>(part, std::move(file), std::move(footer));
  RETURN_IF_ERROR(reader->Start(columns));
  return reader;
}

}  // namespace millrace
