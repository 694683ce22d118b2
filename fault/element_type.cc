#include "fault/element_type.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/check.h"

namespace millrace {
namespace {

struct ElementTypeRow {
  ElementType type;
  int64_t bytes;
  const char* safetensors;
  const char* torch;
};
constexpr ElementTypeRow kElementTypes[] = {
    {ElementType::kFp32, 4, "F32", "float32"},
    {ElementType::kFp16, 2, "F16", "float16"},
    {ElementType::kBf16, 2, "BF16", "bfloat16"},
};

const ElementTypeRow& RowOf(ElementType type) {
  for (const ElementTypeRow& row : kElementTypes) {
    if (row.type == type) return row;
  }
  CHECK(false) << "unknown element type " << static_cast<int>(type);
  return kElementTypes[0];
}

constexpr uint32_t kSignBit = 0x8000'0000u;
constexpr uint32_t kFp32Infinity = 0x7f80'0000u;

// The loops below call these; without branches, they become vector code.

inline uint32_t Bf16ToFp32Bits(uint16_t bits) {
  return static_cast<uint32_t>(bits) << 16;
}

// The exponents' biases differ by 112. Subnormal numbers of fp16 are read as
// 2^-14 too large, which the subtraction of 2^-14 mends exactly; no operand is
// subnormal in fp32, which threads may be set to flush to zero.
inline uint32_t Fp16ToFp32Bits(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t special = magnitude | kFp32Infinity;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1u << 23)) -
                              std::bit_cast<float>(113u << 23));
  const uint32_t finite = magnitude < (1u << 23) ? subnormal : normal;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  return sign | (magnitude >= 0x0f80'0000u ? special : finite);
}

inline uint16_t Fp32BitsToBf16(uint32_t bits) {
  const uint32_t half_way = 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t rounded = (bits + half_way) >> 16;
  // The upper half of a NaN whose payload is all below would be infinity.
  const uint32_t magnitude = bits & ~kSignBit;
  const uint32_t quiet = (bits & 0xffffu) == 0 ? 0u : 0x40u;
  const uint32_t nan = (bits >> 16) | quiet;
  return static_cast<uint16_t>(magnitude > kFp32Infinity ? nan : rounded);
}

inline uint16_t Fp32BitsToFp16(uint32_t bits) {
  const uint32_t magnitude = bits & ~kSignBit;
  const uint32_t sign = (bits & kSignBit) >> 16;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  // Below 2^-14 a unit of fp16 is 2^-24, which is the unit of fp32 numbers
  // from 1/2 to 1: the sum rounds.
  const float sum = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t small =
      std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t half_way = 0xfffu + ((magnitude >> 13) & 1u);
  const uint32_t normal = (magnitude + half_way - 0x3800'0000u) >> 13;
  uint32_t result = magnitude < 0x3880'0000u ? small : normal;
  // Half way from the largest number of fp16, 65504, to 2^16, and beyond.
  result = magnitude >= 0x477f'f000u ? 0x7c00u : result;
  result = magnitude > kFp32Infinity ? nan : result;
  return static_cast<uint16_t>(sign | result);
}

template <uint32_t (*convert)(uint16_t)>
void Widen(const char* from, int64_t num_elements, float* to) {
  for (int64_t i = 0; i < num_elements; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    to[i] = std::bit_cast<float>(convert(bits));
  }
}

#if defined(__SSE2__)
// Eight elements at a time, past the caches: masters are larger than them, and
// a plain store would first read each line that it overwrites. Loading weights
// is bound by memory, so this makes it faster by a third.
void WidenBf16(const char* from, int64_t num_elements, float* to) {
  const auto misaligned = reinterpret_cast<uintptr_t>(to) % sizeof(__m128i);
  const int64_t first = std::min<int64_t>(
      num_elements,
      misaligned == 0 ? 0 : (sizeof(__m128i) - misaligned) / sizeof(float));
  Widen<Bf16ToFp32Bits>(from, first, to);
  int64_t i = first;
  const __m128i zero = _mm_setzero_si128();
  for (; i + 8 <= num_elements; i += 8) {
    const __m128i bits =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    auto* out = reinterpret_cast<__m128i*>(to + i);
    _mm_stream_si128(out, _mm_unpacklo_epi16(zero, bits));
    _mm_stream_si128(out + 1, _mm_unpackhi_epi16(zero, bits));
  }
  _mm_sfence();  // Other threads see them in order again.
  Widen<Bf16ToFp32Bits>(from + 2 * i, num_elements - i, to + i);
}
#else
void WidenBf16(const char* from, int64_t num_elements, float* to) {
  Widen<Bf16ToFp32Bits>(from, num_elements, to);
}
#endif

template <uint16_t (*convert)(uint32_t)>
void Narrow(const float* from, int64_t num_elements, char* to) {
  for (int64_t i = 0; i < num_elements; ++i) {
    const uint16_t bits = convert(std::bit_cast<uint32_t>(from[i]));
    std::memcpy(to + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace

int64_t ElementBytes(ElementType type) { return RowOf(type).bytes; }

const char* SafetensorsDtype(ElementType type) {
  return RowOf(type).safetensors;
}

std::optional<ElementType> ElementTypeOfDtype(absl::string_view dtype) {
  for (const ElementTypeRow& row : kElementTypes) {
    if (dtype == row.safetensors) return row.type;
  }
  return std::nullopt;
}

const char* TorchDtype(ElementType type) { return RowOf(type).torch; }

void WidenToFp32(ElementType type, const void* from, int64_t num_elements,
                 float* to) {
  if (num_elements == 0) return;  // Nothing may be at a null pointer.
  const char* bytes = static_cast<const char*>(from);
  switch (type) {
    case ElementType::kFp32:
      std::memcpy(to, bytes, static_cast<size_t>(num_elements) * sizeof(float));
      break;
    case ElementType::kFp16:
      Widen<Fp16ToFp32Bits>(bytes, num_elements, to);
      break;
    case ElementType::kBf16:
      WidenBf16(bytes, num_elements, to);
      break;
  }
}

void NarrowFromFp32(ElementType type, const float* from, int64_t num_elements,
                    void* to) {
  if (num_elements == 0) return;
  char* bytes = static_cast<char*>(to);
  switch (type) {
    case ElementType::kFp32:
      std::memcpy(bytes, from,
                  static_cast<size_t>(num_elements) * sizeof(float));
      break;
    case ElementType::kFp16:
      Narrow<Fp32BitsToFp16>(from, num_elements, bytes);
      break;
    case ElementType::kBf16:
      Narrow<Fp32BitsToBf16>(from, num_elements, bytes);
      break;
  }
}

}  // namespace millrace
