#include "kernels/optimizer/moments.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cpu/moment_blocks.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

constexpr MomentFractions kFractions[] = {FractionsOf(Moment::kFirst),
                                          FractionsOf(Moment::kSecond)};
static_assert(kFractions[0].last == 127 && kFractions[1].last == 255);

template <Moment kMoment>
void EncodeCodes(const float* values, MomentBlock& block) {
  const float* const middles = kFractions[static_cast<int>(kMoment)].middles;
  for (int64_t i = 0; i < kMomentBlockSize; ++i) {
    block.codes[i] = EncodeMoment<kMoment>(values[i], block.largest, middles);
  }
}

template <Moment kMoment>
void DecodeCodes(const MomentBlock& block, int64_t begin, int64_t end,
                 float* out) {
  const float* const values = kFractions[static_cast<int>(kMoment)].values;
  for (int64_t i = begin; i < end; ++i) {
    out[i - begin] =
        DecodeMoment<kMoment>(block.codes[i], block.largest, values);
  }
}

}  // namespace

void EncodeMomentBlock(Moment moment, const float* values, MomentBlock& block) {
  // Read as whole numbers, magnitudes keep their order; NaN is above all.
  uint32_t largest = 0;
  for (int64_t i = 0; i < kMomentBlockSize; ++i) {
    largest =
        std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFu);
  }
  block.largest = std::bit_cast<float>(largest);
  if (block.largest < kLeastLargestMoment) block.largest = 0.0f;
  if (moment == Moment::kFirst) {
    EncodeCodes<Moment::kFirst>(values, block);
  } else {
    EncodeCodes<Moment::kSecond>(values, block);
  }
}

void DecodeMomentBlock(Moment moment, const MomentBlock& block, int64_t begin,
                       int64_t end, float* out) {
  if (moment == Moment::kFirst) {
    DecodeCodes<Moment::kFirst>(block, begin, end, out);
  } else {
    DecodeCodes<Moment::kSecond>(block, begin, end, out);
  }
}

void DecodeMoments(MomentStorage storage, Moment moment, const void* moments,
                   int64_t begin, int64_t end, float* out) {
  switch (storage) {
    case MomentStorage::kFloat32:
      std::copy_n(static_cast<const float*>(moments) + begin, end - begin, out);
      return;
    case MomentStorage::kBf16: {
      const auto* bits = static_cast<const uint16_t*>(moments);
      for (int64_t i = begin; i < end; ++i)
        out[i - begin] = DecodeBf16(bits[i]);
      return;
    }
    case MomentStorage::kBlocks8: {
      const auto* blocks = static_cast<const MomentBlock*>(moments);
      for (int64_t at = begin; at < end;) {
        const int64_t block = at / kMomentBlockSize;
        const int64_t first = block * kMomentBlockSize;
        const int64_t stop = std::min(end, first + kMomentBlockSize);
        DecodeMomentBlock(moment, blocks[block], at - first, stop - first,
                          out + (at - begin));
        at = stop;
      }
      return;
    }
  }
}

void EncodeMoments(MomentStorage storage, Moment moment, const float* values,
                   int64_t num_values, void* moments) {
  switch (storage) {
    case MomentStorage::kFloat32:
      std::copy_n(values, num_values, static_cast<float*>(moments));
      return;
    case MomentStorage::kBf16: {
      auto* bits = static_cast<uint16_t*>(moments);
      for (int64_t i = 0; i < num_values; ++i) bits[i] = EncodeBf16(values[i]);
      return;
    }
    case MomentStorage::kBlocks8: {
      CHECK(num_values % kMomentBlockSize == 0) << num_values;
      auto* blocks = static_cast<MomentBlock*>(moments);
      for (int64_t i = 0; i < num_values; i += kMomentBlockSize) {
        EncodeMomentBlock(moment, values + i, blocks[i / kMomentBlockSize]);
      }
      return;
    }
  }
}

}  // namespace millrace
