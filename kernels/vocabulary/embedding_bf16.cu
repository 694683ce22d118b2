#include "kernels/vocabulary/embedding_bf16.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/radix_sort.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

using gpu::Eights;
using gpu::Float8;

constexpr int kNumThreads = 256;

template <bool kIsScaled>
__device__ __forceinline__ void Scale(Float8& x, float scale) {
  if constexpr (kIsScaled) {
#pragma unroll
    for (float& value : x.v) value *= scale;
  }
}

// A thread copies one eight. Limited by memory bandwidth.
template <bool kIsWide, bool kIsScaled>
__global__ void __launch_bounds__(kNumThreads) EmbeddingForwardKernel(
    const __grid_constant__ EmbeddingForwardBf16Args args,
    const __grid_constant__ Eights eights) {
  const Eights::Place place =
      eights.Find(blockIdx.x * kNumThreads + threadIdx.x);
  if (place.count == 0) return;
  const int64_t row = args.tokens[place.row] - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.vocab_rows;
  Float8 x = gpu::LoadEight<kIsWide>(static_cast<const uint16_t*>(args.weight) +
                                         row * args.hidden + place.column,
                                     is_mine ? place.count : 0);
  Scale<kIsScaled>(x, args.scale);
  gpu::StoreEight<kIsWide>(
      static_cast<uint16_t*>(args.x) + place.row * args.hidden + place.column,
      x, place.count);
}

// Adds without waiting for the old value.
template <bool kIsWide>
__device__ __forceinline__ void AddEight(float* address, const Float8& x,
                                         int count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr bool kByFours = kIsWide;
#else
  constexpr bool kByFours = false;
#endif
#pragma unroll
  for (int j = 0; j < 8; j += kByFours ? 4 : 1) {
    if (j >= count) continue;
    if constexpr (kByFours) {
      asm volatile(
          "red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address + j),
          "f"(x.v[j]), "f"(x.v[j + 1]), "f"(x.v[j + 2]), "f"(x.v[j + 3])
          : "memory");
    } else {
      atomicAdd(address + j, x.v[j]);
    }
  }
}

// The same at an address that no other thread adds to: loads and stores, which
// on H200 take less time than additions in the L2 cache. The compiler may not
// move a load before a store, so all loads stand first.
template <bool kIsWide>
__device__ __forceinline__ void UpdateEight(float* address, const Float8& x,
                                            int count) {
  if constexpr (kIsWide) {
    if (count <= 0) return;
    float4* fours = reinterpret_cast<float4*>(address);
    const float4 low = __ldcs(fours);
    const float4 high = __ldcs(fours + 1);
    __stcs(fours, float4{low.x + x.v[0], low.y + x.v[1], low.z + x.v[2],
                         low.w + x.v[3]});
    __stcs(fours + 1, float4{high.x + x.v[4], high.y + x.v[5], high.z + x.v[6],
                             high.w + x.v[7]});
  } else {
    float sum[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = x.v[j] + (j < count ? address[j] : 0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) address[j] = sum[j];
    }
  }
}

// A thread adds one eight of a token to its row. Limited by the L2 cache, which
// does the additions.
template <bool kIsWide, bool kIsScaled>
__global__ void __launch_bounds__(kNumThreads)
    AddTokensKernel(const __grid_constant__ EmbeddingBackwardBf16Args args,
                    const __grid_constant__ Eights eights) {
  const Eights::Place place =
      eights.Find(blockIdx.x * kNumThreads + threadIdx.x);
  if (place.count == 0) return;
  const int64_t row = args.tokens[place.row] - args.vocab_begin;
  if (row < 0 || row >= args.vocab_rows) return;
  Float8 x = gpu::LoadEight<kIsWide>(static_cast<const uint16_t*>(args.d_x) +
                                         place.row * args.hidden + place.column,
                                     place.count);
  Scale<kIsScaled>(x, args.scale);
  AddEight<kIsWide>(args.d_weight + row * args.hidden + place.column, x,
                    place.count);
}

// The deterministic way. Tokens are sorted by row, those of no row last, and
// cut into pieces of kPiece. Within a piece, each run of equal rows is summed;
// a run that began in an earlier piece leaves its part in `carried`, for
// AddCarriedKernel. A row thus gets one addition from each of the two kernels
// at most.
constexpr int kPiece = 32;
constexpr int kAhead = 8;  // Rows under way at once.
constexpr int kSumThreads = 128;
constexpr int kSumColumns = 8 * kSumThreads;

struct Sorted {
  float* d_weight;
  const uint16_t* d_x;
  const int32_t* rows;       // [num_tokens], ascending; vocab_rows: none.
  const int32_t* positions;  // [num_tokens]
  float* carried;            // [num_pieces, carried_stride]
  int64_t carried_stride;
  int64_t num_tokens;
  int64_t hidden;
  int32_t vocab_rows;
  float scale;

  // No row is -1, beyond either end.
  __device__ __forceinline__ int32_t RowAt(int64_t i) const {
    return i >= 0 && i < num_tokens ? rows[i] : -1;
  }
};

__global__ void RowsOfTokensKernel(
    const __grid_constant__ EmbeddingBackwardBf16Args args, int32_t* rows,
    int32_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= args.num_tokens) return;
  const int64_t row = args.tokens[i] - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.vocab_rows;
  rows[i] = static_cast<int32_t>(is_mine ? row : args.vocab_rows);
  positions[i] = static_cast<int32_t>(i);
}

// The sum of a run is scaled where it is added to its row.
// A block takes a piece and kSumColumns columns. Limited by memory bandwidth:
// d_x is read once, each row of d_weight read and written once.
template <bool kIsWide, bool kIsScaled>
__global__ void __launch_bounds__(kSumThreads)
    SumPiecesKernel(const __grid_constant__ Sorted sorted) {
  __shared__ int32_t rows[kPiece + 2];  // With both neighbours.
  __shared__ int32_t positions[kPiece];
  const int64_t begin = int64_t{blockIdx.x} * kPiece;
  for (int i = threadIdx.x; i < kPiece + 2; i += kSumThreads) {
    rows[i] = sorted.RowAt(begin - 1 + i);
    if (i < kPiece) {
      const int64_t entry = begin + i;
      positions[i] = entry < sorted.num_tokens ? sorted.positions[entry] : 0;
    }
  }
  __syncthreads();
  const int64_t column =
      int64_t{blockIdx.y} * kSumColumns + int64_t{8} * threadIdx.x;
  const int count = static_cast<int>(min(int64_t{8}, sorted.hidden - column));
  if (count <= 0) return;
  auto is_mine = [&](int i) {
    const int32_t row = rows[i + 1];
    return row >= 0 && row < sorted.vocab_rows;
  };
  Float8 sum = {};
  bool began_earlier = rows[0] == rows[1];
  for (int first = 0; first < kPiece; first += kAhead) {
    if (!is_mine(first)) return;
    // Elements without a row are read too, which saves a branch at each.
    Float8 x[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      x[k] = gpu::LoadEight<kIsWide>(
          sorted.d_x + positions[first + k] * sorted.hidden + column, count);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k;
      if (!is_mine(i)) return;  // Nor is any after it.
#pragma unroll
      for (int j = 0; j < 8; ++j) sum.v[j] += x[k].v[j];
      if (rows[i + 2] == rows[i + 1] && i + 1 < kPiece) continue;
      if (began_earlier) {
        float* carried =
            sorted.carried + blockIdx.x * sorted.carried_stride + column;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (j < count) carried[j] = sum.v[j];
        }
      } else {
        Scale<kIsScaled>(sum, sorted.scale);
        UpdateEight<kIsWide>(
            sorted.d_weight + rows[i + 1] * sorted.hidden + column, sum, count);
      }
      began_earlier = false;
      sum = {};
    }
  }
}

// The block of the piece into which a run first continues sums what that piece
// and those behind it carry. Nothing to do for most; the longest run limits it.
template <bool kIsWide, bool kIsScaled>
__global__ void __launch_bounds__(kSumThreads)
    AddCarriedKernel(const __grid_constant__ Sorted sorted) {
  const int64_t begin = int64_t{blockIdx.x} * kPiece;
  const int32_t row = sorted.RowAt(begin);
  const bool continues = row == sorted.RowAt(begin - 1);
  const bool is_first = row != sorted.RowAt(begin - 1 - kPiece);
  if (!continues || !is_first || row >= sorted.vocab_rows) return;
  const int64_t column =
      int64_t{blockIdx.y} * kSumColumns + int64_t{8} * threadIdx.x;
  const int count = static_cast<int>(min(int64_t{8}, sorted.hidden - column));
  if (count <= 0) return;
  int64_t end = blockIdx.x + 1;  // The first piece that begins with another.
  for (int64_t beyond = gridDim.x; end < beyond;) {
    const int64_t middle = (end + beyond) / 2;
    if (sorted.RowAt(middle * kPiece) == row) {
      end = middle + 1;
    } else {
      beyond = middle;
    }
  }
  Float8 sum = {};
#pragma unroll 4
  for (int64_t piece = blockIdx.x; piece < end; ++piece) {
    const float* carried =
        sorted.carried + piece * sorted.carried_stride + column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) sum.v[j] += carried[j];
    }
  }
  Scale<kIsScaled>(sum, sorted.scale);
  AddEight<kIsWide>(sorted.d_weight + row * sorted.hidden + column, sum, count);
}

// Workspace: rows, positions, the sort's own, carried; each from a multiple of
// 16 bytes.
struct Layout {
  int64_t positions, sort, carried, end;  // In bytes.
  int64_t carried_stride;                 // In elements.
  int64_t num_pieces;

  Layout(int64_t num_tokens, int64_t hidden) {
    const auto padded = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
    num_pieces = (num_tokens + kPiece - 1) / kPiece;
    carried_stride = padded(hidden * 4) / 4;
    positions = padded(num_tokens * 4);
    sort = 2 * positions;
    carried = sort + padded(RadixSortWorkspaceBytes(num_tokens));
    end = carried + num_pieces * carried_stride * 4;
  }
};

absl::Status LaunchSorted(const EmbeddingBackwardBf16Args& args, bool is_wide,
                          cudaStream_t stream) {
  if (args.workspace == nullptr ||
      reinterpret_cast<uintptr_t>(args.workspace) % 16 != 0) {
    return absl::InvalidArgumentError(
        "embedding backward got a workspace that does not begin at a multiple "
        "of 16 bytes");
  }
  const Layout layout(args.num_tokens, args.hidden);
  char* const base = static_cast<char*>(args.workspace);
  int32_t* const rows = reinterpret_cast<int32_t*>(base);
  int32_t* const positions =
      reinterpret_cast<int32_t*>(base + layout.positions);
  RowsOfTokensKernel<<<static_cast<unsigned>((args.num_tokens + 255) / 256),
                       256, 0, stream>>>(args, rows, positions);
  RETURN_IF_ERROR(LaunchRadixSort({.keys = rows,
                                   .values = positions,
                                   .num_pairs = args.num_tokens,
                                   .key_limit = args.vocab_rows + 1,
                                   .workspace = base + layout.sort},
                                  stream));
  const Sorted sorted = {
      .d_weight = args.d_weight,
      .d_x = static_cast<const uint16_t*>(args.d_x),
      .rows = rows,
      .positions = positions,
      .carried = reinterpret_cast<float*>(base + layout.carried),
      .carried_stride = layout.carried_stride,
      .num_tokens = args.num_tokens,
      .hidden = args.hidden,
      .vocab_rows = static_cast<int32_t>(args.vocab_rows),
      .scale = args.scale};
  const dim3 grid(
      static_cast<unsigned>(layout.num_pieces),
      static_cast<unsigned>((args.hidden + kSumColumns - 1) / kSumColumns));
  const auto launch = [&]<bool kIsWide, bool kIsScaled>() {
    SumPiecesKernel<kIsWide, kIsScaled>
        <<<grid, kSumThreads, 0, stream>>>(sorted);
    AddCarriedKernel<kIsWide, kIsScaled>
        <<<grid, kSumThreads, 0, stream>>>(sorted);
  };
  const bool is_scaled = args.scale != 1;
  if (is_wide && is_scaled) {
    launch.template operator()<true, true>();
  } else if (is_wide) {
    launch.template operator()<true, false>();
  } else if (is_scaled) {
    launch.template operator()<false, true>();
  } else {
    launch.template operator()<false, false>();
  }
  return CudaStatus(cudaGetLastError(), "launch embedding backward");
}

absl::Status Check(const char* kernel, int64_t num_tokens, int64_t hidden,
                   int64_t vocab_begin, int64_t vocab_rows) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  constexpr int64_t kMaxHidden = int64_t{65535} * kSumColumns;
  if (num_tokens >= 0 && num_tokens < kLimit && hidden >= 1 &&
      hidden <= kMaxHidden && Eights::Fits(num_tokens, hidden) &&
      vocab_begin >= 0 && vocab_rows >= 1 && vocab_rows < kLimit) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kernel, " got [", num_tokens, ", ", hidden, "] of vocabulary rows from ",
      vocab_begin, ", ", vocab_rows,
      " of them; needs tokens and a first row of at least zero, columns and "
      "rows of at least one, tokens and rows below 2^31, and less than 2^34 "
      "elements"));
}

bool AreWide(int64_t hidden, std::initializer_list<const void*> buffers) {
  return hidden % 8 == 0 &&
         std::all_of(buffers.begin(), buffers.end(), [](const void* buffer) {
           return reinterpret_cast<uintptr_t>(buffer) % 16 == 0;
         });
}

}  // namespace

int64_t EmbeddingBackwardBf16WorkspaceBytes(int64_t num_tokens,
                                            int64_t hidden) {
  return Layout(num_tokens, hidden).end;
}

absl::Status LaunchEmbeddingForwardBf16(const EmbeddingForwardBf16Args& args,
                                        cudaStream_t stream) {
  RETURN_IF_ERROR(Check("embedding forward", args.num_tokens, args.hidden,
                        args.vocab_begin, args.vocab_rows));
  if (args.num_tokens == 0) return absl::OkStatus();
  const Eights eights(args.num_tokens, args.hidden);
  const bool is_scaled = args.scale != 1;
  const auto kernel = AreWide(args.hidden, {args.x, args.weight})
                          ? (is_scaled ? EmbeddingForwardKernel<true, true>
                                       : EmbeddingForwardKernel<true, false>)
                          : (is_scaled ? EmbeddingForwardKernel<false, true>
                                       : EmbeddingForwardKernel<false, false>);
  kernel<<<(eights.num_eights() + kNumThreads - 1) / kNumThreads, kNumThreads,
           0, stream>>>(args, eights);
  return CudaStatus(cudaGetLastError(), "launch embedding forward");
}

absl::Status LaunchEmbeddingBackwardBf16(const EmbeddingBackwardBf16Args& args,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(Check("embedding backward", args.num_tokens, args.hidden,
                        args.vocab_begin, args.vocab_rows));
  if (!args.accumulate) {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(args.d_weight, 0,
                        args.vocab_rows * args.hidden * sizeof(float), stream),
        "zero the gradient of the embedding"));
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  const bool is_wide = AreWide(args.hidden, {args.d_weight, args.d_x});
  if (args.deterministic) return LaunchSorted(args, is_wide, stream);
  const Eights eights(args.num_tokens, args.hidden);
  const bool is_scaled = args.scale != 1;
  const auto kernel = is_wide ? (is_scaled ? AddTokensKernel<true, true>
                                           : AddTokensKernel<true, false>)
                              : (is_scaled ? AddTokensKernel<false, true>
                                           : AddTokensKernel<false, false>);
  kernel<<<(eights.num_eights() + kNumThreads - 1) / kNumThreads, kNumThreads,
           0, stream>>>(args, eights);
  return CudaStatus(cudaGetLastError(), "launch embedding backward");
}

}  // namespace millrace
