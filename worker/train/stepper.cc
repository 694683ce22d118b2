#include "worker/train/stepper.h"

#include "base/status_macros.h"
#include "kernels/optimizer/moments.h"
#include "kernels/pointwise/cast.h"

namespace millrace {
namespace {

// The bits of a bf16, with its conversions.
struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  explicit Bf16(float value) : bits(EncodeBf16(value)) {}
  explicit operator float() const { return DecodeBf16(bits); }
};

// The bits of an e4m3, with its conversions.
struct Float8E4m3 {
  uint8_t bits;

  Float8E4m3() = default;
  explicit Float8E4m3(float value)
      : bits(EncodeFloat8(value, Float8Format::kE4m3)) {}
  explicit operator float() const {
    return DecodeFloat8(bits, Float8Format::kE4m3);
  }
};

template <typename T>
void RoundAll(std::vector<float>* values) {
  for (float& value : *values) value = static_cast<float>(T(value));
}

template <typename T>
std::vector<float> Widen(const std::byte* memory, int64_t num_elements) {
  const T* stored = reinterpret_cast<const T*>(memory);
  std::vector<float> values(static_cast<size_t>(num_elements));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(stored[i]);
  }
  return values;
}

template <typename T>
void Narrow(const std::vector<float>& values, std::byte* memory) {
  T* stored = reinterpret_cast<T*>(memory);
  for (size_t i = 0; i < values.size(); ++i) {
    stored[i] = static_cast<T>(values[i]);
  }
}

std::vector<float> DecodeBlocks(Moment moment, const std::byte* memory,
                                int64_t num_elements) {
  std::vector<float> values(static_cast<size_t>(num_elements));
  DecodeMoments(MomentStorage::kBlocks8, moment, memory, 0, num_elements,
                values.data());
  return values;
}

void EncodeBlocks(Moment moment, const std::vector<float>& values,
                  std::byte* memory) {
  EncodeMoments(MomentStorage::kBlocks8, moment, values.data(),
                static_cast<int64_t>(values.size()), memory);
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadParameters(Stepper& stepper) {
  const Program& program = stepper.program();
  ASSIGN_OR_RETURN(std::vector<float> values,
                   stepper.Read(program.parameters_buffer));
  if (program.norms_buffer < 0) return values;
  ASSIGN_OR_RETURN(const std::vector<float> norms,
                   stepper.Read(program.norms_buffer));
  values.insert(values.end(), norms.begin(), norms.end());
  return values;
}

absl::Status WriteParameters(const std::vector<float>& values,
                             Stepper& stepper) {
  const Program& program = stepper.program();
  const Buffer& flat =
      program.buffers[static_cast<size_t>(program.parameters_buffer)];
  const auto norms = values.begin() + NumElements(flat);
  RETURN_IF_ERROR(
      stepper.Write(program.parameters_buffer, {values.begin(), norms}));
  if (program.norms_buffer < 0) return absl::OkStatus();
  return stepper.Write(program.norms_buffer, {norms, values.end()});
}

int64_t NumElements(const Buffer& buffer) {
  int64_t count = 1;
  for (const int64_t dim : buffer.dims) count *= dim;
  count *= DTypeNumbers(buffer.dtype);
  return count;
}

std::vector<float> ValuesFromMemory(DType dtype, const std::byte* memory,
                                    int64_t num_elements) {
  switch (dtype) {
    case DType::kFloat32:
      return Widen<float>(memory, num_elements);
    case DType::kFloat64:
      return Widen<double>(memory, num_elements);
    case DType::kInt32:
      return Widen<int32_t>(memory, num_elements);
    case DType::kBfloat16:
      return Widen<Bf16>(memory, num_elements);
    case DType::kFloat8E4m3:
      return Widen<Float8E4m3>(memory, num_elements);
    case DType::kSignedBlock8:
      return DecodeBlocks(Moment::kFirst, memory, num_elements);
    case DType::kUnsignedBlock8:
      return DecodeBlocks(Moment::kSecond, memory, num_elements);
  }
  return {};
}

void ValuesToMemory(const std::vector<float>& values, DType dtype,
                    std::byte* memory) {
  switch (dtype) {
    case DType::kFloat32:
      return Narrow<float>(values, memory);
    case DType::kFloat64:
      return Narrow<double>(values, memory);
    case DType::kInt32:
      return Narrow<int32_t>(values, memory);
    case DType::kBfloat16:
      return Narrow<Bf16>(values, memory);
    case DType::kFloat8E4m3:
      return Narrow<Float8E4m3>(values, memory);
    case DType::kSignedBlock8:
      return EncodeBlocks(Moment::kFirst, values, memory);
    case DType::kUnsignedBlock8:
      return EncodeBlocks(Moment::kSecond, values, memory);
  }
}

void RoundTo(DType dtype, std::vector<float>* values) {
  switch (dtype) {
    case DType::kBfloat16:
      return RoundAll<Bf16>(values);
    case DType::kFloat8E4m3:
      return RoundAll<Float8E4m3>(values);
    default:
      return;
  }
}

}  // namespace millrace
