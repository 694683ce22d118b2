// The element types of the plain kernels. The plain families run on every GPU
// from compute capability 8.0 on, at any shape and at any address that is a
// multiple of an element's size. Their tensors are all fp32, or bf16. Inputs
// are widened to fp32, sums are fp32 or better, and each output is rounded
// once. Equal inputs give equal bits. The tuned families are compared with
// them, and they run where a tuned family refuses a shape or a type.

#ifndef MILLRACE_KERNELS_CUDA_ELEMENT_TYPE_H_
#define MILLRACE_KERNELS_CUDA_ELEMENT_TYPE_H_

#include <cstdint>

namespace millrace {

enum class ElementType : uint8_t { kFloat32, kBfloat16 };

inline int64_t ElementBytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : 2;
}

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CUDA_ELEMENT_TYPE_H_
