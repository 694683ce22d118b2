// Attention, forward: one tile of queries against all blocks of keys it sees,
// with a running maximum and sum per query. Bound by multiply-adds; the
// exponentials cost about as much as head_dim 10 does.

#ifndef MILLRACE_KERNELS_CPU_ATTENTION_FORWARD_LOOPS_H_
#define MILLRACE_KERNELS_CPU_ATTENTION_FORWARD_LOOPS_H_

#include "kernels/cpu/attention_tile.h"

namespace millrace {
namespace {

struct ForwardTiles {
  alignas(64) float query[kMaxAttentionHeadDim * kTile];   // [head_dim, query]
  alignas(64) float output[kMaxAttentionHeadDim * kTile];  // [head_dim, query]
  alignas(64) float scores[kTile * kTile];                 // [key, query]
  alignas(64) float maximum[kTile];  // Largest score so far, base 2.
  alignas(64) float sum[kTile];
};

// Scores of one span of keys, in base 2, to what the softcap leaves of them.
inline void CapScores(float* scores, const QueryTile& tile, const KeySpan& span,
                      float softcap) {
  const float cap = static_cast<float>(kLog2EDouble * softcap);
  for (int64_t key = 0; key < span.end - span.begin; ++key) {
    for (int64_t col = span.first_col; col < tile.cols; col += kLanes) {
      float* score = scores + key * kTile + col;
      Store(score, cap * Tanh(Load(score) / cap));
    }
  }
}

// scores = keys query; minus infinity where a query does not see a key.
inline void ComputeScores(ForwardTiles& tiles, const QueryTile& tile,
                          const KeyBlock& block, const float* keys,
                          int64_t key_stride, const AttentionShape& shape) {
  for (int s = 0; s < block.num_spans; ++s) {
    const KeySpan& span = block.spans[s];
    float* scores = tiles.scores + (span.begin - block.begin) * kTile;
    TileGemm({.c = scores + span.first_col,
              .c_stride = kTile,
              .a = keys + span.begin * key_stride,
              .a_row = key_stride,
              .a_step = 1,
              .b = tiles.query + span.first_col,
              .b_stride = kTile,
              .rows = span.end - span.begin,
              .cols = tile.cols - span.first_col,
              .depth = shape.head_dim,
              .accumulate = false});
    if (shape.softcap > 0) CapScores(scores, tile, span, shape.softcap);
    if (!block.masked) continue;
    const Floats hidden = Broadcast(-__builtin_inff());
    for (int64_t key = span.begin; key < span.end; ++key) {
      float* row = tiles.scores + (key - block.begin) * kTile;
      for (int64_t col = 0; col < span.first_col; col += kLanes) {
        Store(row + col, hidden);
      }
      for (int64_t col = span.first_col; col < tile.cols; col += kLanes) {
        Store(row + col, Visible(tile, col, key) ? Load(row + col) : hidden);
      }
    }
  }
}

// Turns scores into exponentials relative to the new maximum, and brings sum
// and output to it.
inline void UpdateSoftmax(ForwardTiles& tiles, const QueryTile& tile,
                          int64_t num_keys, int64_t head_dim) {
  for (int64_t col = 0; col < tile.cols; col += kLanes) {
    const Floats before = Load(tiles.maximum + col);
    Floats maximum = before;
    for (int64_t key = 0; key < num_keys; ++key) {
      maximum = Maximum(maximum, Load(tiles.scores + key * kTile + col));
    }
    // A query that has seen no key yet keeps a maximum of minus infinity;
    // subtracting zero instead makes its exponentials zero, not NaN.
    const Floats reference = maximum == -__builtin_inff() ? Floats{} : maximum;
    const Floats rescale = Exp2Flushed(before - reference);
    Floats sum = Load(tiles.sum + col) * rescale;
    for (int64_t key = 0; key < num_keys; ++key) {
      float* score = tiles.scores + key * kTile + col;
      const Floats p = Exp2Flushed(Load(score) - reference);
      Store(score, p);
      sum += p;
    }
    Store(tiles.maximum + col, maximum);
    Store(tiles.sum + col, sum);
    for (int64_t d = 0; d < head_dim; ++d) {
      float* output = tiles.output + d * kTile + col;
      Store(output, Load(output) * rescale);
    }
  }
}

inline void AddValues(ForwardTiles& tiles, const QueryTile& tile,
                      const KeyBlock& block, const float* values,
                      int64_t value_stride, int64_t head_dim) {
  for (int s = 0; s < block.num_spans; ++s) {
    const KeySpan& span = block.spans[s];
    TileGemm({.c = tiles.output + span.first_col,
              .c_stride = kTile,
              .a = values + span.begin * value_stride,
              .a_row = 1,
              .a_step = value_stride,
              .b = tiles.scores + (span.begin - block.begin) * kTile +
                   span.first_col,
              .b_stride = kTile,
              .rows = head_dim,
              .cols = tile.cols - span.first_col,
              .depth = span.end - span.begin,
              .accumulate = true});
  }
}

void AttentionForwardTile(const AttentionForwardArgs& args, int64_t sequence,
                          int64_t head, int64_t first_query) {
  const AttentionShape& shape = args.shape;
  const HeadRows rows = LocateHead(shape, head);
  const int64_t first_token = sequence * shape.sequence_length;
  const float* qkv = args.qkv + first_token * rows.stride;
  const int64_t head_dim = shape.head_dim;

  QueryTile tile;
  InitializeQueryTile(tile, shape, args.document_starts, sequence, first_query);
  ForwardTiles tiles;
  const float scale = static_cast<float>(
      kLog2EDouble / __builtin_sqrt(static_cast<double>(head_dim)));
  if (tile.cols != tile.num_queries) {
    for (int64_t i = 0; i < head_dim * kTile; ++i) tiles.query[i] = 0.0f;
  }
  TransposeTile(tiles.query, kTile,
                qkv + first_query * rows.stride + rows.query, rows.stride,
                tile.num_queries, head_dim, scale);
  for (int64_t i = 0; i < head_dim * kTile; ++i) tiles.output[i] = 0.0f;
  for (int64_t i = 0; i < kTile; ++i) {
    tiles.maximum[i] = -__builtin_inff();
    tiles.sum[i] = 0.0f;
  }

  const int64_t key_end = first_query + tile.num_queries;
  for (int64_t key = tile.first_key; key < key_end; key += kTile) {
    const KeyBlock block = MakeKeyBlock(tile, key);
    ComputeScores(tiles, tile, block, qkv + rows.key, rows.stride, shape);
    UpdateSoftmax(tiles, tile, block.end - block.begin, head_dim);
    AddValues(tiles, tile, block, qkv + rows.value, rows.stride, head_dim);
  }

  constexpr float kLn2 = 0.693147180559945309f;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  float* lse = args.lse + head * num_tokens + first_token + first_query;
  for (int64_t i = 0; i < tile.num_queries; ++i) {
    lse[i] = (tiles.maximum[i] + __builtin_log2f(tiles.sum[i])) * kLn2;
  }
  for (int64_t col = 0; col < tile.cols; col += kLanes) {
    const Floats factor = 1.0f / Load(tiles.sum + col);
    for (int64_t d = 0; d < head_dim; ++d) {
      float* output = tiles.output + d * kTile + col;
      Store(output, Load(output) * factor);
    }
  }
  const int64_t o_stride = shape.num_heads * head_dim;
  TransposeTile(
      args.o + (first_token + first_query) * o_stride + head * head_dim,
      o_stride, tiles.output, kTile, head_dim, tile.num_queries, 1.0f);
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_ATTENTION_FORWARD_LOOPS_H_
