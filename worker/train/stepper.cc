#include "worker/train/stepper.h"

#include <algorithm>
#include <span>

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

// The buffers in which one rank keeps its parameters, as floats.
class ParameterBuffers {
 public:
  absl::Status Read(Stepper& stepper) {
    const Program& program = stepper.program();
    ASSIGN_OR_RETURN(stored_, stepper.Read(program.parameters_buffer));
    if (program.norms_buffer < 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(norms_, stepper.Read(program.norms_buffer));
    return ReadMaster(stepper);
  }
  // Makes room for all, and reads what is not overwritten by all parameters.
  absl::Status MakeRoom(Stepper& stepper) {
    const Program& program = stepper.program();
    stored_.resize(SizeOf(program, program.parameters_buffer));
    if (program.norms_buffer < 0) return absl::OkStatus();
    norms_.resize(SizeOf(program, program.norms_buffer));
    return ReadMaster(stepper);
  }

  absl::Status Write(Stepper& stepper) const {
    const Program& program = stepper.program();
    RETURN_IF_ERROR(stepper.Write(program.parameters_buffer, stored_));
    if (program.norms_buffer < 0) return absl::OkStatus();
    RETURN_IF_ERROR(stepper.Write(program.norms_buffer, norms_));
    if (program.float8_weights_buffer < 0) return absl::OkStatus();
    return stepper.Write(program.master_buffer, master_);
  }

  // Calls body(values, offset) for each bucket, in order, with its offset among
  // all parameters. Where there are master weights, norms are apart, and those
  // in 8 bits are nowhere else.
  template <typename Body>
  void ForEachBucket(const Program& program, const Body& body) {
    size_t num_stored = 0;
    for (const Bucket& bucket : program.parameters.buckets) {
      const auto size = static_cast<size_t>(bucket.num_elements);
      if (program.norms_buffer >= 0 && bucket.name == "norms") {
        body(std::span(norms_), bucket.offset);
      } else if (program.norms_buffer >= 0 && bucket.in_float8()) {
        body(std::span(master_).subspan(bucket.offset, size), bucket.offset);
      } else {
        body(std::span(stored_).subspan(num_stored, size), bucket.offset);
        num_stored += size;
      }
    }
  }

 private:
  static size_t SizeOf(const Program& program, BufferId id) {
    return static_cast<size_t>(
        NumElements(program.buffers[static_cast<size_t>(id)]));
  }
  absl::Status ReadMaster(Stepper& stepper) {
    const Program& program = stepper.program();
    if (program.float8_weights_buffer < 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(master_, stepper.Read(program.master_buffer));
    return absl::OkStatus();
  }

  std::vector<float> stored_;
  std::vector<float> norms_;
  std::vector<float> master_;
};

}  // namespace

absl::StatusOr<std::vector<float>> ReadParameters(Stepper& stepper) {
  ParameterBuffers buffers;
  RETURN_IF_ERROR(buffers.Read(stepper));
  std::vector<float> values;
  buffers.ForEachBucket(
      stepper.program(), [&](std::span<float> bucket, int64_t) {
        values.insert(values.end(), bucket.begin(), bucket.end());
      });
  return values;
}

absl::Status WriteParameters(const std::vector<float>& values,
                             Stepper& stepper) {
  ParameterBuffers buffers;
  RETURN_IF_ERROR(buffers.MakeRoom(stepper));
  buffers.ForEachBucket(
      stepper.program(), [&](std::span<float> bucket, int64_t offset) {
        std::copy_n(values.begin() + offset, bucket.size(), bucket.begin());
      });
  return buffers.Write(stepper);
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
