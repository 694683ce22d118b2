// The work of one block of the backward attention kernel: its tiles in shared
// memory, its keys, the queries that see them, and their order if the sum of
// the query gradient has one.

#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_TILE_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_TILE_CUH_

#include <cuda.h>

#include <climits>
#include <cstdint>

#include "kernels/attention/attention_bf16_backward_prepare.cuh"
#include "kernels/attention/attention_work_order.cuh"
#include "kernels/cuda/hopper.cuh"

namespace millrace::attention_backward {

using namespace hopper;  // NOLINT: its primitives read as part of the language.

// The keys that a query sees. Dense loops need no checks of the window.
enum class Visible { kAll, kCausal, kWindow };

// A block keeps kBlockN keys and values and walks over blocks of kBlockM
// queries of the query heads that share them, or of one part of these heads. Up
// to head dim 128 each of the two consumer warpgroups has half of the keys.
// Gradients of 256 columns leave no registers for that: there both compute the
// scores of all keys, and each has half of the columns of the gradients.
template <int kHeadDim_, Visible kVisible_>
struct Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr Visible kVisible = kVisible_;
  static constexpr bool kSplitKeys = kHeadDim <= 128;
  static constexpr int kBlockM = BackwardBlockM(kHeadDim);
  static constexpr int kBlockN = BackwardBlockN(kHeadDim);
  // In shared memory columns fill groups of 64; the copy engine adds zeros.
  static constexpr int kColumns = BackwardColumns(kHeadDim);
  static constexpr int kColumnGroups = kColumns / 64;
  static constexpr int kGradientColumns = kSplitKeys ? kHeadDim : kHeadDim / 2;
  static constexpr int kQueryStages = 2;
  static constexpr int kOutputStages = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kKeyBytes = kBlockN * kColumns * 2;
  static constexpr int kQueryBytes = kBlockM * kColumns * 2;
  static constexpr int kScoreBytes = kBlockM * kBlockN * 2;
  static constexpr int kRowBytes = kBlockM * 4;
  // Chunks of the query gradient that one consumer adds in one step.
  static constexpr int kPieces = BackwardChunks(kHeadDim) / 2;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes =
      1024 + 2 * kKeyBytes + (kQueryStages + kOutputStages) * kQueryBytes +
      2 * kScoreBytes + 2 * kGradientChunkBytes +
      (kQueryStages + kOutputStages) * kRowBytes + kBarrierBytes;
  static_assert(kSharedBytes <= 227 * 1024);
  // With one stage a consumer cannot keep its turn until the next output
  // gradient has come: that waits for the other consumer.
  static constexpr bool kPassEarly = kOutputStages == 1;
  // Whether a consumer waits for the tile of dS that it will write before it
  // waits for dP: 2 to 3 % faster with head dim 64 from 2k tokens on, up to 2 %
  // slower with 128.
  static constexpr bool kAwaitScoresEarly = kHeadDim == 64;
  static constexpr int kNumThreads = 3 * kWarpgroupSize;
};

struct Params {
  CUtensorMap q, k, v, d_o, d_k, d_v;
  CUtensorMap lse_log2, delta;  // By `rows`; a row is a query block's.
  // For parts of key heads and for documents, whose last rows no tensor map
  // clips.
  Bf16Heads d_k_rows, d_v_rows;
  BackwardRows rows;
  BackwardLengths lengths;
  WorkOrder work_order;  // Over the parts of key heads of all sequences.
  int* order;            // Not null: the query gradient is summed in one order.
  int num_kv_heads;
  int num_parts, heads_per_part;  // Of a key head: NumKeyParts().
  int window;                     // With Visible::kWindow.
  bool causal;                    // With Visible::kWindow.
  float scale, scale_log2;
};

// One block's keys, its query heads, and their query blocks that see the keys.
struct Work {
  BackwardSequence sequence;
  int key_block, kv_head;
  int first_head;  // Of p.heads_per_part.
  int begin, end;  // Query blocks; empty if there are no keys.
};

struct Barriers {
  uint64_t kv_full;
  uint64_t q_full[2], q_empty[2], d_o_full[2], d_o_empty[2];
  uint64_t d_s_full[2];   // Written by all warps of both consumers.
  uint64_t d_s_empty[2];  // Read by both.
  uint64_t d_q_full[2], d_q_empty[2];  // By consumer.
};

struct Shared {
  uint8_t *k, *v, *q, *d_o, *d_s, *d_q;
  float *lse, *delta;
  Barriers* barriers;
};

template <typename C>
__device__ __forceinline__ Shared LayOut(uint8_t* unaligned) {
  Shared shared;
  // Swizzled tiles start at multiples of 1024 bytes.
  shared.k = reinterpret_cast<uint8_t*>(
      (reinterpret_cast<uintptr_t>(unaligned) + 1023) & ~uintptr_t{1023});
  shared.v = shared.k + C::kKeyBytes;
  shared.q = shared.v + C::kKeyBytes;
  shared.d_o = shared.q + C::kQueryStages * C::kQueryBytes;
  shared.d_s = shared.d_o + C::kOutputStages * C::kQueryBytes;
  shared.d_q = shared.d_s + 2 * C::kScoreBytes;
  shared.lse = reinterpret_cast<float*>(shared.d_q + 2 * kGradientChunkBytes);
  shared.delta = shared.lse + C::kQueryStages * C::kBlockM;
  shared.barriers =
      reinterpret_cast<Barriers*>(shared.delta + C::kOutputStages * C::kBlockM);
  static_assert(sizeof(Barriers) <= C::kBarrierBytes);
  return shared;
}

template <typename C>
__device__ __forceinline__ Work WorkOf(const Params& p, const WorkItem& item) {
  Work work;
  const BackwardPlace place = p.lengths.Find<C::kBlockM, C::kBlockN>(
      item.head * p.work_order.num_blocks + item.block,
      p.num_kv_heads * p.num_parts);
  const int position = place.position;
  work.kv_head = place.head / p.num_parts;
  work.first_head = place.head * p.heads_per_part;
  work.sequence = place.sequence;
  const int length = work.sequence.length;
  const int num_key_blocks = (length + C::kBlockN - 1) / C::kBlockN;
  // The first is the longest if causal. With an order the last comes first: it
  // waits for none, and each of the others for some that run already.
  work.key_block =
      p.order == nullptr ? position : num_key_blocks - 1 - position;
  const int first_key = work.key_block * C::kBlockN;
  int begin = 0;
  int end = length;
  if (C::kVisible == Visible::kCausal) begin = first_key;
  if (C::kVisible == Visible::kWindow) {
    begin = p.causal ? first_key : max(0, first_key - p.window + 1);
    end = min(end, first_key + C::kBlockN - 1 + p.window);
  }
  work.begin = begin / C::kBlockM;
  const bool has_keys = position < num_key_blocks;
  work.end = has_keys ? (end + C::kBlockM - 1) / C::kBlockM : 0;
  return work;
}

// The chunks of d_v (tensor 0) or d_k (1) of one part of a key head.
template <typename C>
__device__ __forceinline__ float* KeyPart(const Params& p, const WorkItem& item,
                                          int tensor) {
  const int64_t block =
      static_cast<int64_t>(item.head) * p.work_order.num_blocks + item.block;
  return p.rows.key_parts +
         (block * 2 + tensor) * BackwardKeyChunks(C::kHeadDim) * kGradientChunk;
}

// How many blocks add to query block `m` before the one of `work` does.
template <typename C>
__device__ __forceinline__ int Rank(const Params& p, const Work& work, int m) {
  int last_key = work.sequence.length - 1;
  const int last_query = (m + 1) * C::kBlockM - 1;
  if (C::kVisible == Visible::kCausal) last_key = min(last_key, last_query);
  if (C::kVisible == Visible::kWindow) {
    last_key = min(last_key, last_query + (p.causal ? 0 : p.window - 1));
  }
  return last_key / C::kBlockN - work.key_block;
}

// The queries that see one key.
struct Interval {
  int first, last;
  __device__ __forceinline__ bool Has(int query) const {
    return static_cast<unsigned>(query - first) <=
           static_cast<unsigned>(last - first);
  }
};

template <typename C>
__device__ __forceinline__ Interval QueriesOf(const Params& p, const Work& work,
                                              int key) {
  // Queries behind the sequence count: their probabilities are zero anyway.
  if (C::kVisible == Visible::kCausal) return {key, INT_MAX};
  if (key >= work.sequence.length) return {INT_MAX, INT_MAX};
  if (C::kVisible == Visible::kWindow) {
    return {p.causal ? key : key - p.window + 1, key + p.window - 1};
  }
  return {0, INT_MAX};
}

// Whether some of the block's keys are hidden from some queries of block `m`.
template <typename C>
__device__ __forceinline__ bool IsMasked(const Params& p, const Work& work,
                                         int m) {
  const int first_key = work.key_block * C::kBlockN;
  const int last_key = first_key + C::kBlockN - 1;
  const int first_query = m * C::kBlockM;
  const int last_query = first_query + C::kBlockM - 1;
  bool masked = last_key >= work.sequence.length;
  if (C::kVisible == Visible::kCausal) masked |= first_query < last_key;
  if (C::kVisible == Visible::kWindow) {
    masked |= last_query - first_key >= p.window;
    masked |= last_key - first_query >= (p.causal ? 1 : p.window);
  }
  return masked;
}

}  // namespace millrace::attention_backward

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_BF16_BACKWARD_TILE_CUH_
