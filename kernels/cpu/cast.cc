#include "kernels/pointwise/cast.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

// y[i] = cast(x[i]) of EncodeBf16Args or DecodeBf16Args.
template <typename Args, typename Cast>
absl::Status CastAll(const char* name, const Args& args, int num_threads,
                     Cast cast) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads(name, args.num_elements, num_threads));
  ParallelRanges(ThreadsForFloats(num_threads, args.num_elements),
                 args.num_elements, [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     args.y[i] = cast(args.x[i]);
                   }
                 });
  return absl::OkStatus();
}

// The largest of magnitudes that threads find, in any order. They are bits of
// floats: as whole numbers they rise with the magnitudes, NaN above all.
class LargestMagnitude {
 public:
  void Add(uint32_t bits) {
    uint32_t before = bits_.load(std::memory_order_relaxed);
    while (bits > before && !bits_.compare_exchange_weak(
                                before, bits, std::memory_order_relaxed)) {
    }
  }
  void AddTo(float* amax) const {
    const uint32_t bits = bits_.load(std::memory_order_relaxed);
    *amax =
        std::bit_cast<float>(std::max(bits, std::bit_cast<uint32_t>(*amax)));
  }

 private:
  std::atomic<uint32_t> bits_ = 0;
};

// The part of a matrix that is encoded at a time, so that the transpose is
// written 64 bytes at a time.
constexpr int64_t kQuantizeTile = 64;

// to[c, r] = from[r, c], with the distance between the rows of each.
void TransposeTile(const uint8_t* from, int64_t from_stride, uint8_t* to,
                   int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      to[c * to_stride + r] = from[r * from_stride + c];
    }
  }
}

// Calls body(first_row, first_column) for all tiles of a part of a matrix of
// bytes, part by part.
template <typename Body>
void ForEachTile(int64_t rows, int64_t columns, int num_threads,
                 const Body& body) {
  const auto num_tiles = [](int64_t size) {
    return (size + kQuantizeTile - 1) / kQuantizeTile;
  };
  const int64_t across = num_tiles(columns);
  ParallelRanges(ThreadsForFloats(num_threads, rows * columns),
                 num_tiles(rows) * across, [&](int64_t begin, int64_t end) {
                   for (int64_t tile = begin; tile < end; ++tile) {
                     body(tile / across * kQuantizeTile,
                          tile % across * kQuantizeTile);
                   }
                 });
}

// Encodes the tile whose first element is [first_row, first_column]. Returns
// the bits of its largest magnitude, or zero if nobody wants to know it.
uint32_t QuantizeTile(const QuantizeFloat8Args& args, int64_t first_row,
                      int64_t first_column) {
  const CpuLoops& loops = Loops();
  const int64_t rows = std::min(kQuantizeTile, args.rows - first_row);
  const int64_t columns = std::min(kQuantizeTile, args.columns - first_column);
  std::array<uint8_t, kQuantizeTile * kQuantizeTile> tile;
  uint32_t largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = (first_row + r) * args.columns + first_column;
    uint8_t* codes = tile.data() + r * kQuantizeTile;
    if (args.y != nullptr || args.y_transposed != nullptr) {
      loops.encode_float8(codes, args.x + first, columns, args.scale,
                          args.format);
    }
    if (args.y != nullptr) std::memcpy(args.y + first, codes, columns);
    if (args.amax != nullptr) {
      largest =
          std::max(largest, loops.largest_magnitude(args.x + first, columns));
    }
  }
  if (args.y_transposed != nullptr) {
    TransposeTile(tile.data(), kQuantizeTile,
                  args.y_transposed + first_column * args.rows + first_row,
                  args.rows, rows, columns);
  }
  return largest;
}

}  // namespace

absl::Status EncodeBf16(const EncodeBf16Args& args, int num_threads) {
  return CastAll("EncodeBf16", args, num_threads,
                 [](float x) { return EncodeBf16(x); });
}

absl::Status DecodeBf16(const DecodeBf16Args& args, int num_threads) {
  return CastAll("DecodeBf16", args, num_threads,
                 [](uint16_t x) { return DecodeBf16(x); });
}

absl::Status QuantizeFloat8(const QuantizeFloat8Args& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("QuantizeFloat8", args.rows, args.columns,
                                      num_threads));
  LargestMagnitude largest;
  ForEachTile(args.rows, args.columns, num_threads,
              [&](int64_t first_row, int64_t first_column) {
                largest.Add(QuantizeTile(args, first_row, first_column));
              });
  if (args.amax != nullptr) largest.AddTo(args.amax);
  return absl::OkStatus();
}

absl::Status Amax(const AmaxArgs& args, int num_threads) {
  RETURN_IF_ERROR(
      CheckElementsAndThreads("Amax", args.num_elements, num_threads));
  LargestMagnitude largest;
  ParallelRanges(
      ThreadsForFloats(num_threads, args.num_elements), args.num_elements,
      [&](int64_t begin, int64_t end) {
        largest.Add(Loops().largest_magnitude(args.x + begin, end - begin));
      });
  largest.AddTo(args.amax);
  return absl::OkStatus();
}

absl::Status DecodeFloat8(const DecodeFloat8Args& args, int num_threads) {
  std::array<float, 256> values;
  for (int bits = 0; bits < 256; ++bits) {
    values[bits] =
        DecodeFloat8(static_cast<uint8_t>(bits), args.format) * args.unit;
  }
  return CastAll("DecodeFloat8", args, num_threads,
                 [&](uint8_t x) { return values[x]; });
}

absl::Status TransposeFloat8(const TransposeFloat8Args& args, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads("TransposeFloat8", args.rows,
                                      args.columns, num_threads));
  ForEachTile(args.rows, args.columns, num_threads,
              [&](int64_t first_row, int64_t first_column) {
                TransposeTile(
                    args.x + first_row * args.columns + first_column,
                    args.columns, args.y + first_column * args.rows + first_row,
                    args.rows, std::min(kQuantizeTile, args.rows - first_row),
                    std::min(kQuantizeTile, args.columns - first_column));
              });
  return absl::OkStatus();
}

}  // namespace millrace
