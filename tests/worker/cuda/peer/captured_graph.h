// A CUDA graph of what some calls put on a stream, for tests and benchmarks
// that replay calls as training does.

#ifndef MILLRACE_TESTS_WORKER_CUDA_PEER_CAPTURED_GRAPH_H_
#define MILLRACE_TESTS_WORKER_CUDA_PEER_CAPTURED_GRAPH_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {

// Move-only.
class CapturedGraph {
 public:
  // `enqueue` gives its work to `stream`, or to streams that join it.
  static absl::StatusOr<CapturedGraph> Capture(
      cudaStream_t stream, absl::FunctionRef<absl::Status()> enqueue) {
    RETURN_IF_ERROR(CudaStatus(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
        "begin a capture"));
    const absl::Status enqueued = enqueue();
    CapturedGraph graph;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph.graph_);
    RETURN_IF_ERROR(enqueued);
    RETURN_IF_ERROR(CudaStatus(ended, "end a capture"));
    RETURN_IF_ERROR(
        CudaStatus(cudaGraphInstantiate(&graph.executable_, graph.graph_, 0),
                   "instantiate a graph"));
    return graph;
  }
  CapturedGraph(CapturedGraph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)),
        executable_(std::exchange(other.executable_, nullptr)) {}
  ~CapturedGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  absl::Status Launch(cudaStream_t stream) const {
    return CudaStatus(cudaGraphLaunch(executable_, stream), "launch a graph");
  }

 private:
  CapturedGraph() = default;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_PEER_CAPTURED_GRAPH_H_
