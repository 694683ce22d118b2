// Reads one column of one row group, entry by entry. An entry has a repetition
// level (0: it begins a row), a definition level (how much of the path to the
// column is there) and, if all of the path is there, a value: the striping of
// Dremel (Melnik et al., 2010). Holds one page and the column's dictionary.

#ifndef MILLRACE_WORKER_RECORDS_PARQUET_COLUMN_H_
#define MILLRACE_WORKER_RECORDS_PARQUET_COLUMN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "worker/records/parquet_file.h"
#include "worker/records/parquet_footer.h"

namespace millrace {

class ParquetColumn {
 public:
  // All borrowed but `name`, the column's path, for messages.
  ParquetColumn(const ParquetFile& file, const ParquetNode& node,
                const ParquetColumnChunk& chunk, std::string name)
      : file_(file),
        node_(node),
        chunk_(chunk),
        name_(std::move(name)),
        position_(chunk.begin) {}

  // Makes the next entry current if none is; false at the end. InvalidArgument
  // names an encoding or compression that is not read, DataLoss damage.
  absl::StatusOr<bool> Load();
  // The levels of the current entry.
  int32_t repetition() const { return levels_at(repetitions_); }
  int32_t definition() const { return levels_at(definitions_); }
  // Ends the current entry.
  void Drop();
  // Ends it and returns its value, null if there is none. A text that is not
  // UTF-8 is described in `broken`, and null.
  nlohmann::ordered_json Take(std::string* broken);

 private:
  struct PageHeader;

  int32_t levels_at(const std::vector<uint32_t>& levels) const {
    return levels.empty() ? 0 : static_cast<int32_t>(levels[entry_idx_]);
  }
  bool has_value() const { return definition() == node_.max_definition; }
  absl::Status Damaged(absl::string_view what) const;
  absl::Status NotRead(absl::string_view what) const;
  // False where the bytes are no header, or hold only a part of one.
  static bool ParseHeader(absl::string_view bytes, PageHeader* header);
  absl::StatusOr<PageHeader> ReadHeader();
  absl::StatusOr<std::string> Unpack(absl::string_view packed,
                                     int64_t num_bytes) const;
  absl::Status ReadPage();
  absl::Status ReadDictionary(const PageHeader& header, std::string packed);
  absl::Status ReadData(const PageHeader& header, std::string packed);
  // The levels at the front of `bytes`, which are removed.
  absl::Status ReadLevels(int32_t max_level, int64_t num_entries,
                          int64_t num_bytes, absl::string_view* bytes,
                          std::vector<uint32_t>* levels) const;
  absl::Status ReadValues(int64_t encoding, int64_t num_values,
                          absl::string_view bytes);
  absl::Status ReadPlain(int64_t num_values, absl::string_view bytes,
                         std::vector<absl::string_view>* values) const;
  nlohmann::ordered_json ToJson(absl::string_view value,
                                std::string* broken) const;

  const ParquetFile& file_;
  const ParquetNode& node_;
  const ParquetColumnChunk& chunk_;
  const std::string name_;
  int64_t position_;              // The next page's.
  int64_t num_entries_read_ = 0;  // In all pages so far.
  std::string dictionary_bytes_;
  std::vector<absl::string_view> dictionary_;
  std::string page_bytes_;
  std::vector<uint32_t> repetitions_;  // Empty: all zero.
  std::vector<uint32_t> definitions_;
  std::vector<absl::string_view> values_;  // Those of entries that have one.
  size_t num_entries_ = 0;                 // In the page.
  size_t entry_idx_ = 0;
  size_t value_idx_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_PARQUET_COLUMN_H_
