// The element types in which model weights are kept in files, and conversions
// between them and fp32, which training state is kept in.

#ifndef MILLRACE_FAULT_ELEMENT_TYPE_H_
#define MILLRACE_FAULT_ELEMENT_TYPE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace millrace {

enum class ElementType : uint8_t { kFp32, kFp16, kBf16 };

int64_t ElementBytes(ElementType type);
// As safetensors headers spell it: "F32", "F16", "BF16".
const char* SafetensorsDtype(ElementType type);
std::optional<ElementType> ElementTypeOfDtype(absl::string_view dtype);
// As config.json spells it: "float32", "float16", "bfloat16".
const char* TorchDtype(ElementType type);

// Every value of either 16-bit type is a value of fp32, so widening is exact.
// `from` need not be aligned.
void WidenToFp32(ElementType type, const void* from, int64_t num_elements,
                 float* to);

// Rounds to the nearest value, to the even one of two equally near; too large a
// number becomes infinite. NaN stays NaN. Narrowing what was widened from the
// same type gives equal bits, except that NaNs of fp16 become quiet.
void NarrowFromFp32(ElementType type, const float* from, int64_t num_elements,
                    void* to);

}  // namespace millrace

#endif  // MILLRACE_FAULT_ELEMENT_TYPE_H_
