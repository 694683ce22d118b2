// Reads values of Thrift's compact protocol, in which Parquet files describe
// themselves. Every read is checked against the end of the bytes.

#ifndef MILLRACE_WORKER_RECORDS_THRIFT_COMPACT_H_
#define MILLRACE_WORKER_RECORDS_THRIFT_COMPACT_H_

#include <cstdint>
#include <functional>

#include "absl/strings/string_view.h"

namespace millrace {

class ThriftReader {
 public:
  // Types of values, as the protocol numbers them.
  enum Type : uint8_t {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kInt16 = 4,
    kInt32 = 5,
    kInt64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12,
  };

  explicit ThriftReader(absl::string_view bytes) : bytes_(bytes) {}

  // False once anything was wrong: every value is then zero or empty.
  bool ok() const { return ok_; }
  size_t position() const { return position_; }

  // Calls `read` for each field of a struct; it reads the value, or Skip()s.
  void ReadStruct(const std::function<void(int16_t id, Type type)>& read);
  // Calls `read` for each item of a list.
  void ReadList(const std::function<void(Type type)>& read);
  int64_t ReadInteger();  // A kByte, kInt16, kInt32 or kInt64 of a struct.
  bool ReadBool(Type type) const { return type == kTrue; }
  absl::string_view ReadBinary();
  void Skip(Type type);

 private:
  uint8_t ReadByte();
  uint64_t ReadVarint();
  void Fail() {
    ok_ = false;
    position_ = bytes_.size();
  }
  bool Enter();

  const absl::string_view bytes_;
  size_t position_ = 0;
  int depth_ = 0;
  bool ok_ = true;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_THRIFT_COMPACT_H_
