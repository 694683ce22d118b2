#include "kernels/autotune/tuning_case_tensors.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/tuning/tuned_choice.h"

namespace millrace {
namespace {

constexpr int64_t kCacheBytes = int64_t{50} << 20;  // On H100 and H200.
// A prime, so that no two rows of a tile are alike.
constexpr size_t kPatternSize = 393241;

const std::vector<uint16_t>& NormalPattern() {
  static const auto* pattern = [] {
    auto* values = new std::vector<uint16_t>(kPatternSize);
    std::mt19937 generator(20);
    std::normal_distribution<float> normal;
    for (uint16_t& bits : *values) {
      const float value = normal(generator);
      uint32_t wide;
      std::memcpy(&wide, &value, sizeof(wide));
      bits = static_cast<uint16_t>(wide >> 16);
    }
    return values;
  }();
  return *pattern;
}

}  // namespace

int NumTuningSets(int64_t bytes_per_set) {
  if (IsCachedClass(bytes_per_set) != 0) return 2;
  return static_cast<int>(
      std::clamp<int64_t>(2 * kCacheBytes / bytes_per_set + 1, 2, 8));
}

absl::StatusOr<void*> TuningTensors::Bytes(int64_t size) {
  ASSIGN_OR_RETURN(DeviceBuffer<uint8_t> buffer,
                   DeviceBuffer<uint8_t>::Allocate(size));
  RETURN_IF_ERROR(CudaStatus(cudaMemset(buffer.data(), 0, size),
                             "clear a tensor to be tuned on"));
  memory_.push_back(std::move(buffer));
  return memory_.back().data();
}

absl::StatusOr<void*> TuningTensors::Normals(int64_t size) {
  ASSIGN_OR_RETURN(void* data, Bytes(2 * size));
  const std::vector<uint16_t>& pattern = NormalPattern();
  auto* to = static_cast<uint16_t*>(data);
  int64_t filled = std::min(size, static_cast<int64_t>(pattern.size()));
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(to, pattern.data(), 2 * filled, cudaMemcpyHostToDevice),
      "fill a tensor to be tuned on"));
  while (filled < size) {
    const int64_t more = std::min(filled, size - filled);
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(to + filled, to, 2 * more, cudaMemcpyDeviceToDevice),
        "fill a tensor to be tuned on"));
    filled += more;
  }
  return data;
}

}  // namespace millrace
