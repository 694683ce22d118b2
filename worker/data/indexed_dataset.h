// Tokens on disk in the .bin/.idx format of Megatron-LM, so that its users
// bring their data unchanged. docs/data.md describes the bytes.
//
// The .bin holds token ids back to back; the .idx says where sequences begin
// and which sequences make up a document. Millrace writes one sequence a
// document.

#ifndef MILLRACE_WORKER_DATA_INDEXED_DATASET_H_
#define MILLRACE_WORKER_DATA_INDEXED_DATASET_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

// Codes of the format for the type of a token id. Floating-point types (6, 7)
// exist in it but hold no ids, and are refused.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
};
int64_t TokenTypeBytes(TokenType type);
// The narrower of uint16 and int32 that holds ids below `vocab_size`.
TokenType NarrowestTokenType(int64_t vocab_size);

// "a/tokens", "a/tokens.bin" and "a/tokens.idx" all name the prefix "a/tokens".
std::string IndexedPrefix(const std::string& path);

// Writes PREFIX.bin and PREFIX.idx beside their final names and renames both in
// Finish(), the index last. Without Finish() nothing is left behind.
class IndexedDatasetWriter {
 public:
  static absl::StatusOr<IndexedDatasetWriter> Create(const std::string& prefix,
                                                     TokenType type);
  IndexedDatasetWriter(IndexedDatasetWriter&& other) noexcept;
  IndexedDatasetWriter& operator=(IndexedDatasetWriter&&) = delete;
  ~IndexedDatasetWriter();

  // One document of one sequence. InvalidArgument for an id that the type
  // cannot hold.
  absl::Status AddDocument(absl::Span<const int32_t> tokens);
  absl::Status Finish();

 private:
  IndexedDatasetWriter(std::string prefix, TokenType type, std::FILE* bin);

  std::string prefix_;
  TokenType type_;
  std::FILE* bin_;  // Owned; null once finished.
  std::vector<int32_t> lengths_;
  std::vector<char> scratch_;
};

// A memory-mapped dataset. The files must not change while it is open.
class IndexedDataset {
 public:
  // Checks both files wholly, but for the ids. NotFound if one is absent,
  // DataLoss naming file and offset if they do not fit the format or each
  // other.
  static absl::StatusOr<IndexedDataset> Open(const std::string& path);
  IndexedDataset(IndexedDataset&& other) noexcept;
  IndexedDataset& operator=(IndexedDataset&&) = delete;
  ~IndexedDataset();

  const std::string& bin_path() const { return bin_path_; }
  TokenType type() const { return type_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }

  // Position of the document's first token; of num_documents(): num_tokens().
  int64_t DocumentBegin(int64_t document_idx) const;
  // The document that holds the token at `position`, in [0, num_tokens()).
  int64_t FindDocument(int64_t position) const;

  // Copies `num_tokens` ids from `position` on. InvalidArgument naming file,
  // position, id and limit if one is outside [0, vocab_size);
  // FailedPrecondition if a file has been cut short meanwhile.
  absl::Status Read(int64_t position, int64_t num_tokens, int64_t vocab_size,
                    int32_t* out) const;

 private:
  struct Mapping {
    const char* data = nullptr;
    int64_t size = 0;
    uint64_t device = 0;  // With `inode`: which file it is of.
    uint64_t inode = 0;
  };
  IndexedDataset() = default;
  static absl::StatusOr<Mapping> MapFile(const std::string& path);
  absl::Status ParseIndex();
  absl::Status CheckSequences() const;
  absl::Status CheckDocuments() const;
  // FailedPrecondition if a file has been cut short since it was mapped.
  // Reading beyond its new end would end the process with SIGBUS.
  absl::Status CheckStillWhole() const;
  // Tokens before sequence `sequence_idx`, in [0, num_sequences_].
  int64_t SequenceBegin(int64_t sequence_idx) const;

  std::string bin_path_;
  std::string idx_path_;
  Mapping bin_;
  Mapping idx_;
  TokenType type_ = TokenType::kInt32;
  int64_t num_tokens_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  // Into idx_. Unaligned: the header has an odd size.
  const char* lengths_ = nullptr;           // i32 [num_sequences_]
  const char* pointers_ = nullptr;          // i64 [num_sequences_]
  const char* document_indices_ = nullptr;  // i64 [num_documents_ + 1]
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_INDEXED_DATASET_H_
