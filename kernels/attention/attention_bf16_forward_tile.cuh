// The work of the forward kernel: its tiles, the order in which blocks take
// them, the keys that each must see, and the softmax of one block of keys.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_TILE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_TILE_CUH_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_shape.h"
#include "kernels/cuda/hopper.cuh"

namespace millrace::attention_forward {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// The keys that a query sees. Dense loops need no checks of the window.
enum class Visible { kAll, kCausal, kWindow };

struct Params {
  CUtensorMap q, k, v, o;
  uint16_t* o_rows;  // For stores that no tensor map can clip.
  int64_t o_token_stride, o_head_stride, o_sequence_stride;
  float* lse;
  int lse_sequence_stride, lse_head_stride;
  const int32_t* document_offsets;  // Null: sequences of equal length.
  int* tile_counter;                // Null: tiles in fixed turns.
  int sequence_length, num_sequences, num_heads, heads_per_kv;
  int num_query_blocks, num_tiles, heads_per_section;
  int window;         // With Visible::kWindow.
  bool window_ahead;  // The window also ends ahead of the query: not causal.
  float scale, scale_log2;
  float* amax;  // Raised to the largest |o|; null: not wanted.
};

// kBlockM queries of one head.
struct Tile {
  int sequence, first_token;  // Where the tensor maps find the sequence.
  int head, first_row;        // first_row: within the sequence.
  int length;                 // Length of the sequence; zero: no more tiles.
};
inline constexpr int kTileFields = 5;

// Blocks of keys a tile sees, the last first.
struct KeyBlocks {
  int first, last;
};

template <typename C>
__device__ __forceinline__ KeyBlocks KeyBlocksOf(const Params& p, int first_row,
                                                 int length) {
  int begin = 0;
  int end = length;
  if constexpr (C::kVisible == Visible::kCausal) {
    end = min(end, first_row + C::kBlockM);
  }
  if constexpr (C::kVisible == Visible::kWindow) {
    begin = max(0, first_row - p.window + 1);
    end =
        min(end, first_row + C::kBlockM + (p.window_ahead ? p.window - 1 : 0));
  }
  return {begin / C::kBlockN, (end - 1) / C::kBlockN};
}

// Hands out the tiles of one block: its first by its index, the others in turns
// or by a counter. One warp calls it, all lanes.
template <typename C>
class TileScheduler {
 public:
  __device__ __forceinline__ explicit TileScheduler(const Params& p)
      : p_(p), idx_(blockIdx.x) {}

  __device__ __forceinline__ Tile First() { return TileAt(idx_); }
  __device__ __forceinline__ Tile Next() {
    if (p_.tile_counter == nullptr) {
      idx_ += gridDim.x;
    } else {
      int taken = 0;
      if (threadIdx.x % kWarpSize == 0) taken = atomicAdd(p_.tile_counter, 1);
      idx_ = __shfl_sync(~0u, taken, 0) + gridDim.x;
    }
    return TileAt(idx_);
  }

 private:
  __device__ __forceinline__ Tile TileAt(int idx) {
    if (idx >= p_.num_tiles) return {};
    return p_.document_offsets == nullptr ? SequenceTile(idx)
                                          : DocumentTile(idx);
  }

  // Sections of heads whose keys and values fit the L2 cache together; in a
  // section the longest first, so that the last tiles to be handed out are
  // short.
  __device__ __forceinline__ Tile SequenceTile(int idx) const {
    const int tiles_per_section = p_.heads_per_section * p_.num_query_blocks;
    const int section = idx / tiles_per_section;
    const int in_section = idx - section * tiles_per_section;
    const int position = in_section / p_.heads_per_section;
    const int head = section * p_.heads_per_section + in_section -
                     position * p_.heads_per_section;
    const int block = C::kVisible == Visible::kCausal
                          ? p_.num_query_blocks - 1 - position
                          : position;
    return {.sequence = head / p_.num_heads,
            .first_token = 0,
            .head = head % p_.num_heads,
            .first_row = block * C::kBlockM,
            .length = p_.sequence_length};
  }

  // Document after document, in each the last rows first, all heads of them.
  // Indices grow, so the search goes on where it stopped: 32 documents at once.
  // Not inline, or its registers would spill where there are no documents.
  __device__ __noinline__ Tile DocumentTile(int idx) {
    const int slot = idx / p_.num_heads;
    const int lane = threadIdx.x % kWarpSize;
    for (; first_document_ < p_.num_sequences; first_document_ += kWarpSize) {
      const int document = first_document_ + lane;
      int start = 0;
      int length = 0;
      if (document < p_.num_sequences) {
        start = p_.document_offsets[document];
        length = p_.document_offsets[document + 1] - start;
      }
      const int blocks = (length + C::kBlockM - 1) / C::kBlockM;
      int end = blocks_before_ + blocks;
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int before = __shfl_up_sync(~0u, end - blocks_before_, distance);
        if (lane >= distance) end += before;
      }
      const uint32_t beyond = __ballot_sync(~0u, slot < end);
      if (beyond != 0) {
        const int found = __ffs(beyond) - 1;
        return {
            .sequence = 0,
            .first_token = __shfl_sync(~0u, start, found),
            .head = idx - slot * p_.num_heads,
            .first_row = __shfl_sync(~0u, end - 1 - slot, found) * C::kBlockM,
            .length = __shfl_sync(~0u, length, found)};
      }
      blocks_before_ = __shfl_sync(~0u, end, kWarpSize - 1);
    }
    return {};
  }

  const Params& p_;
  int idx_;
  int first_document_ = 0;
  int blocks_before_ = 0;  // Blocks of the documents before first_document_.
};

// To 2^-22 of its value or of one.
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Running softmax of the two rows a thread shares with its quad.
struct RowState {
  // The reference of the terms in log2: the largest score so far. Its term is
  // exactly one, and later terms round as finely as their size allows. A lazy
  // reference (terms up to 2^8) was 3 to 6 % faster and 2 to 4 % less exact.
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // This thread's columns only.
  float rescale[2];             // Factor of the last block on older terms;
  bool must_rescale;            // nothing, in no row of the warp, if false.
};

// Takes from the scores what the thread's rows, `first_row` and 8 after it,
// must not see.
template <typename C>
__device__ __forceinline__ void MaskBlock(const Params& p, int key_block,
                                          int first_row, int length,
                                          float (&s)[C::kBlockN / 2]) {
  // Relative to the thread's first column.
  const int first_column = key_block * C::kBlockN + threadIdx.x % 4 * 2;
  int begin[2], end[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + r * 8;
    begin[r] = 0;
    end[r] = length - first_column;
    if constexpr (C::kVisible == Visible::kCausal) {
      end[r] = min(length, row + 1) - first_column;
    }
    if constexpr (C::kVisible == Visible::kWindow) {
      begin[r] = row - p.window + 1 - first_column;
      end[r] =
          min(length, row + (p.window_ahead ? p.window : 1)) - first_column;
    }
  }
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) {
    const int column = i / 4 * 8 + i % 2;
    const int r = i / 2 % 2;
    if (column >= end[r] ||
        (C::kVisible == Visible::kWindow && column < begin[r])) {
      s[i] = -INFINITY;
    }
  }
}

// Raises the rows' references to the scores. After `masked` blocks a row may
// have seen nothing yet.
template <typename C, bool kMasked>
__device__ __forceinline__ void RaiseReferences(
    const Params& p, const float (&s)[C::kBlockN / 2], RowState& rows) {
  // Two chains of maxima a row: shorter waits.
  float maximum[2] = {s[0], s[2]};
  float other[2] = {s[1], s[3]};
#pragma unroll
  for (int i = 4; i < C::kBlockN / 2; i += 2) {
    maximum[i / 2 % 2] = fmaxf(maximum[i / 2 % 2], s[i]);
    other[i / 2 % 2] = fmaxf(other[i / 2 % 2], s[i + 1]);
  }
  // Without a branch: with few blocks of keys nearly each brings some row a new
  // maximum, and the exponentials below need not wait for a vote (2 % faster).
  bool grows = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maximum[r] = fmaxf(maximum[r], other[r]) * p.scale_log2;
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(~0u, maximum[r], 2));
    maximum[r] = fmaxf(maximum[r], rows.reference[r]);
    grows |= maximum[r] > rows.reference[r];
    const bool is_empty = kMasked && maximum[r] == -INFINITY;
    rows.rescale[r] = is_empty ? 1.0f : Exp2(rows.reference[r] - maximum[r]);
    rows.sum[r] *= rows.rescale[r];
    rows.reference[r] = maximum[r];
  }
  rows.must_rescale = __any_sync(~0u, grows);
}

// Turns scores into exponentials and adds them to the rows' sums.
template <typename C, bool kMasked>
__device__ __forceinline__ void Exponentials(const Params& p,
                                             float (&s)[C::kBlockN / 2],
                                             RowState& rows) {
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // A row that has seen nothing keeps a finite base.
    base[r] =
        kMasked && rows.reference[r] == -INFINITY ? 0.0f : rows.reference[r];
  }
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) {
    s[i] = Exp2(fmaf(s[i], p.scale_log2, -base[i / 2 % 2]));
  }
#pragma unroll
  for (int i = 0; i < C::kBlockN / 2; ++i) rows.sum[i / 2 % 2] += s[i];
}

// Both. The vote stands between them: after the exponentials it leaves ptxas
// another order of instructions, 2 % slower with turns passed on late.
template <typename C, bool kMasked>
__device__ __forceinline__ void SoftmaxBlock(const Params& p,
                                             float (&s)[C::kBlockN / 2],
                                             RowState& rows) {
  RaiseReferences<C, kMasked>(p, s, rows);
  Exponentials<C, kMasked>(p, s, rows);
}

// Heads whose keys and values (32 MiB of them) stay in the L2 cache together;
// more than 16 at once would only burden the memory in bursts.
inline int HeadsPerSection(const AttentionBf16Shape& shape) {
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  const int64_t num_heads = shape.num_sequences * shape.num_heads;
  const int64_t bytes_per_head = shape.sequence_length * shape.head_dim * 4 /
                                 (shape.num_heads / shape.num_kv_heads);
  int heads = 1;
  while (heads < 16 && 2 * heads * bytes_per_head <= kCacheBytes &&
         num_heads % (2 * heads) == 0) {
    heads *= 2;
  }
  return heads;
}

// Returns parameters for tiles of C::kBlockM queries and C::kBlockN keys. About
// `num_heads_at_once` heads (a power of two) share the cache.
template <typename C>
absl::StatusOr<Params> ParamsOf(const AttentionForwardBf16Args& args,
                                int64_t num_heads_at_once) {
  const AttentionBf16Shape& shape = args.shape;
  const bool packed = shape.document_offsets != nullptr;
  Params p;
  ASSIGN_OR_RETURN(p.q, OperandMap(args.q, shape.num_heads, shape, C::kBlockM));
  ASSIGN_OR_RETURN(p.k,
                   OperandMap(args.k, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.v,
                   OperandMap(args.v, shape.num_kv_heads, shape, C::kBlockN));
  ASSIGN_OR_RETURN(p.o, OperandMap(args.o, shape.num_heads, shape, 64));
  p.o_rows = static_cast<uint16_t*>(args.o.data);
  p.o_token_stride = args.o.token_stride;
  p.o_head_stride = args.o.head_stride;
  p.o_sequence_stride = args.o.sequence_stride;
  p.lse = args.lse;
  p.lse_head_stride =
      static_cast<int>(packed ? shape.total_tokens : shape.sequence_length);
  p.lse_sequence_stride =
      static_cast<int>(shape.num_heads * shape.sequence_length);
  p.document_offsets = shape.document_offsets;
  p.sequence_length = static_cast<int>(shape.sequence_length);
  p.num_sequences = static_cast<int>(shape.num_sequences);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.heads_per_kv = static_cast<int>(shape.num_heads / shape.num_kv_heads);
  p.num_query_blocks = (p.sequence_length + C::kBlockM - 1) / C::kBlockM;
  // An upper bound for documents, since only the device knows how many there
  // are.
  const int64_t num_blocks =
      packed ? shape.total_tokens / C::kBlockM + shape.num_sequences
             : p.num_query_blocks * shape.num_sequences;
  p.num_tiles = static_cast<int>(num_blocks * shape.num_heads);
  while (shape.num_sequences * shape.num_heads % num_heads_at_once != 0) {
    num_heads_at_once /= 2;
  }
  p.heads_per_section = static_cast<int>(num_heads_at_once);
  p.window = static_cast<int>(shape.window);
  p.window_ahead = !shape.causal;
  // Tiles of one length need no counter.
  const bool alike = C::kVisible == Visible::kAll && !packed;
  p.tile_counter = alike ? nullptr : args.tile_counter;
  p.scale = 1.0f / std::sqrt(static_cast<float>(C::kHeadDim));
  p.scale_log2 = p.scale * static_cast<float>(M_LOG2E);
  p.amax = args.amax;
  return p;
}

// Few tiles leave most multiprocessors idle; then blocks of 64 queries share
// out the keys among their warpgroups. Whether that way has the shape, and the
// way.
bool SplitTakes(const AttentionBf16Shape& shape);
absl::Status LaunchSplit(const AttentionForwardBf16Args& args,
                         cudaStream_t stream);

}  // namespace millrace::attention_forward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_FORWARD_TILE_CUH_
