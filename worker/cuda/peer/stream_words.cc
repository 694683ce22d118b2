#include "worker/cuda/peer/stream_words.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// CUDA's limit on the operations of one batch.
constexpr size_t kMaxOpsPerBatch = 256;

decltype(&cuStreamBatchMemOp) BatchMemOp() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuStreamBatchMemOp", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      found = nullptr;
    }
    return reinterpret_cast<decltype(&cuStreamBatchMemOp)>(found);
  }();
  return function;
}

}  // namespace

void StreamWordOps::AddWrite(void* word, uint32_t value) {
  CUstreamBatchMemOpParams op = {};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  ops_.push_back(op);
}

void StreamWordOps::AddAwait(void* word, uint32_t value) {
  CUstreamBatchMemOpParams op = {};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
  op.waitValue.value = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  ops_.push_back(op);
}

absl::Status StreamWordOps::Enqueue(cudaStream_t stream) const {
  const auto batch = BatchMemOp();
  if (batch == nullptr) {
    return absl::UnavailableError(
        "the driver has no cuStreamBatchMemOp; expected one of CUDA 12 or "
        "later");
  }
  for (size_t first = 0; first < ops_.size(); first += kMaxOpsPerBatch) {
    const size_t count = std::min(kMaxOpsPerBatch, ops_.size() - first);
    // The driver copies them; its parameter is only not const.
    const CUresult result =
        batch(stream, static_cast<unsigned>(count),
              const_cast<CUstreamBatchMemOpParams*>(ops_.data() + first), 0);
    if (result == CUDA_SUCCESS) continue;
    return absl::InternalError(absl::StrCat(
        "failed to write or await words on a stream: CUDA driver error ",
        static_cast<int>(result)));
  }
  return absl::OkStatus();
}

}  // namespace millrace
