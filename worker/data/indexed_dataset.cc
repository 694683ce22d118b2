#include "worker/data/indexed_dataset.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "worker/data/indexed_format.h"

namespace millrace {
namespace {

using internal::BinPath;
using internal::IdxPath;
using internal::kIndexMagic;
using internal::kIndexVersion;
using internal::WithType;

constexpr int64_t kVersionOffset = sizeof(kIndexMagic);
constexpr int64_t kTypeOffset = kVersionOffset + 8;
constexpr int64_t kSequenceCountOffset = kTypeOffset + 1;
constexpr int64_t kDocumentCountOffset = kSequenceCountOffset + 8;
constexpr int64_t kHeaderBytes = kDocumentCountOffset + 8;

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

absl::Status DamagedAt(const std::string& path, int64_t offset,
                       const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": byte ", offset, ": ", what));
}

// Converts `count` ids of type T. Returns the first that is out of range, or
// `count`.
template <typename T>
int64_t Widen(const char* in, int64_t count, int64_t vocab_size, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id =
        static_cast<int64_t>(Load<T>(in + i * static_cast<int64_t>(sizeof(T))));
    if (id < 0 || id >= vocab_size) return i;
    out[i] = static_cast<int32_t>(id);
  }
  return count;
}

}  // namespace

absl::StatusOr<IndexedDataset> IndexedDataset::Open(const std::string& path) {
  IndexedDataset dataset;
  const std::string prefix = IndexedPrefix(path);
  dataset.bin_path_ = BinPath(prefix);
  dataset.idx_path_ = IdxPath(prefix);
  ASSIGN_OR_RETURN(dataset.idx_, MapFile(dataset.idx_path_));
  ASSIGN_OR_RETURN(dataset.bin_, MapFile(dataset.bin_path_));
  RETURN_IF_ERROR(dataset.ParseIndex());
  RETURN_IF_ERROR(dataset.CheckSequences());
  RETURN_IF_ERROR(dataset.CheckDocuments());
  dataset.num_tokens_ = dataset.bin_.size / TokenTypeBytes(dataset.type_);
  return dataset;
}

IndexedDataset::IndexedDataset(IndexedDataset&& other) noexcept
    : bin_path_(std::move(other.bin_path_)),
      idx_path_(std::move(other.idx_path_)),
      bin_(std::exchange(other.bin_, {})),
      idx_(std::exchange(other.idx_, {})),
      type_(other.type_),
      num_tokens_(other.num_tokens_),
      num_sequences_(other.num_sequences_),
      num_documents_(other.num_documents_),
      lengths_(other.lengths_),
      pointers_(other.pointers_),
      document_indices_(other.document_indices_) {}

IndexedDataset::~IndexedDataset() {
  for (const Mapping& mapping : {bin_, idx_}) {
    if (mapping.data != nullptr) {
      munmap(const_cast<char*>(mapping.data),
             static_cast<size_t>(mapping.size));
    }
  }
}

absl::StatusOr<IndexedDataset::Mapping> IndexedDataset::MapFile(
    const std::string& path) {
  const absl::StatusOr<int> opened = OpenRegularFile(path);
  if (!opened.ok()) {
    return absl::Status(
        opened.status().code(),
        absl::StrCat(opened.status().message(),
                     "; data.indexed names the prefix of a .bin and a .idx"));
  }
  const int file = *opened;
  struct stat info {};
  Mapping mapping;
  absl::Status status;
  if (fstat(file, &info) != 0) {
    status = absl::InternalError(
        absl::StrCat("failed to look at ", path, ": ", strerror(errno)));
  } else if (info.st_size > 0) {  // An empty file cannot be mapped.
    void* data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ,
                      MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      status = absl::InternalError(
          absl::StrCat("failed to map ", path, ": ", strerror(errno)));
    } else {
      mapping = {static_cast<const char*>(data), info.st_size, info.st_dev,
                 info.st_ino};
    }
  }
  close(file);
  if (!status.ok()) return status;
  return mapping;
}

absl::Status IndexedDataset::ParseIndex() {
  if (idx_.size < kHeaderBytes) {
    return DamagedAt(idx_path_, idx_.size,
                     absl::StrCat("the file ends within the header of ",
                                  kHeaderBytes, " bytes"));
  }
  if (std::memcmp(idx_.data, kIndexMagic, sizeof(kIndexMagic)) != 0) {
    return DamagedAt(idx_path_, 0,
                     "no MMIDIDX mark: not an index of the mmap kind");
  }
  const auto version = Load<uint64_t>(idx_.data + kVersionOffset);
  if (version != kIndexVersion) {
    return DamagedAt(idx_path_, kVersionOffset,
                     absl::StrCat("version ", version, ", only ", kIndexVersion,
                                  " is known"));
  }
  const auto type = Load<uint8_t>(idx_.data + kTypeOffset);
  if (type < 1 || type > 8 || type == 6 || type == 7) {
    return DamagedAt(idx_path_, kTypeOffset,
                     absl::StrCat("type code ", static_cast<int>(type),
                                  " is not one of integers (1 to 5, 8)"));
  }
  type_ = static_cast<TokenType>(type);

  const auto num_sequences = Load<uint64_t>(idx_.data + kSequenceCountOffset);
  const auto num_indices = Load<uint64_t>(idx_.data + kDocumentCountOffset);
  // Bounds each count before the sum below could overflow.
  const auto limit = static_cast<uint64_t>(idx_.size) / 8;
  if (num_sequences > limit || num_indices > limit || num_indices == 0) {
    return DamagedAt(
        idx_path_, kSequenceCountOffset,
        absl::StrCat("counts of ", num_sequences, " sequences and ",
                     num_indices, " document indices do not fit a file of ",
                     idx_.size, " bytes"));
  }
  num_sequences_ = static_cast<int64_t>(num_sequences);
  num_documents_ = static_cast<int64_t>(num_indices) - 1;
  const int64_t expected =
      kHeaderBytes + 12 * num_sequences_ + 8 * (num_documents_ + 1);
  // Multimodal writers add one byte a sequence; text has no use for it.
  if (idx_.size != expected && idx_.size != expected + num_sequences_) {
    return DamagedAt(idx_path_, idx_.size,
                     absl::StrCat("the file ends here, but its counts ask for ",
                                  expected, " bytes"));
  }
  lengths_ = idx_.data + kHeaderBytes;
  pointers_ = lengths_ + 4 * num_sequences_;
  document_indices_ = pointers_ + 8 * num_sequences_;
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckSequences() const {
  const int64_t token_bytes = TokenTypeBytes(type_);
  int64_t expected_pointer = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const char* length_at = lengths_ + 4 * i;
    const char* pointer_at = pointers_ + 8 * i;
    const auto length = Load<int32_t>(length_at);
    const auto pointer = Load<int64_t>(pointer_at);
    if (length < 0) {
      return DamagedAt(idx_path_, length_at - idx_.data,
                       absl::StrCat("sequence ", i, " has length ", length));
    }
    if (pointer != expected_pointer) {
      return DamagedAt(
          idx_path_, pointer_at - idx_.data,
          absl::StrCat("sequence ", i, " begins at byte ", pointer,
                       ", but the one before ends at byte ", expected_pointer));
    }
    expected_pointer += length * token_bytes;
    if (expected_pointer > bin_.size) {
      return DamagedAt(
          idx_path_, pointer_at - idx_.data,
          absl::StrCat("sequence ", i, " ends at byte ", expected_pointer,
                       " of ", bin_path_, ", which has ", bin_.size, " bytes"));
    }
  }
  if (expected_pointer != bin_.size) {
    return DamagedAt(
        bin_path_, expected_pointer,
        absl::StrCat("the last sequence of ", idx_path_,
                     " ends here, but the file has ", bin_.size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckDocuments() const {
  int64_t previous = 0;
  for (int64_t i = 0; i <= num_documents_; ++i) {
    const char* at = document_indices_ + 8 * i;
    const auto index = Load<int64_t>(at);
    if ((i == 0 && index != 0) || index < previous || index > num_sequences_) {
      return DamagedAt(idx_path_, at - idx_.data,
                       absl::StrCat("document ", i, " begins at sequence ",
                                    index, ", expected from ", previous, " to ",
                                    i == 0 ? 0 : num_sequences_));
    }
    previous = index;
  }
  if (previous != num_sequences_) {
    return DamagedAt(idx_path_,
                     document_indices_ + 8 * num_documents_ - idx_.data,
                     absl::StrCat("the documents end at sequence ", previous,
                                  " of ", num_sequences_));
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckStillWhole() const {
  for (const auto& [path, mapping] :
       {std::pair{&bin_path_, &bin_}, std::pair{&idx_path_, &idx_}}) {
    struct stat info {};
    // A file that was removed or replaced by another lives on in the mapping.
    if (stat(path->c_str(), &info) != 0 || info.st_dev != mapping->device ||
        info.st_ino != mapping->inode || info.st_size >= mapping->size) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        *path, " was cut from ", mapping->size, " to ", info.st_size,
        " bytes while it was read; bring the whole file back, and put new data "
        "under another name"));
  }
  return absl::OkStatus();
}

int64_t IndexedDataset::SequenceBegin(int64_t sequence_idx) const {
  if (sequence_idx == num_sequences_) return num_tokens_;
  return Load<int64_t>(pointers_ + 8 * sequence_idx) / TokenTypeBytes(type_);
}

int64_t IndexedDataset::DocumentBegin(int64_t document_idx) const {
  CHECK(document_idx >= 0 && document_idx <= num_documents_) << document_idx;
  return SequenceBegin(Load<int64_t>(document_indices_ + 8 * document_idx));
}

int64_t IndexedDataset::FindDocument(int64_t position) const {
  CHECK(position >= 0 && position < num_tokens()) << position;
  // The last document that begins at or before `position`: empty ones that
  // begin at the same place come earlier.
  int64_t low = 0;
  int64_t high = num_documents_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DocumentBegin(middle) <= position ? low : high) = middle;
  }
  return low;
}

absl::Status IndexedDataset::Read(int64_t position, int64_t num_tokens,
                                  int64_t vocab_size, int32_t* out) const {
  CHECK(position >= 0 && num_tokens >= 0 &&
        num_tokens <= num_tokens_ - position)
      << position << " + " << num_tokens;
  RETURN_IF_ERROR(CheckStillWhole());
  const char* in = bin_.data + position * TokenTypeBytes(type_);
  const int64_t done = WithType(type_, [&](auto* pointer) {
    return Widen<std::remove_pointer_t<decltype(pointer)>>(in, num_tokens,
                                                           vocab_size, out);
  });
  if (done == num_tokens) return absl::OkStatus();
  const int64_t bad = WithType(type_, [&](auto* pointer) {
    return static_cast<int64_t>(Load<std::remove_pointer_t<decltype(pointer)>>(
        in + done * static_cast<int64_t>(sizeof(*pointer))));
  });
  return absl::InvalidArgumentError(absl::StrCat(
      bin_path_, ": token ", position + done, " has id ", bad, ", outside [0, ",
      vocab_size, "): model.vocab_size must be above every id in the data"));
}

}  // namespace millrace
