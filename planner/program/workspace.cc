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

// The fp32 sums of Hopper's kernel for the gradients of keys and values, where
// it divides the query heads of a key head into parts: NumKeyParts() of
// kernels/attention/attention_bf16_backward_prepare.cuh.
int64_t KeyPartFloats(const AttentionAttributes& attention,
                      int64_t num_documents) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  constexpr int64_t kColumns = 64;
  const bool is_windowed =
      attention.window != 0 && attention.window < attention.sequence_length;
  const int64_t enough_blocks = is_windowed ? 128 : 256;
  const int64_t num_tokens =
      attention.num_sequences * attention.sequence_length;
  const int64_t block_rows = attention.head_dim <= 128 ? 128 : 64;
  const int64_t columns = RoundUp(attention.head_dim, kColumns);
  const int64_t num_blocks = num_tokens / block_rows * attention.num_kv_heads;
  const int64_t heads_per_kv = attention.num_heads / attention.num_kv_heads;
  const int64_t query_head_bytes =
      attention.sequence_length * columns * int64_t{2 + 2 + 4};
  int64_t num_parts = 1;
  const auto needs_more = [&] {
    const int64_t heads = heads_per_kv / num_parts;
    return num_parts * num_blocks < enough_blocks ||
           (!is_windowed && heads > 2 &&
            heads * query_head_bytes > kCacheBytes);
  };
  while (heads_per_kv % (2 * num_parts) == 0 && needs_more()) num_parts *= 2;
  if (num_parts == 1) return 0;
  return num_parts * attention.num_kv_heads *
         (num_tokens / block_rows + num_documents) * 2 * block_rows * columns;
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
  return RoundUp((attention.num_heads * num_tiles * tile_floats +
                  KeyPartFloats(attention, num_documents)) *
                     kWorkspaceFloatBytes,
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
