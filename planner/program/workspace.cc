#include "planner/program/workspace.h"

#include <algorithm>

#include "base/units.h"
#include "planner/program/program.h"

namespace millrace {
namespace {

constexpr int64_t kWorkspaceFloatBytes = 4;

bool HasTensorCoreKernel(int64_t head_dim) {
  return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}

}  // namespace

int64_t Bf16LogitsRowBytes(int64_t vocab_rows) {
  constexpr int64_t kRowAlignment = 16;
  return RoundUp(vocab_rows * DTypeBytes(DType::kBfloat16), kRowAlignment);
}

int64_t AttentionBackwardWorkspaceBytes(const AttentionAttributes& attention) {
  constexpr int64_t kMinimumDocumentTokens = 128;
  // The columns of the query gradient are summed in groups.
  constexpr int64_t kColumns = 64;
  constexpr int64_t kCountersPerTile = 2;
  const int64_t num_tokens =
      attention.num_sequences * attention.sequence_length;
  if (!HasTensorCoreKernel(attention.head_dim)) {
    return RoundUp(2 * attention.num_heads * num_tokens * kWorkspaceFloatBytes,
                   kBufferAlignment);
  }
  const int64_t tile_rows = attention.head_dim == 64 ? 128 : 64;
  // Whole tiles of all tokens, and one begun by each document.
  const int64_t num_documents =
      attention.num_sequences + num_tokens / kMinimumDocumentTokens;
  const int64_t num_tiles = num_tokens / tile_rows + num_documents;
  const int64_t tile_floats =
      tile_rows * (RoundUp(attention.head_dim, kColumns) + 2) +
      kCountersPerTile;
  return RoundUp(
      attention.num_heads * num_tiles * tile_floats * kWorkspaceFloatBytes,
      kBufferAlignment);
}

int64_t CrossEntropyWorkspaceBytes(const VocabAttributes& vocabulary) {
  constexpr int64_t kLossBytes = 8;
  return RoundUp(vocabulary.chunk_tokens *
                     Bf16LogitsRowBytes(vocabulary.vocab_rows),
                 kBufferAlignment) +
         RoundUp(vocabulary.num_tokens * kLossBytes, kBufferAlignment) +
         kLossGemmWorkspaceBytes;
}

int64_t ChunkTokens(Precision precision, int64_t num_tokens,
                    int64_t vocab_rows) {
  if (precision == Precision::kBfloat16) {
    constexpr int64_t kMultiple = 256;
    const int64_t most =
        std::max(kMultiple, kBf16LogitsBytes / Bf16LogitsRowBytes(vocab_rows) /
                                kMultiple * kMultiple);
    const int64_t num_chunks = (num_tokens + most - 1) / most;
    return std::min(
        num_tokens,
        RoundUp((num_tokens + num_chunks - 1) / num_chunks, kMultiple));
  }
  constexpr int64_t kMultiple = 64;
  const int64_t fitting =
      kLogitsWorkspaceBytes / (vocab_rows * DTypeBytes(DType::kFloat32));
  const int64_t chunk = std::max(kMultiple, fitting / kMultiple * kMultiple);
  return std::min(num_tokens, chunk);
}

}  // namespace millrace
