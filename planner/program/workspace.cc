#include "planner/program/workspace.h"

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

}  // namespace millrace
