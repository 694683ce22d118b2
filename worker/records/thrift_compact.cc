// The protocol: thrift-compact-protocol.md of Apache Thrift.

#include "worker/records/thrift_compact.h"

namespace millrace {
namespace {

// Parquet's structs nest less than ten deep.
constexpr int kMaxThriftDepth = 32;

int64_t FromZigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

}  // namespace

uint8_t ThriftReader::ReadByte() {
  if (position_ >= bytes_.size()) {
    Fail();
    return 0;
  }
  return static_cast<uint8_t>(bytes_[position_++]);
}

uint64_t ThriftReader::ReadVarint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = ReadByte();
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return ok_ ? value : 0;
  }
  Fail();
  return 0;
}

int64_t ThriftReader::ReadInteger() { return FromZigzag(ReadVarint()); }

absl::string_view ThriftReader::ReadBinary() {
  const uint64_t size = ReadVarint();
  if (size > bytes_.size() - position_) {
    Fail();
    return {};
  }
  const absl::string_view value =
      bytes_.substr(position_, static_cast<size_t>(size));
  position_ += static_cast<size_t>(size);
  return value;
}

bool ThriftReader::Enter() {
  if (++depth_ > kMaxThriftDepth) Fail();
  return ok_;
}

void ThriftReader::ReadStruct(const std::function<void(int16_t, Type)>& read) {
  if (!Enter()) return;
  int16_t id = 0;
  while (ok_) {
    const uint8_t header = ReadByte();
    const auto type = static_cast<Type>(header & 0x0F);
    if (!ok_ || type == kStop) break;
    const int delta = header >> 4;
    id = delta == 0 ? static_cast<int16_t>(ReadInteger())
                    : static_cast<int16_t>(id + delta);
    read(id, type);
  }
  --depth_;
}

void ThriftReader::ReadList(const std::function<void(Type)>& read) {
  if (!Enter()) return;
  const uint8_t header = ReadByte();
  const auto type = static_cast<Type>(header & 0x0F);
  uint64_t count = header >> 4;
  if (count == 15) count = ReadVarint();
  // Every item has at least a byte.
  if (count > bytes_.size() - position_) Fail();
  for (uint64_t i = 0; i < count && ok_; ++i) read(type);
  --depth_;
}

void ThriftReader::Skip(Type type) {
  if (!ok_) return;
  switch (type) {
    case kTrue:
    case kFalse:
      return;
    case kByte:
      ReadByte();
      return;
    case kInt16:
    case kInt32:
    case kInt64:
      ReadVarint();
      return;
    case kDouble:
      for (int i = 0; i < 8; ++i) ReadByte();
      return;
    case kBinary:
      ReadBinary();
      return;
    case kList:
    case kSet:
      // In lists, truth values have a byte each.
      ReadList([this](Type item) {
        item == kTrue || item == kFalse ? Skip(kByte) : Skip(item);
      });
      return;
    case kStruct:
      ReadStruct([this](int16_t, Type field) { Skip(field); });
      return;
    default:  // Maps: nothing in Parquet has one.
      Fail();
  }
}

}  // namespace millrace
