// What the tensors of a plain kernel hold. The plain families run on every GPU
// from compute capability 8.0 on, at any shape and at any address that is a
// multiple of an element's size, in fp32 throughout or with bf16 tensors:
// inputs are widened to fp32, sums are fp32 or better, each output is rounded
// once. Equal inputs give equal bits. They are what the tuned families are
// held against, and what runs where those refuse a shape or a type.

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
