// The common part of attention's forward and backward passes: where heads lie
// in the packed rows, which keys a tile of queries sees, and masks.
//
// Scores are kept transposed, keys down and queries across. A vector then holds
// many queries of one key, so softmax needs no sums across lanes. Keys and
// values are read as they lie, one element at a time, and broadcast.

#ifndef MILLRACE_KERNELS_CPU_ATTENTION_TILE_H_
#define MILLRACE_KERNELS_CPU_ATTENTION_TILE_H_

#include "kernels/attention/attention.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/tile_gemm.h"
#include "kernels/cpu/vector.h"
#include "kernels/cpu/vector_math.h"

namespace millrace {
namespace {

constexpr int64_t kTile = kAttentionTile;  // Queries across, keys down.
constexpr int64_t kDiagonalSpan = 16;      // Keys down where masks cut.
constexpr double kLog2EDouble = 1.4426950408889634;

// One query tile of one head of one sequence.
struct QueryTile {
  int64_t first;  // Query index within the sequence.
  int64_t num_queries;
  int64_t cols;        // num_queries rounded up to whole vectors.
  int64_t first_key;   // No query sees a key before this; a multiple of kTile.
  int64_t full_begin;  // Every query sees all keys in [full_begin, first].
  alignas(64) int32_t key_begin[kTile];  // Keys that query i sees; none for
  alignas(64) int32_t key_end[kTile];    // queries beyond num_queries.
};

inline void InitializeQueryTile(QueryTile& tile, const AttentionShape& shape,
                                const int32_t* document_starts,
                                int64_t sequence, int64_t first) {
  const int64_t left = shape.sequence_length - first;
  tile.first = first;
  tile.num_queries = left < kTile ? left : kTile;
  tile.cols = (tile.num_queries + kLanes - 1) / kLanes * kLanes;
  const auto key_begin_of = [&](int64_t query) {
    const int64_t start =
        document_starts[sequence * shape.sequence_length + query];
    const int64_t in_window =
        shape.window > 0 ? query - shape.window + 1 : int64_t{0};
    return static_cast<int32_t>(start > in_window ? start : in_window);
  };
  int32_t least = key_begin_of(first);
  int32_t most = least;
  for (int64_t i = 0; i < kTile; ++i) {
    if (i >= tile.num_queries) {
      tile.key_begin[i] = tile.key_end[i] = 0;
      continue;
    }
    const int32_t start = key_begin_of(first + i);
    tile.key_begin[i] = start;
    tile.key_end[i] = static_cast<int32_t>(first + i + 1);
    least = start < least ? start : least;
    most = start > most ? start : most;
  }
  tile.first_key = least / kTile * kTile;
  tile.full_begin = most;
}

// Keys [begin, end) of one block; queries before column first_col see none.
struct KeySpan {
  int64_t begin;
  int64_t end;
  int64_t first_col;  // A multiple of kLanes.
};

// A block of kTile keys is one span below the diagonal and spans of
// kDiagonalSpan on it, which skip the columns that causality leaves empty.
struct KeyBlock {
  int64_t begin;
  int64_t end;
  bool masked;
  int num_spans;
  KeySpan spans[kTile / kDiagonalSpan];
};

inline KeyBlock MakeKeyBlock(const QueryTile& tile, int64_t begin) {
  KeyBlock block;
  const int64_t last = tile.first + tile.num_queries;
  block.begin = begin;
  block.end = begin + kTile < last ? begin + kTile : last;
  const bool on_diagonal = block.end > tile.first + 1;
  block.masked =
      on_diagonal || begin < tile.full_begin || tile.cols != tile.num_queries;
  block.num_spans = 0;
  const int64_t step = on_diagonal ? kDiagonalSpan : kTile;
  for (int64_t key = begin; key < block.end; key += step) {
    const int64_t first_query = key > tile.first ? key - tile.first : 0;
    block.spans[block.num_spans++] = {
        key, key + step < block.end ? key + step : block.end,
        first_query / kLanes * kLanes};
  }
  return block;
}

// Whether the queries of column `col` on see key `key`, as all ones or zero.
inline Ints Visible(const QueryTile& tile, int64_t col, int64_t key) {
  Ints begin, end;
  __builtin_memcpy(&begin, tile.key_begin + col, sizeof(begin));
  __builtin_memcpy(&end, tile.key_end + col, sizeof(end));
  const int32_t key32 = static_cast<int32_t>(key);
  return (begin <= key32) & (end > key32);
}

// Where a head's rows lie.
struct HeadRows {
  int64_t stride;  // Stride of qkv, in floats.
  int64_t query;   // Offsets of the heads in a row.
  int64_t key;
  int64_t value;
};

inline HeadRows LocateHead(const AttentionShape& shape, int64_t head) {
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  return {(shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
          head * shape.head_dim, (shape.num_heads + kv_head) * shape.head_dim,
          (shape.num_heads + shape.num_kv_heads + kv_head) * shape.head_dim};
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_ATTENTION_TILE_H_
