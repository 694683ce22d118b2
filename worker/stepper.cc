#include "worker/stepper.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace millrace {
namespace {

uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint32_t half_less_tie = 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>((bits + half_less_tie) >> 16);
}

float FloatFromBf16(uint16_t value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

template <typename T, typename Convert>
std::vector<float> Widen(const std::vector<std::byte>& bytes,
                         Convert&& convert) {
  std::vector<T> stored(bytes.size() / sizeof(T));
  std::memcpy(stored.data(), bytes.data(), stored.size() * sizeof(T));
  std::vector<float> values(stored.size());
  for (size_t i = 0; i < stored.size(); ++i) values[i] = convert(stored[i]);
  return values;
}

template <typename T, typename Convert>
std::vector<std::byte> Narrow(const std::vector<float>& values,
                              Convert&& convert) {
  std::vector<T> stored(values.size());
  for (size_t i = 0; i < values.size(); ++i) stored[i] = convert(values[i]);
  std::vector<std::byte> bytes(stored.size() * sizeof(T));
  std::memcpy(bytes.data(), stored.data(), bytes.size());
  return bytes;
}

template <typename To, typename From>
To Cast(From value) {
  return static_cast<To>(value);
}

}  // namespace

int64_t NumElements(const Buffer& buffer) {
  int64_t count = 1;
  for (const int64_t dim : buffer.dims) count *= dim;
  return count;
}

std::vector<float> ValuesFromBytes(DType dtype,
                                   const std::vector<std::byte>& bytes) {
  switch (dtype) {
    case DType::kFloat32:
      return Widen<float>(bytes, Cast<float, float>);
    case DType::kFloat64:
      return Widen<double>(bytes, Cast<float, double>);
    case DType::kInt32:
      return Widen<int32_t>(bytes, Cast<float, int32_t>);
    case DType::kBfloat16:
      return Widen<uint16_t>(bytes, FloatFromBf16);
  }
  return {};
}

std::vector<std::byte> BytesFromValues(DType dtype,
                                       const std::vector<float>& values) {
  switch (dtype) {
    case DType::kFloat32:
      return Narrow<float>(values, Cast<float, float>);
    case DType::kFloat64:
      return Narrow<double>(values, Cast<double, float>);
    case DType::kInt32:
      return Narrow<int32_t>(values, Cast<int32_t, float>);
    case DType::kBfloat16:
      return Narrow<uint16_t>(values, Bf16FromFloat);
  }
  return {};
}

void RoundTo(DType dtype, std::vector<float>* values) {
  if (dtype != DType::kBfloat16) return;
  for (float& value : *values) value = FloatFromBf16(Bf16FromFloat(value));
}

}  // namespace millrace
