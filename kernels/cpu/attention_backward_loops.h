// Attention, backward: all query heads of one key-value head of one sequence,
// so that no two threads add to one gradient. For each tile of queries and
// block of keys the probabilities are recomputed from the kept log-sum-exp.
// Five small matrix products a tile; bound by multiply-adds.

#ifndef MILLRACE_KERNELS_CPU_ATTENTION_BACKWARD_LOOPS_H_
#define MILLRACE_KERNELS_CPU_ATTENTION_BACKWARD_LOOPS_H_

#include "kernels/cpu/attention_tile.h"

namespace millrace {
namespace {

// Row tiles have head_dim columns rounded up to whole vectors; what is beyond
// head_dim is zero.
struct BackwardTiles {
  alignas(64) float query_t[kMaxAttentionHeadDim * kTile];  // [head_dim, query]
  alignas(64) float d_o_t[kMaxAttentionHeadDim * kTile];    // [head_dim, query]
  alignas(64) float query[kTile * kMaxAttentionHeadDim];
  alignas(64) float d_o[kTile * kMaxAttentionHeadDim];
  alignas(64) float key[kTile * kMaxAttentionHeadDim];
  alignas(64) float d_query[kTile * kMaxAttentionHeadDim];
  alignas(64) float block[kTile * kMaxAttentionHeadDim];  // For d_key, d_value.
  alignas(64) float p[kTile * kTile];                     // [key, query]
  alignas(64) float ds[kTile * kTile];                    // [key, query]
  alignas(64) float lse[kTile];                           // In base 2.
  alignas(64) float delta[kTile];
};

struct BackwardHead {
  int64_t head_dim;
  int64_t padded_dim;  // head_dim rounded up to whole vectors.
  float scale;         // 1 / sqrt(head_dim).
  float cap;           // The softcap in base 2; 0: none.
  HeadRows rows;
  const float* qkv;  // Start of the sequence, as in the next two.
  float* d_qkv;
};

// Fills rows up to whole vectors with zeros.
inline void CopyRowsIn(float* to, int64_t to_stride, const float* from,
                       int64_t from_stride, int64_t num_rows, int64_t cols) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* source = from + row * from_stride;
    float* target = to + row * to_stride;
    int64_t col = 0;
    for (; col + kLanes <= cols; col += kLanes) {
      Store(target + col, Load(source + col));
    }
    if (col < cols) {
      Store(target + col, LoadPartial(source + col, cols - col));
    }
  }
}

inline void CopyRowsOut(float* to, int64_t to_stride, const float* from,
                        int64_t from_stride, int64_t num_rows, int64_t cols) {
  for (int64_t row = 0; row < num_rows; ++row) {
    float* target = to + row * to_stride;
    const float* source = from + row * from_stride;
    ForEachVector(0, cols, [=](const auto& load, const auto& store) {
      store(target, load(source));
    });
  }
}

inline void AddRows(float* to, int64_t to_stride, const float* from,
                    int64_t from_stride, int64_t num_rows, int64_t cols) {
  for (int64_t row = 0; row < num_rows; ++row) {
    float* target = to + row * to_stride;
    const float* source = from + row * from_stride;
    ForEachVector(0, cols, [=](const auto& load, const auto& store) {
      store(target, load(target) + load(source));
    });
  }
}

inline void LoadQueryTile(BackwardTiles& tiles, const BackwardHead& head,
                          const QueryTile& tile, const float* d_o,
                          int64_t o_stride) {
  const int64_t head_dim = head.head_dim;
  const float* query =
      head.qkv + tile.first * head.rows.stride + head.rows.query;
  if (tile.cols != tile.num_queries) {
    for (int64_t i = 0; i < head_dim * kTile; ++i) {
      tiles.query_t[i] = tiles.d_o_t[i] = 0.0f;
    }
  }
  TransposeTile(tiles.query_t, kTile, query, head.rows.stride, tile.num_queries,
                head_dim, static_cast<float>(kLog2EDouble * head.scale));
  TransposeTile(tiles.d_o_t, kTile, d_o, o_stride, tile.num_queries, head_dim,
                1.0f);
  CopyRowsIn(tiles.query, head.padded_dim, query, head.rows.stride,
             tile.num_queries, head_dim);
  CopyRowsIn(tiles.d_o, head.padded_dim, d_o, o_stride, tile.num_queries,
             head_dim);
  for (int64_t i = 0; i < tile.num_queries * head.padded_dim; ++i) {
    tiles.d_query[i] = 0.0f;
  }
}

// p = exp(scores - lse) and ds = p (d_p - delta) scale of one span.
inline void ComputeScoreGradients(BackwardTiles& tiles,
                                  const BackwardHead& head,
                                  const QueryTile& tile, const KeyBlock& block,
                                  const KeySpan& span) {
  const int64_t offset = (span.begin - block.begin) * kTile;
  TileGemmArgs product = {
      .c = tiles.p + offset + span.first_col,
      .c_stride = kTile,
      .a = tiles.key + (span.begin - block.begin) * head.padded_dim,
      .a_row = head.padded_dim,
      .a_step = 1,
      .b = tiles.query_t + span.first_col,
      .b_stride = kTile,
      .rows = span.end - span.begin,
      .cols = tile.cols - span.first_col,
      .depth = head.head_dim,
      .accumulate = false};
  TileGemm(product);
  product.c = tiles.ds + offset + span.first_col;
  product.a = head.qkv + span.begin * head.rows.stride + head.rows.value;
  product.a_row = head.rows.stride;
  product.b = tiles.d_o_t + span.first_col;
  TileGemm(product);

  for (int64_t col = span.first_col; col < tile.cols; col += kLanes) {
    const Floats lse = Load(tiles.lse + col);
    const Floats delta = Load(tiles.delta + col);
    for (int64_t key = span.begin; key < span.end; ++key) {
      float* p_row = tiles.p + (key - block.begin) * kTile + col;
      float* ds_row = tiles.ds + (key - block.begin) * kTile + col;
      Floats score = Load(p_row);
      Floats slope = Broadcast(head.scale);
      if (head.cap > 0) {
        const Floats share = Tanh(score / head.cap);
        score = head.cap * share;
        slope *= 1.0f - share * share;
      }
      Floats p = Exp2Flushed(score - lse);
      if (block.masked) p = Visible(tile, col, key) ? p : Floats{};
      Store(p_row, p);
      Store(ds_row, p * (Load(ds_row) - delta) * slope);
    }
  }
}

// Adds the span's part to d_query, d_key and d_value.
inline void AddInputGradients(BackwardTiles& tiles, const BackwardHead& head,
                              const QueryTile& tile, const KeyBlock& block,
                              const KeySpan& span) {
  const int64_t stride = head.padded_dim;
  const int64_t num_keys = span.end - span.begin;
  const int64_t offset = (span.begin - block.begin) * kTile + span.first_col;
  TileGemm({.c = tiles.d_query + span.first_col * stride,
            .c_stride = stride,
            .a = tiles.ds + offset,
            .a_row = 1,
            .a_step = kTile,
            .b = tiles.key + (span.begin - block.begin) * stride,
            .b_stride = stride,
            .rows = tile.num_queries - span.first_col,
            .cols = stride,
            .depth = num_keys,
            .accumulate = true});
  TileGemmArgs product = {.c = tiles.block,
                          .c_stride = stride,
                          .a = tiles.ds + offset,
                          .a_row = kTile,
                          .a_step = 1,
                          .b = tiles.query + span.first_col * stride,
                          .b_stride = stride,
                          .rows = num_keys,
                          .cols = stride,
                          .depth = tile.num_queries - span.first_col,
                          .accumulate = false};
  float* d_rows = head.d_qkv + span.begin * head.rows.stride;
  TileGemm(product);
  AddRows(d_rows + head.rows.key, head.rows.stride, tiles.block, stride,
          num_keys, head.head_dim);
  product.a = tiles.p + offset;
  product.b = tiles.d_o + span.first_col * stride;
  TileGemm(product);
  AddRows(d_rows + head.rows.value, head.rows.stride, tiles.block, stride,
          num_keys, head.head_dim);
}

void AttentionBackwardHead(const AttentionBackwardArgs& args, int64_t sequence,
                           int64_t kv_head) {
  const AttentionShape& shape = args.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t first_token = sequence * shape.sequence_length;
  const int64_t num_tokens = shape.num_sequences * shape.sequence_length;
  const int64_t o_stride = shape.num_heads * head_dim;
  BackwardHead head;
  head.head_dim = head_dim;
  head.padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes;
  head.scale =
      static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(head_dim)));
  head.cap = static_cast<float>(kLog2EDouble * shape.softcap);
  head.rows = LocateHead(shape, kv_head * group);
  head.qkv = args.qkv + first_token * head.rows.stride;
  head.d_qkv = args.d_qkv + first_token * head.rows.stride;
  for (int64_t t = 0; t < shape.sequence_length; ++t) {
    float* row = head.d_qkv + t * head.rows.stride;
    for (int64_t d = 0; d < head_dim; ++d) {
      row[head.rows.key + d] = row[head.rows.value + d] = 0.0f;
    }
  }

  BackwardTiles tiles;
  QueryTile tile;
  for (int64_t first = 0; first < shape.sequence_length; first += kTile) {
    InitializeQueryTile(tile, shape, args.document_starts, sequence, first);
    for (int64_t n = kv_head * group; n < (kv_head + 1) * group; ++n) {
      head.rows = LocateHead(shape, n);
      const int64_t token = first_token + first;
      const float* o = args.o + token * o_stride + n * head_dim;
      const float* d_o = args.d_o + token * o_stride + n * head_dim;
      LoadQueryTile(tiles, head, tile, d_o, o_stride);
      for (int64_t i = 0; i < kTile; ++i) {
        tiles.lse[i] = tiles.delta[i] = 0.0f;
      }
      for (int64_t i = 0; i < tile.num_queries; ++i) {
        Floats sum = {};
        ForEachVector(0, head_dim, [&](const auto& load, const auto&) {
          sum += load(o + i * o_stride) * load(d_o + i * o_stride);
        });
        tiles.delta[i] = SumOfLanes(sum);
        args.delta[n * num_tokens + token + i] = tiles.delta[i];
        tiles.lse[i] = static_cast<float>(args.lse[n * num_tokens + token + i] *
                                          kLog2EDouble);
      }
      const int64_t key_end = first + tile.num_queries;
      for (int64_t key = tile.first_key; key < key_end; key += kTile) {
        const KeyBlock block = MakeKeyBlock(tile, key);
        CopyRowsIn(tiles.key, head.padded_dim,
                   head.qkv + key * head.rows.stride + head.rows.key,
                   head.rows.stride, block.end - block.begin, head_dim);
        for (int s = 0; s < block.num_spans; ++s) {
          ComputeScoreGradients(tiles, head, tile, block, block.spans[s]);
          AddInputGradients(tiles, head, tile, block, block.spans[s]);
        }
      }
      CopyRowsOut(head.d_qkv + first * head.rows.stride + head.rows.query,
                  head.rows.stride, tiles.d_query, head.padded_dim,
                  tile.num_queries, head_dim);
    }
  }
}

}  // namespace
}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_ATTENTION_BACKWARD_LOOPS_H_
