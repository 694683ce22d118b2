#include "kernels/pointwise/add_plain.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// A thread an element. Limited by memory bandwidth.
template <typename T>
__global__ void __launch_bounds__(plain::kNumThreads)
    AddKernel(T* out, const T* a, const T* b, int64_t num_elements) {
  const int64_t i = int64_t{blockIdx.x} * plain::kNumThreads + threadIdx.x;
  if (i >= num_elements) return;
  out[i] = plain::FromFloat<T>(plain::ToFloat(a[i]) + plain::ToFloat(b[i]));
}

}  // namespace

absl::Status LaunchPlainAdd(const PlainAddArgs& args, ElementType type,
                            cudaStream_t stream) {
  constexpr int64_t kMaxElements = (int64_t{1} << 39);
  if (args.num_elements < 0 || args.num_elements >= kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain add got ", args.num_elements,
                     " elements; needs zero or more, less than 2^39"));
  }
  if (args.num_elements == 0) return absl::OkStatus();
  const auto num_blocks = static_cast<unsigned>(
      (args.num_elements + plain::kNumThreads - 1) / plain::kNumThreads);
  plain::WithElements(type, [&]<typename T>() {
    AddKernel<T><<<num_blocks, plain::kNumThreads, 0, stream>>>(
        static_cast<T*>(args.out), static_cast<const T*>(args.a),
        static_cast<const T*>(args.b), args.num_elements);
  });
  return CudaStatus(cudaGetLastError(), "launch plain add");
}

}  // namespace millrace
