// The fixed facts of the .bin/.idx format, shared by reader and writer.

#ifndef MILLRACE_WORKER_DATA_INDEXED_FORMAT_H_
#define MILLRACE_WORKER_DATA_INDEXED_FORMAT_H_

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "worker/data/indexed_dataset.h"

namespace millrace::internal {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and is read in place");

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I',  'D', 'I',
                                        'D', 'X', '\0', '\0'};
inline constexpr uint64_t kIndexVersion = 1;

inline std::string BinPath(const std::string& prefix) {
  return absl::StrCat(prefix, ".bin");
}
inline std::string IdxPath(const std::string& prefix) {
  return absl::StrCat(prefix, ".idx");
}

// Calls `call` with a null pointer to the C++ type of `type`.
template <typename Call>
auto WithType(TokenType type, const Call& call) {
  switch (type) {
    case TokenType::kUint8:
      return call(static_cast<uint8_t*>(nullptr));
    case TokenType::kInt8:
      return call(static_cast<int8_t*>(nullptr));
    case TokenType::kInt16:
      return call(static_cast<int16_t*>(nullptr));
    case TokenType::kInt32:
      return call(static_cast<int32_t*>(nullptr));
    case TokenType::kInt64:
      return call(static_cast<int64_t*>(nullptr));
    case TokenType::kUint16:
      return call(static_cast<uint16_t*>(nullptr));
  }
  CHECK(false) << "unknown token type";
}

}  // namespace millrace::internal

#endif  // MILLRACE_WORKER_DATA_INDEXED_FORMAT_H_
