// Numbers of page types, encodings and fields: parquet.thrift of
// apache/parquet-format, Encodings.md and Compression.md beside it.

#include "worker/records/parquet_column.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/records/packed_file.h"
#include "worker/records/thrift_compact.h"

namespace millrace {
namespace {

using Type = ThriftReader::Type;

constexpr int64_t kPlain = 0;
constexpr int64_t kPlainDictionary = 2;
constexpr int64_t kRle = 3;
constexpr int64_t kRleDictionary = 8;

constexpr int64_t kDataPage = 0;
constexpr int64_t kDictionaryPage = 2;
constexpr int64_t kDataPageV2 = 3;

// Headers hold the least and largest value of their page, which may be long.
constexpr int64_t kFirstHeaderBytes = int64_t{16} << 10;
constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;
constexpr int64_t kMaxPageBytes = int64_t{1} << 30;
// A few bytes can stand for any number of equal values. Writers put at most
// some million into a page.
constexpr int64_t kMaxPageValues = int64_t{1} << 26;

std::string EncodingName(int64_t encoding) {
  constexpr std::array<const char*, 10> kNames = {"PLAIN",
                                                  "1",
                                                  "PLAIN_DICTIONARY",
                                                  "RLE",
                                                  "BIT_PACKED",
                                                  "DELTA_BINARY_PACKED",
                                                  "DELTA_LENGTH_BYTE_ARRAY",
                                                  "DELTA_BYTE_ARRAY",
                                                  "RLE_DICTIONARY",
                                                  "BYTE_STREAM_SPLIT"};
  return encoding >= 0 && encoding < static_cast<int64_t>(kNames.size())
             ? kNames[static_cast<size_t>(encoding)]
             : absl::StrCat(encoding);
}

std::string CodecName(int32_t codec) {
  constexpr std::array<const char*, 8> kNames = {
      "none", "snappy", "gzip", "LZO", "brotli", "LZ4", "zstd", "LZ4_RAW"};
  return codec >= 0 && codec < static_cast<int32_t>(kNames.size())
             ? kNames[static_cast<size_t>(codec)]
             : absl::StrCat(codec);
}

// Bytes of a value of a fixed size; zero of others.
size_t ValueBytes(ParquetType type) {
  switch (type) {
    case ParquetType::kInt32:
    case ParquetType::kFloat:
      return 4;
    case ParquetType::kInt64:
    case ParquetType::kDouble:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T LoadAs(absl::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// Takes `size` bytes off the front; false if there are fewer.
bool TakeBytes(uint64_t size, absl::string_view* bytes,
               absl::string_view* taken) {
  if (size > bytes->size()) return false;
  *taken = bytes->substr(0, static_cast<size_t>(size));
  bytes->remove_prefix(static_cast<size_t>(size));
  return true;
}

bool TakeVarint(absl::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

// Numbers of `width` bits in runs, each of one repeated number or of packed
// ones. False if there are fewer than `count`.
bool ReadRuns(absl::string_view bytes, int width, int64_t count,
              std::vector<uint32_t>* out) {
  out->clear();
  if (width > 32) return false;
  const auto wanted = static_cast<size_t>(count);
  while (out->size() < wanted) {
    uint64_t header = 0;
    absl::string_view run;
    if (!TakeVarint(&bytes, &header)) return false;
    const size_t missing = wanted - out->size();
    if ((header & 1) == 0) {
      if (!TakeBytes(static_cast<uint64_t>((width + 7) / 8), &bytes, &run)) {
        return false;
      }
      uint32_t value = 0;
      for (size_t i = 0; i < run.size(); ++i) {
        value |= static_cast<uint32_t>(static_cast<uint8_t>(run[i])) << (8 * i);
      }
      if (header >> 1 == 0 || uint64_t{value} >> width != 0) return false;
      const uint64_t length = std::min<uint64_t>(header >> 1, missing);
      out->insert(out->end(), static_cast<size_t>(length), value);
      continue;
    }
    const uint64_t num_groups = header >> 1;
    if (num_groups == 0 || num_groups > bytes.size() + missing) return false;
    // The last group may be cut where all of its numbers are there.
    const uint64_t num_bytes = std::min<uint64_t>(
        num_groups * static_cast<uint64_t>(width), bytes.size());
    if (!TakeBytes(num_bytes, &bytes, &run)) return false;
    const uint64_t num_packed = std::min<uint64_t>(num_groups * 8, missing);
    if (num_packed * static_cast<uint64_t>(width) > run.size() * 8) {
      return false;
    }
    uint64_t buffer = 0;
    int num_bits = 0;
    size_t next = 0;
    const uint64_t mask = (uint64_t{1} << width) - 1;
    for (uint64_t i = 0; i < num_packed; ++i) {
      while (num_bits < width) {
        buffer |= static_cast<uint64_t>(static_cast<uint8_t>(run[next++]))
                  << num_bits;
        num_bits += 8;
      }
      out->push_back(static_cast<uint32_t>(buffer & mask));
      buffer >>= width;
      num_bits -= width;
    }
  }
  return true;
}

}  // namespace

struct ParquetColumn::PageHeader {
  int64_t type = -1;
  int64_t plain_bytes = -1;
  int64_t packed_bytes = -1;
  int64_t num_values = -1;
  int64_t encoding = -1;
  int64_t definition_encoding = kRle;
  int64_t repetition_encoding = kRle;
  int64_t definition_bytes = 0;  // In version 2 only.
  int64_t repetition_bytes = 0;
  bool is_packed = true;
  int64_t header_bytes = 0;
};

absl::Status ParquetColumn::Damaged(absl::string_view what) const {
  return file_.Damaged(absl::StrCat("column `", name_, "`: ", what));
}

absl::Status ParquetColumn::NotRead(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      file_.path(), ": column `", name_, "` has the ", what,
      ", which is not read; write the file with pyarrow's defaults, as in "
      "pq.write_table(table, path)"));
}

absl::StatusOr<bool> ParquetColumn::Load() {
  while (entry_idx_ == num_entries_) {
    if (num_entries_read_ >= chunk_.num_values) return false;
    RETURN_IF_ERROR(ReadPage());
  }
  return true;
}

void ParquetColumn::Drop() {
  if (has_value()) ++value_idx_;
  ++entry_idx_;
}

nlohmann::ordered_json ParquetColumn::Take(std::string* broken) {
  nlohmann::ordered_json value;
  if (has_value()) value = ToJson(values_[value_idx_], broken);
  Drop();
  return value;
}

bool ParquetColumn::ParseHeader(absl::string_view bytes, PageHeader* header) {
  ThriftReader reader(bytes);
  const auto read_integers = [&](std::array<int64_t*, 6> fields) {
    reader.ReadStruct([&reader, fields](int16_t id, Type type) {
      const bool is_known = id >= 1 && id <= 6 &&
                            fields[static_cast<size_t>(id - 1)] != nullptr &&
                            type == Type::kInt32;
      if (is_known) {
        *fields[static_cast<size_t>(id - 1)] = reader.ReadInteger();
      } else {
        reader.Skip(type);
      }
    });
  };
  reader.ReadStruct([&](int16_t id, Type type) {
    if (id >= 1 && id <= 3 && type == Type::kInt32) {
      (id == 1   ? header->type
       : id == 2 ? header->plain_bytes
                 : header->packed_bytes) = reader.ReadInteger();
    } else if (id == 5 && type == Type::kStruct) {
      read_integers({&header->num_values, &header->encoding,
                     &header->definition_encoding, &header->repetition_encoding,
                     nullptr, nullptr});
    } else if (id == 7 && type == Type::kStruct) {
      read_integers({&header->num_values, &header->encoding, nullptr, nullptr,
                     nullptr, nullptr});
    } else if (id == 8 && type == Type::kStruct) {
      reader.ReadStruct([&](int16_t inner, Type inner_type) {
        if (inner == 7) {
          header->is_packed = reader.ReadBool(inner_type);
        } else if (inner_type != Type::kInt32) {
          reader.Skip(inner_type);
        } else {
          const int64_t value = reader.ReadInteger();
          if (inner == 1) header->num_values = value;
          if (inner == 4) header->encoding = value;
          if (inner == 5) header->definition_bytes = value;
          if (inner == 6) header->repetition_bytes = value;
        }
      });
    } else {
      reader.Skip(type);
    }
  });
  header->header_bytes = static_cast<int64_t>(reader.position());
  return reader.ok();
}

absl::StatusOr<ParquetColumn::PageHeader> ParquetColumn::ReadHeader() {
  const int64_t left = chunk_.begin + chunk_.num_bytes - position_;
  for (int64_t size = kFirstHeaderBytes; size <= kMaxHeaderBytes; size *= 8) {
    ASSIGN_OR_RETURN(const std::string bytes,
                     file_.Read(position_, std::min(size, left)));
    PageHeader header;
    if (ParseHeader(bytes, &header)) {
      const int64_t page_left = left - header.header_bytes;
      if (header.packed_bytes < 0 || header.packed_bytes > page_left ||
          header.plain_bytes < 0 || header.plain_bytes > kMaxPageBytes) {
        return Damaged("a page has an impossible size");
      }
      return header;
    }
    if (size >= left) break;
  }
  return Damaged("a page's header cannot be read");
}

absl::StatusOr<std::string> ParquetColumn::Unpack(absl::string_view packed,
                                                  int64_t num_bytes) const {
  std::string plain;
  bool ok = false;
  switch (chunk_.codec) {
    case 0:
      plain = std::string(packed);
      ok = static_cast<int64_t>(plain.size()) == num_bytes;
      break;
    case 1:
      ok = UnpackSnappy(packed, num_bytes, &plain);
      break;
    case 2:
      ok = UnpackGzip(packed, num_bytes, &plain);
      break;
    case 6:
      ok = UnpackZstd(packed, num_bytes, &plain);
      break;
    default:
      return NotRead(absl::StrCat("compression ", CodecName(chunk_.codec)));
  }
  if (!ok) {
    return Damaged(
        absl::StrCat("a page's ", CodecName(chunk_.codec), " data are wrong"));
  }
  return plain;
}

absl::Status ParquetColumn::ReadPage() {
  if (position_ >= chunk_.begin + chunk_.num_bytes) {
    return Damaged("it has fewer values than the footer says");
  }
  ASSIGN_OR_RETURN(const PageHeader header, ReadHeader());
  ASSIGN_OR_RETURN(
      std::string packed,
      file_.Read(position_ + header.header_bytes, header.packed_bytes));
  position_ += header.header_bytes + header.packed_bytes;
  if (header.type == kDictionaryPage) {
    return ReadDictionary(header, std::move(packed));
  }
  if (header.type == kDataPage || header.type == kDataPageV2) {
    return ReadData(header, std::move(packed));
  }
  return absl::OkStatus();  // Pages of other types help to search.
}

absl::Status ParquetColumn::ReadDictionary(const PageHeader& header,
                                           std::string packed) {
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    return NotRead(absl::StrCat("encoding ", EncodingName(header.encoding),
                                " of its dictionary"));
  }
  ASSIGN_OR_RETURN(dictionary_bytes_, Unpack(packed, header.plain_bytes));
  return ReadPlain(header.num_values, dictionary_bytes_, &dictionary_);
}

absl::Status ParquetColumn::ReadData(const PageHeader& header,
                                     std::string packed) {
  if (header.num_values < 0 || header.num_values > kMaxPageValues ||
      header.num_values > chunk_.num_values - num_entries_read_) {
    return Damaged("a page has too many values");
  }
  if (header.definition_encoding != kRle ||
      header.repetition_encoding != kRle) {
    return NotRead("encoding BIT_PACKED of its levels");
  }
  absl::string_view rest;
  if (header.type == kDataPage) {
    ASSIGN_OR_RETURN(page_bytes_, Unpack(packed, header.plain_bytes));
    rest = page_bytes_;
    RETURN_IF_ERROR(ReadLevels(node_.max_repetition, header.num_values, -1,
                               &rest, &repetitions_));
    RETURN_IF_ERROR(ReadLevels(node_.max_definition, header.num_values, -1,
                               &rest, &definitions_));
  } else {
    // Levels of version 2 come first and are never packed.
    const int64_t most = std::min(header.packed_bytes, header.plain_bytes);
    if (header.repetition_bytes < 0 || header.repetition_bytes > most ||
        header.definition_bytes < 0 ||
        header.definition_bytes > most - header.repetition_bytes) {
      return Damaged("a page's levels are longer than the page");
    }
    const int64_t level_bytes =
        header.repetition_bytes + header.definition_bytes;
    absl::string_view levels =
        absl::string_view(packed).substr(0, static_cast<size_t>(level_bytes));
    RETURN_IF_ERROR(ReadLevels(node_.max_repetition, header.num_values,
                               header.repetition_bytes, &levels,
                               &repetitions_));
    RETURN_IF_ERROR(ReadLevels(node_.max_definition, header.num_values,
                               header.definition_bytes, &levels,
                               &definitions_));
    packed.erase(0, static_cast<size_t>(level_bytes));
    if (header.is_packed && !packed.empty()) {
      ASSIGN_OR_RETURN(page_bytes_,
                       Unpack(packed, header.plain_bytes - level_bytes));
    } else {
      page_bytes_ = std::move(packed);
    }
    rest = page_bytes_;
  }
  int64_t num_values = header.num_values;
  if (!definitions_.empty()) {
    num_values = std::count(definitions_.begin(), definitions_.end(),
                            static_cast<uint32_t>(node_.max_definition));
  }
  RETURN_IF_ERROR(ReadValues(header.encoding, num_values, rest));
  num_entries_ = static_cast<size_t>(header.num_values);
  num_entries_read_ += header.num_values;
  entry_idx_ = 0;
  value_idx_ = 0;
  return absl::OkStatus();
}

absl::Status ParquetColumn::ReadLevels(int32_t max_level, int64_t num_entries,
                                       int64_t num_bytes,
                                       absl::string_view* bytes,
                                       std::vector<uint32_t>* levels) const {
  levels->clear();
  if (num_bytes < 0) {  // Version 1: their size comes first.
    if (max_level == 0) return absl::OkStatus();
    absl::string_view size;
    if (!TakeBytes(4, bytes, &size))
      return Damaged("a page ends in its levels");
    num_bytes = LoadAs<uint32_t>(size);
  }
  absl::string_view runs;
  if (!TakeBytes(static_cast<uint64_t>(num_bytes), bytes, &runs)) {
    return Damaged("a page ends in its levels");
  }
  if (max_level == 0) return absl::OkStatus();
  const int width = std::bit_width(static_cast<uint32_t>(max_level));
  const bool ok = ReadRuns(runs, width, num_entries, levels);
  if (!ok || std::any_of(levels->begin(), levels->end(), [&](uint32_t level) {
        return level > static_cast<uint32_t>(max_level);
      })) {
    return Damaged("a page's levels are wrong");
  }
  return absl::OkStatus();
}

absl::Status ParquetColumn::ReadValues(int64_t encoding, int64_t num_values,
                                       absl::string_view bytes) {
  static constexpr absl::string_view kBooleans("\0\1", 2);
  values_.clear();
  if (encoding == kPlain) return ReadPlain(num_values, bytes, &values_);
  std::vector<uint32_t> numbers;
  if (encoding == kPlainDictionary || encoding == kRleDictionary) {
    if (num_values == 0) return absl::OkStatus();
    const int width = bytes.empty() ? 99 : static_cast<uint8_t>(bytes.front());
    if (width > 32 || !ReadRuns(bytes.substr(1), width, num_values, &numbers)) {
      return Damaged("a page's indices into the dictionary are wrong");
    }
    values_.reserve(numbers.size());
    for (const uint32_t number : numbers) {
      if (number >= dictionary_.size()) {
        return Damaged("an index is beyond the dictionary");
      }
      values_.push_back(dictionary_[number]);
    }
    return absl::OkStatus();
  }
  if (encoding == kRle && node_.type == ParquetType::kBoolean) {
    absl::string_view size;
    if (!TakeBytes(4, &bytes, &size) ||
        !ReadRuns(bytes, 1, num_values, &numbers)) {
      return Damaged("a page's values are wrong");
    }
    for (const uint32_t number : numbers) {
      values_.push_back(kBooleans.substr(number, 1));
    }
    return absl::OkStatus();
  }
  return NotRead(absl::StrCat("encoding ", EncodingName(encoding)));
}

absl::Status ParquetColumn::ReadPlain(
    int64_t num_values, absl::string_view bytes,
    std::vector<absl::string_view>* values) const {
  static constexpr absl::string_view kBooleans("\0\1", 2);
  values->clear();
  const auto count = static_cast<uint64_t>(num_values);
  const size_t value_bytes = ValueBytes(node_.type);
  // A text has the four bytes of its size at least, a truth value a bit.
  const uint64_t most = node_.type == ParquetType::kBoolean
                            ? bytes.size() * 8
                            : bytes.size() / std::max<size_t>(4, value_bytes);
  if (num_values < 0 || count > most) {
    return Damaged("a page has fewer values than it says");
  }
  values->reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) {
    absl::string_view value;
    if (node_.type == ParquetType::kBoolean) {
      const auto byte = static_cast<uint8_t>(bytes[static_cast<size_t>(i / 8)]);
      value = kBooleans.substr(byte >> (i % 8) & 1, 1);
    } else if (value_bytes > 0) {
      if (!TakeBytes(value_bytes, &bytes, &value)) {
        return Damaged("a page has fewer values than it says");
      }
    } else {
      absl::string_view size;
      if (!TakeBytes(4, &bytes, &size) ||
          !TakeBytes(LoadAs<uint32_t>(size), &bytes, &value)) {
        return Damaged("a page has fewer values than it says");
      }
    }
    values->push_back(value);
  }
  return absl::OkStatus();
}

nlohmann::ordered_json ParquetColumn::ToJson(absl::string_view value,
                                             std::string* broken) const {
  switch (node_.type) {
    case ParquetType::kBoolean:
      return value[0] != 0;
    case ParquetType::kInt32:
      if (node_.is_unsigned) return LoadAs<uint32_t>(value);
      return LoadAs<int32_t>(value);
    case ParquetType::kInt64:
      if (node_.is_unsigned) return LoadAs<uint64_t>(value);
      return LoadAs<int64_t>(value);
    case ParquetType::kFloat:
      return LoadAs<float>(value);
    case ParquetType::kDouble:
      return LoadAs<double>(value);
    default:
      break;
  }
  if (IsUtf8(value)) return std::string(value);
  if (broken->empty()) {
    *broken = absl::StrCat("expected text in UTF-8 in column `", name_,
                           "`, found bytes that are not UTF-8");
  }
  return nullptr;
}

}  // namespace millrace
