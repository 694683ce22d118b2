#include "worker/records/json_lines.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/records/packed_file.h"

namespace millrace {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

class JsonLinesReader : public RecordReader {
 public:
  JsonLinesReader(const RecordPart& part, std::unique_ptr<PackedFile> file)
      : part_(part), file_(std::move(file)), buffer_(kBufferBytes) {
    place_ = {.path = part.file.path,
              .format = RecordFormat::kJsonLines,
              .number = 0};
    // A packed file is one part, whatever its plain size.
    end_ = file_->packing() == Packing::kNone
               ? part.end
               : std::numeric_limits<int64_t>::max();
  }

  // Goes to the first line that begins in the part.
  absl::Status Start() {
    if (part_.begin == 0) return absl::OkStatus();
    position_ = part_.begin - 1;
    RETURN_IF_ERROR(file_->Seek(position_));
    RETURN_IF_ERROR(ReadLine().status());
    place_.first_byte = position_;
    place_.number = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Record>> Next() override {
    while (position_ < end_) {
      ASSIGN_OR_RETURN(const bool has_line, ReadLine());
      if (!has_line) return std::nullopt;
      if (is_too_long_) {
        return Record::Broken(place_,
                              absl::StrCat("expected a line of at most ",
                                           FormatBytes(kMaxRecordTextBytes),
                                           ", found a longer one"));
      }
      const bool is_blank =
          line_.find_first_not_of(" \t\r") == std::string::npos;
      if (!is_blank) return Record::FromLine(place_, std::move(line_));
    }
    return std::nullopt;
  }

 private:
  // Reads the line at position_, without its end, into line_; false at the end
  // of the file. If the line is too long, line_ is empty.
  absl::StatusOr<bool> ReadLine() {
    line_.clear();
    is_too_long_ = false;
    bool has_bytes = false;
    while (true) {
      if (used_ == filled_) {
        used_ = 0;
        ASSIGN_OR_RETURN(filled_, file_->Read(buffer_.data(), buffer_.size()));
        if (filled_ == 0) break;
      }
      has_bytes = true;
      const char* begin = buffer_.data() + used_;
      const void* found = std::memchr(begin, '\n', filled_ - used_);
      const size_t size =
          found == nullptr
              ? filled_ - used_
              : static_cast<size_t>(static_cast<const char*>(found) - begin);
      is_too_long_ =
          is_too_long_ ||
          line_.size() + size > static_cast<size_t>(kMaxRecordTextBytes);
      if (is_too_long_) {
        line_.clear();
      } else {
        line_.append(begin, size);
      }
      const size_t taken = size + (found == nullptr ? 0 : 1);
      used_ += taken;
      position_ += static_cast<int64_t>(taken);
      if (found != nullptr) break;
    }
    if (has_bytes) ++place_.number;
    return has_bytes;
  }

  const RecordPart part_;
  const std::unique_ptr<PackedFile> file_;
  int64_t end_;
  std::vector<char> buffer_;
  size_t used_ = 0;
  size_t filled_ = 0;
  int64_t position_ = 0;  // The next line's, unpacked.
  RecordPlace place_;
  std::string line_;
  bool is_too_long_ = false;
};

}  // namespace

absl::StatusOr<std::vector<RecordPart>> CutJsonLines(const DataFile& file,
                                                     int64_t part_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PackedFile> opened,
                   PackedFile::Open(file.path));
  RecordPart whole{.file = file,
                   .format = RecordFormat::kJsonLines,
                   .begin = 0,
                   .end = file.size_bytes,
                   .num_bytes = file.size_bytes};
  if (opened->packing() != Packing::kNone) return std::vector{whole};
  std::vector<RecordPart> parts;
  for (int64_t begin = 0; begin < file.size_bytes; begin += part_bytes) {
    RecordPart part = whole;
    part.begin = begin;
    part.end = std::min(file.size_bytes, begin + part_bytes);
    part.num_bytes = part.end - part.begin;
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<RecordReader>> OpenJsonLines(
    const RecordPart& part) {
  ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> file,
                   PackedFile::Open(part.file.path));
  auto reader = std::make_unique<JsonLinesReader>(part, std::move(file));
  RETURN_IF_ERROR(reader->Start());
  return reader;
}

int64_t CountLineEnds(const std::string& path, int64_t end) {
  const absl::StatusOr<std::unique_ptr<PackedFile>> file =
      PackedFile::Open(path);
  if (!file.ok()) return 0;
  std::vector<char> buffer(kBufferBytes);
  int64_t count = 0;
  while (end > 0) {
    const absl::StatusOr<size_t> size = (*file)->Read(
        buffer.data(), std::min(buffer.size(), static_cast<size_t>(end)));
    if (!size.ok() || *size == 0) break;
    count += std::count(buffer.data(), buffer.data() + *size, '\n');
    end -= static_cast<int64_t>(*size);
  }
  return count;
}

}  // namespace millrace
