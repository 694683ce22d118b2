// The metadata of a Parquet file: schema, row groups and where their columns
// lie. The format: apache/parquet-format, parquet.thrift.

#ifndef MILLRACE_WORKER_RECORDS_PARQUET_FOOTER_H_
#define MILLRACE_WORKER_RECORDS_PARQUET_FOOTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/records/thrift_compact.h"

namespace millrace {

// Numbers as the format has them.
enum class ParquetType : uint8_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7,
};
enum class ParquetRepetition : uint8_t {
  kRequired = 0,
  kOptional = 1,
  kRepeated = 2,
};

// An element of the schema: a column, or a group of them.
struct ParquetNode {
  std::string name;
  ParquetRepetition repetition = ParquetRepetition::kRequired;
  ParquetType type = ParquetType::kBoolean;  // A column's.
  bool is_list = false;                      // Annotated as one.
  bool is_unsigned = false;                  // For integers.
  bool is_scaled = false;  // A decimal, time or date: no plain number.
  int32_t num_children = 0;
  std::vector<ParquetNode> children;
  // How many optional or repeated elements are on the way here, this one
  // included, and how many repeated ones.
  int32_t max_definition = 0;
  int32_t max_repetition = 0;
  size_t column_idx = 0;  // A column's, in the order of the file.

  bool is_column() const { return children.empty(); }
};

struct ParquetColumnChunk {
  int32_t codec = 0;
  int64_t num_values = 0;
  int64_t begin = 0;  // In the file, of the first page.
  int64_t num_bytes = 0;
};

struct ParquetRowGroup {
  int64_t num_rows = 0;
  int64_t num_bytes = 0;  // All columns', packed.
  std::vector<ParquetColumnChunk> columns;
};

struct ParquetFooter {
  ParquetNode root;
  size_t num_columns = 0;
  std::vector<ParquetRowGroup> row_groups;
};

// InvalidArgument for a file that is no Parquet or is encrypted, DataLoss for
// one that is damaged; both name it.
absl::StatusOr<ParquetFooter> ReadParquetFooter(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_PARQUET_FOOTER_H_
