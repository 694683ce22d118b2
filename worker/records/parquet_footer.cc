#include "worker/records/parquet_footer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/records/parquet_file.h"

namespace millrace {
namespace {

using Type = ThriftReader::Type;

constexpr absl::string_view kMagic = "PAR1";
constexpr absl::string_view kEncryptedMagic = "PARE";
constexpr int64_t kMaxFooterBytes = int64_t{256} << 20;
constexpr int kMaxSchemaDepth = 32;
constexpr int64_t kMaxGroupRows = int64_t{1} << 40;

// Annotations of the format that existed before logical types: ConvertedType.
constexpr int64_t kConvertedList = 3;
constexpr int64_t kFirstUnsigned = 11;
constexpr int64_t kLastUnsigned = 14;
constexpr int64_t kFirstScaled = 5;  // DECIMAL, DATE, TIME_*, TIMESTAMP_*.
constexpr int64_t kLastScaled = 10;
// Members of the union LogicalType.
constexpr int16_t kLogicalList = 3;
constexpr int16_t kLogicalDecimal = 5;
constexpr int16_t kLogicalTimestamp = 8;

ParquetNode ReadNode(ThriftReader* reader) {
  ParquetNode node;
  reader->ReadStruct([&](int16_t id, Type type) {
    if (id == 1 && type == Type::kInt32) {
      node.type = static_cast<ParquetType>(reader->ReadInteger());
    } else if (id == 3 && type == Type::kInt32) {
      node.repetition = static_cast<ParquetRepetition>(reader->ReadInteger());
    } else if (id == 4 && type == Type::kBinary) {
      node.name = std::string(reader->ReadBinary());
    } else if (id == 5 && type == Type::kInt32) {
      node.num_children = static_cast<int32_t>(reader->ReadInteger());
    } else if (id == 6 && type == Type::kInt32) {
      const int64_t converted = reader->ReadInteger();
      node.is_list = node.is_list || converted == kConvertedList;
      node.is_unsigned =
          converted >= kFirstUnsigned && converted <= kLastUnsigned;
      node.is_scaled = node.is_scaled ||
                       (converted >= kFirstScaled && converted <= kLastScaled);
    } else if (id == 10 && type == Type::kStruct) {
      reader->ReadStruct([&](int16_t logical, Type inner) {
        node.is_list = node.is_list || logical == kLogicalList;
        node.is_scaled = node.is_scaled || (logical >= kLogicalDecimal &&
                                            logical <= kLogicalTimestamp);
        reader->Skip(inner);
      });
    } else {
      reader->Skip(type);
    }
  });
  return node;
}

ParquetColumnChunk ReadChunk(ThriftReader* reader) {
  ParquetColumnChunk chunk;
  int64_t data_begin = 0;
  int64_t dictionary_begin = 0;
  reader->ReadStruct([&](int16_t id, Type type) {
    if (id != 3 || type != Type::kStruct) return reader->Skip(type);
    reader->ReadStruct([&](int16_t meta, Type inner) {
      if (meta == 4 && inner == Type::kInt32) {
        chunk.codec = static_cast<int32_t>(reader->ReadInteger());
      } else if (meta == 5 && inner == Type::kInt64) {
        chunk.num_values = reader->ReadInteger();
      } else if (meta == 7 && inner == Type::kInt64) {
        chunk.num_bytes = reader->ReadInteger();
      } else if (meta == 9 && inner == Type::kInt64) {
        data_begin = reader->ReadInteger();
      } else if (meta == 11 && inner == Type::kInt64) {
        dictionary_begin = reader->ReadInteger();
      } else {
        reader->Skip(inner);
      }
    });
  });
  // Some writers say 0 for a dictionary that is not there.
  chunk.begin = dictionary_begin > 0 ? std::min(dictionary_begin, data_begin)
                                     : data_begin;
  return chunk;
}

ParquetRowGroup ReadRowGroup(ThriftReader* reader) {
  ParquetRowGroup group;
  reader->ReadStruct([&](int16_t id, Type type) {
    if (id == 1 && type == Type::kList) {
      reader->ReadList(
          [&](Type) { group.columns.push_back(ReadChunk(reader)); });
    } else if (id == 3 && type == Type::kInt64) {
      group.num_rows = reader->ReadInteger();
    } else {
      reader->Skip(type);
    }
  });
  for (const ParquetColumnChunk& column : group.columns) {
    group.num_bytes += column.num_bytes;
  }
  return group;
}

// Makes a tree of the flat list of elements, which is in depth-first order.
class SchemaBuilder {
 public:
  explicit SchemaBuilder(std::vector<ParquetNode> nodes)
      : nodes_(std::move(nodes)) {}

  // False if the list is no tree.
  bool Build(ParquetNode* root, size_t* num_columns) {
    if (nodes_.empty()) return false;
    nodes_.front().repetition = ParquetRepetition::kRequired;
    const bool is_tree = Take(root, 0, 0, 0) && next_ == nodes_.size();
    *num_columns = num_columns_;
    return is_tree && !root->children.empty();
  }

 private:
  bool Take(ParquetNode* node, int32_t definition, int32_t repetition,
            int depth) {
    if (next_ == nodes_.size() || depth > kMaxSchemaDepth) return false;
    *node = std::move(nodes_[next_++]);
    if (node->repetition > ParquetRepetition::kRepeated ||
        node->type > ParquetType::kFixedLenByteArray ||
        node->num_children < 0) {
      return false;
    }
    const bool is_repeated = node->repetition == ParquetRepetition::kRepeated;
    const bool is_optional = node->repetition == ParquetRepetition::kOptional;
    node->max_definition = definition + (is_repeated || is_optional ? 1 : 0);
    node->max_repetition = repetition + (is_repeated ? 1 : 0);
    for (int32_t i = 0; i < node->num_children; ++i) {
      ParquetNode child;
      if (!Take(&child, node->max_definition, node->max_repetition,
                depth + 1)) {
        return false;
      }
      node->children.push_back(std::move(child));
    }
    if (node->is_column()) node->column_idx = num_columns_++;
    return true;
  }

  std::vector<ParquetNode> nodes_;
  size_t next_ = 0;
  size_t num_columns_ = 0;
};

// The first thing in the footer that does not fit the file; empty: nothing.
std::string CheckFooter(const ParquetFooter& footer, int64_t file_bytes) {
  for (size_t i = 0; i < footer.row_groups.size(); ++i) {
    const ParquetRowGroup& group = footer.row_groups[i];
    if (group.columns.size() != footer.num_columns || group.num_rows < 0 ||
        group.num_rows > kMaxGroupRows) {
      return absl::StrCat("row group ", i, " does not fit the schema");
    }
    for (const ParquetColumnChunk& column : group.columns) {
      if (column.begin < 4 || column.num_bytes < 0 || column.num_values < 0 ||
          column.begin > file_bytes ||
          column.num_bytes > file_bytes - column.begin) {
        return absl::StrCat("row group ", i, " lies beyond the file's end");
      }
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<ParquetFooter> ReadParquetFooter(const std::string& path) {
  ASSIGN_OR_RETURN(const ParquetFile file, ParquetFile::Open(path));
  constexpr int64_t kTailBytes = 8;
  const int64_t size = file.size_bytes();
  std::string tail;
  if (size >= kTailBytes + 4) {
    ASSIGN_OR_RETURN(tail, file.Read(size - kTailBytes, kTailBytes));
  }
  const absl::string_view magic =
      tail.empty() ? "" : absl::string_view(tail).substr(4);
  if (magic == kEncryptedMagic) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the Parquet file is encrypted; write it without encryption"));
  }
  if (magic != kMagic) {
    ASSIGN_OR_RETURN(const std::string head,
                     file.Read(0, std::min<int64_t>(size, 4)));
    if (head == kMagic) return file.Damaged("its end is missing");
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": this is no Parquet file", size == 0 ? ", it is empty" : "",
        "; give the source the `format` of what it holds, or copy it again"));
  }
  uint32_t footer_bytes = 0;
  std::memcpy(&footer_bytes, tail.data(), sizeof(footer_bytes));
  if (footer_bytes > size - kTailBytes - 4 || footer_bytes > kMaxFooterBytes) {
    return file.Damaged(
        absl::StrCat("it says that its footer has ", footer_bytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::string bytes,
                   file.Read(size - kTailBytes - footer_bytes, footer_bytes));
  ThriftReader reader(bytes);
  ParquetFooter footer;
  std::vector<ParquetNode> nodes;
  reader.ReadStruct([&](int16_t id, Type type) {
    if (id == 2 && type == Type::kList) {
      reader.ReadList([&](Type) { nodes.push_back(ReadNode(&reader)); });
    } else if (id == 4 && type == Type::kList) {
      reader.ReadList(
          [&](Type) { footer.row_groups.push_back(ReadRowGroup(&reader)); });
    } else {
      reader.Skip(type);
    }
  });
  if (!reader.ok() || !SchemaBuilder(std::move(nodes))
                           .Build(&footer.root, &footer.num_columns)) {
    return file.Damaged("its footer cannot be read");
  }
  const std::string wrong = CheckFooter(footer, size);
  if (!wrong.empty()) return file.Damaged(wrong);
  return footer;
}

}  // namespace millrace
