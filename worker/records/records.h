// Records are what data files hold: documents of text, lines of JSON, rows of
// Parquet. Each is read as a JSON object whose keys are its columns, with the
// place that messages name. Everything that turns data into samples reads it
// through this interface.
//
// A file is cut into parts that can be read by themselves, so that cores and
// agents share the work and a restart goes on where it stopped.

#ifndef MILLRACE_WORKER_RECORDS_RECORDS_H_
#define MILLRACE_WORKER_RECORDS_RECORDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "worker/records/data_files.h"

namespace millrace {

enum class RecordFormat : uint8_t {
  kText,       // A file is one record with the column `text`.
  kJsonLines,  // A line is one record; the file may be packed (gzip, zstd).
  kParquet,    // A row is one record.
};

// The largest record. A line beyond it is a broken record: it is a mistake, or
// a file of one document, which belongs into a text file.
inline constexpr int64_t kMaxRecordTextBytes = int64_t{256} << 20;

struct RecordPlace {
  std::string path;
  RecordFormat format = RecordFormat::kText;
  // Lines before this byte are not counted in `number`: nobody has counted
  // them. Zero but in later parts of a file of lines.
  int64_t first_byte = 0;
  int64_t number = 1;  // The line, or the row; from 1.
};
// "a.jsonl:17", "a.parquet, row 17" or "a.txt". Reads what lies before
// `first_byte` to count its lines.
std::string DescribePlace(const RecordPlace& place);

class Record {
 public:
  // A line of JSON.
  static Record FromLine(RecordPlace place, std::string line);
  static Record FromColumns(RecordPlace place, nlohmann::ordered_json columns,
                            int64_t num_bytes);
  // A file of text that is none, or is left out.
  static Record FromSkippedFile(RecordPlace place, TextVerdict verdict);
  // `why` says what was expected: "expected ..., found ...".
  static Record Broken(RecordPlace place, std::string why);

  const RecordPlace& place() const { return place_; }
  TextVerdict verdict() const { return verdict_; }  // kText for all others.
  int64_t num_bytes() const { return num_bytes_; }  // In memory, about.

  // The object. InvalidArgument, without the place, if the record is broken.
  absl::StatusOr<nlohmann::ordered_json> TakeColumns();
  // The text of one column. InvalidArgument also if there is no such column or
  // it holds something else.
  absl::StatusOr<std::string> TakeText(const std::string& column);

 private:
  RecordPlace place_;
  TextVerdict verdict_ = TextVerdict::kText;
  int64_t num_bytes_ = 0;
  std::string broken_;               // Why; empty: it is not.
  std::optional<std::string> line_;  // Absent: `columns_`.
  nlohmann::ordered_json columns_;
};

struct RecordPart {
  DataFile file;
  RecordFormat format = RecordFormat::kText;
  // Bytes of a plain file of lines: those lines that begin in [begin, end).
  // Row groups of Parquet. Other files are one part, [0, 1).
  int64_t begin = 0;
  int64_t end = 1;
  int64_t num_bytes = 0;  // The part's bytes in the file, for progress.
};

// In the order of the records. Parts are about `part_bytes` large where the
// format allows to cut. InvalidArgument or DataLoss name the file that cannot
// be read.
absl::StatusOr<std::vector<RecordPart>> CutIntoParts(const DataFile& file,
                                                     RecordFormat format,
                                                     int64_t part_bytes);

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // The next record, nullopt at the end. A record that is broken is returned as
  // such. An error says that the file itself is damaged, and names it.
  virtual absl::StatusOr<std::optional<Record>> Next() = 0;
};

// Reads only `columns` where the format allows to leave out others; all if
// empty. Memory: one block of the file and one record; of Parquet one row
// group's column.
absl::StatusOr<std::unique_ptr<RecordReader>> OpenRecords(
    const RecordPart& part, const std::vector<std::string>& columns);

// The format that the ending of the file's name says; nullopt if it says none.
std::optional<RecordFormat> FormatByName(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_RECORDS_H_
