#include "worker/cuda/measure/host_link.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/handles.h"

namespace millrace {
namespace {

// Snapshots lock and copy so many bytes at a time.
constexpr size_t kDownloadBytes = size_t{256} << 20;
constexpr int kNumDownloads = 8;

// What a rank needs to download: all of it, or nothing where memory lacks.
struct Endpoints {
  DeviceBuffer<std::byte> device;
  PinnedMemory host;
  CudaStream stream;
  CudaEvent start, end;
};

absl::StatusOr<Endpoints> MakeEndpoints() {
  ASSIGN_OR_RETURN(auto device,
                   DeviceBuffer<std::byte>::Allocate(kDownloadBytes));
  ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::Allocate(kDownloadBytes));
  ASSIGN_OR_RETURN(CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
  return Endpoints{std::move(device), std::move(host), std::move(stream),
                   std::move(start), std::move(end)};
}

absl::Status Download(const Endpoints& at) {
  return CudaStatus(
      cudaMemcpyAsync(at.host.data(), at.device.data(), kDownloadBytes,
                      cudaMemcpyDeviceToHost, at.stream.get()),
      "download to page-locked memory");
}

// Seconds of one download among several.
absl::StatusOr<double> TimeDownloads(const Endpoints& at) {
  RETURN_IF_ERROR(at.start.Record(at.stream.get()));
  for (int i = 0; i < kNumDownloads; ++i) RETURN_IF_ERROR(Download(at));
  RETURN_IF_ERROR(at.end.Record(at.stream.get()));
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(at.stream.get()), "wait for downloads"));
  ASSIGN_OR_RETURN(const double seconds, at.end.SecondsSince(at.start));
  return seconds / kNumDownloads;
}

}  // namespace

absl::StatusOr<HostLink> MeasureHostLink(CudaLinkTimer* links) {
  const absl::StatusOr<Endpoints> endpoints = MakeEndpoints();
  const bool lacks_memory = absl::IsResourceExhausted(endpoints.status());
  if (!lacks_memory) RETURN_IF_ERROR(endpoints.status());
  double num_ranks = 1, num_lacking = lacks_memory ? 1 : 0;
  if (links != nullptr) {
    ASSIGN_OR_RETURN(num_ranks, links->Sum(1));
    ASSIGN_OR_RETURN(num_lacking, links->Sum(num_lacking));
  }
  if (num_lacking > 0) return HostLink{};
  RETURN_IF_ERROR(Download(*endpoints));  // The first one may be slower.
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(endpoints->stream.get()),
                             "wait for downloads"));
  // Nobody begins before the last is ready.
  if (links != nullptr) RETURN_IF_ERROR(links->Sum(0).status());
  ASSIGN_OR_RETURN(double seconds, TimeDownloads(*endpoints));
  if (links != nullptr) {
    ASSIGN_OR_RETURN(seconds, links->Sum(seconds));
  }
  return HostLink{
      .to_host_bytes_per_s =
          static_cast<double>(kDownloadBytes) * num_ranks / seconds,
      .source = links == nullptr
                    ? "measured by millrace profile, one device at a time"
                    : "measured by millrace profile, all devices at once"};
}

}  // namespace millrace
