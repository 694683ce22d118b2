// IndexedDatasetWriter; the reader is in indexed_dataset.cc.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/indexed_format.h"

namespace millrace {
namespace {

using internal::BinPath;
using internal::IdxPath;
using internal::kIndexMagic;
using internal::kIndexVersion;
using internal::WithType;

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The range of ids that a type holds, as far as int32 goes.
struct TypeRange {
  int64_t lowest;
  int64_t highest;
};
template <typename T>
TypeRange RangeOf() {
  return {static_cast<int64_t>(std::numeric_limits<T>::min()),
          static_cast<int64_t>(std::numeric_limits<T>::max())};
}
TypeRange RangeOfType(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return RangeOf<uint8_t>();
    case TokenType::kInt8:
      return RangeOf<int8_t>();
    case TokenType::kInt16:
      return RangeOf<int16_t>();
    case TokenType::kInt32:
      return RangeOf<int32_t>();
    case TokenType::kInt64:
      return RangeOf<int64_t>();
    case TokenType::kUint16:
      return RangeOf<uint16_t>();
  }
  CHECK(false) << "unknown token type";
}

absl::Status WriteError(const std::string& path) {
  const std::string message =
      absl::StrCat("failed to write ", path, ": ", strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(message)
                         : absl::InternalError(message);
}

std::string TemporaryBinPath(const std::string& prefix) {
  return absl::StrCat(prefix, ".bin.tmp.", getpid());
}

}  // namespace

int64_t TokenTypeBytes(TokenType type) {
  return WithType(type, [](auto* pointer) {
    return static_cast<int64_t>(sizeof(*pointer));
  });
}

TokenType NarrowestTokenType(int64_t vocab_size) {
  return vocab_size <= int64_t{1} << 16 ? TokenType::kUint16
                                        : TokenType::kInt32;
}

std::string IndexedPrefix(const std::string& path) {
  for (const char* suffix : {".bin", ".idx"}) {
    if (absl::EndsWith(path, suffix)) return path.substr(0, path.size() - 4);
  }
  return path;
}

absl::StatusOr<IndexedDatasetWriter> IndexedDatasetWriter::Create(
    const std::string& prefix, TokenType type) {
  const std::string path = TemporaryBinPath(prefix);
  std::FILE* bin = std::fopen(path.c_str(), "wb");
  if (bin == nullptr) return WriteError(path);
  return IndexedDatasetWriter(prefix, type, bin);
}

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, TokenType type,
                                           std::FILE* bin)
    : prefix_(std::move(prefix)), type_(type), bin_(bin) {}

IndexedDatasetWriter::IndexedDatasetWriter(
    IndexedDatasetWriter&& other) noexcept
    : prefix_(std::move(other.prefix_)),
      type_(other.type_),
      bin_(std::exchange(other.bin_, nullptr)),
      lengths_(std::move(other.lengths_)),
      scratch_(std::move(other.scratch_)) {}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (bin_ == nullptr) return;
  std::fclose(bin_);
  std::remove(TemporaryBinPath(prefix_).c_str());
}

absl::Status IndexedDatasetWriter::AddDocument(
    absl::Span<const int32_t> tokens) {
  CHECK(bin_ != nullptr) << "AddDocument after Finish";
  const TypeRange range = RangeOfType(type_);
  for (const int32_t token : tokens) {
    if (token < range.lowest || token > range.highest) {
      return absl::InvalidArgumentError(
          absl::StrCat(BinPath(prefix_), ": document ", lengths_.size(),
                       ": id ", token, " is outside the token type's range [",
                       range.lowest, ", ", range.highest, "]"));
    }
  }
  scratch_.resize(tokens.size() * static_cast<size_t>(TokenTypeBytes(type_)));
  WithType(type_, [&](auto* pointer) {
    using T = std::remove_pointer_t<decltype(pointer)>;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const T value = static_cast<T>(tokens[i]);
      std::memcpy(scratch_.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  if (std::fwrite(scratch_.data(), 1, scratch_.size(), bin_) !=
      scratch_.size()) {
    return WriteError(TemporaryBinPath(prefix_));
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::Finish() {
  CHECK(bin_ != nullptr) << "Finish called twice";
  const std::string temporary = TemporaryBinPath(prefix_);
  const bool closed = std::fclose(std::exchange(bin_, nullptr)) == 0;
  if (!closed ||
      std::rename(temporary.c_str(), BinPath(prefix_).c_str()) != 0) {
    const absl::Status status = WriteError(temporary);
    std::remove(temporary.c_str());
    return status;
  }
  std::string index(kIndexMagic, sizeof(kIndexMagic));
  Append(kIndexVersion, &index);
  Append(static_cast<uint8_t>(type_), &index);
  Append(static_cast<uint64_t>(lengths_.size()), &index);
  Append(static_cast<uint64_t>(lengths_.size() + 1), &index);
  for (const int32_t length : lengths_) Append(length, &index);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    Append(pointer, &index);
    pointer += length * TokenTypeBytes(type_);
  }
  for (size_t i = 0; i <= lengths_.size(); ++i) {
    Append(static_cast<int64_t>(i), &index);
  }
  return WriteFileAtomically(IdxPath(prefix_), index);
}

}  // namespace millrace
