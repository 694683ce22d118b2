// Measures the time of communication between two GPUs of one host by NCCL and
// by copy engines: each kind by size, alone and beside products that hold every
// multiprocessor, and how much longer the products take.
//
//   peer_copies_bench
//
// One process a GPU; calls are replayed from a CUDA graph, as in training.
// tests/worker/cuda/peer_copies_test verifies what is timed here.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "kernels/gemm/gemm_bf16.h"
#include "tests/worker/cuda/peer/captured_graph.h"
#include "tests/worker/cuda/peer/peer_step.h"
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/device/handles.h"

namespace millrace {
namespace {

constexpr int32_t kNumRanks = 2;
constexpr int kCallsOfSmall = 50;
constexpr int kCallsOfLarge = 10;

struct Case {
  const char* name;
  Layout layout;
  std::vector<OpKind> kinds;  // In one exchange.
  int64_t num_bytes;          // In each full tensor.
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t bytes :
       {int64_t{1} << 16, int64_t{4} << 20, int64_t{16} << 20,
        int64_t{32} << 20, int64_t{128} << 20}) {
    const Layout pipeline = {.pipeline = kNumRanks};
    const Layout tensor = {.tensor = kNumRanks};
    cases.push_back({"one way", pipeline, {OpKind::kSend}, bytes});
    cases.push_back(
        {"both ways", pipeline, {OpKind::kSend, OpKind::kReceive}, bytes});
    cases.push_back({"all-gather", tensor, {OpKind::kAllGather}, bytes});
    cases.push_back(
        {"reduce-scatter", tensor, {OpKind::kReduceScatter}, bytes});
  }
  return cases;
}

// Products of a layer of Llama-3 70B over two ranks, on a stream of their own.
class Products {
 public:
  static absl::StatusOr<std::unique_ptr<Products>> Create() {
    constexpr GemmBf16Shape kShape = {
        .m = 8192, .n = 14336, .k = 8192, .trans_b = true};
    std::unique_ptr<Products> products(new Products);
    ASSIGN_OR_RETURN(const GemmBf16Plan plan, GemmBf16Plan::Create(kShape, {}));
    const int64_t bytes[] = {kShape.m * kShape.k * 2, kShape.k * kShape.n * 2,
                             kShape.m * kShape.n * 2, int64_t{64} << 20};
    int64_t sum = 0;
    for (const int64_t part : bytes) sum += part;
    ASSIGN_OR_RETURN(auto memory, DeviceBuffer<std::byte>::Allocate(
                                      static_cast<size_t>(sum)));
    products->memory_.emplace(std::move(memory));
    // Numbers of ordinary size: zeros would draw less power.
    std::vector<uint16_t> host(static_cast<size_t>((bytes[0] + bytes[1]) / 2));
    uint32_t state = 1;
    for (uint16_t& value : host) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<uint16_t>(0x3C00 + (state >> 16 & 0x83FF));
    }
    std::byte* at = products->memory_->data();
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(at, host.data(), host.size() * 2, cudaMemcpyHostToDevice),
        "fill the operands"));
    GemmBf16Args args;
    args.a = at;
    args.b = at += bytes[0];
    args.c = at += bytes[1];
    args.workspace = at + bytes[2];
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kNormal));
    products->stream_.emplace(std::move(stream));
    ASSIGN_OR_RETURN(
        CapturedGraph graph,
        CapturedGraph::Capture(products->stream_->get(), [&] {
          absl::Status status;
          for (int i = 0; i < kInGraph; ++i) {
            status.Update(plan.Run(args, products->stream_->get()));
          }
          return status;
        }));
    products->graph_.emplace(std::move(graph));
    for (auto* event : {&products->begin_, &products->end_}) {
      ASSIGN_OR_RETURN(*event, CudaEvent::Create(CudaEvent::Kind::kTimed));
    }
    return products;
  }

  static constexpr int kInGraph = 10;
  absl::Status Launch(int num_graphs) const {
    RETURN_IF_ERROR(begin_->Record(stream_->get()));
    for (int i = 0; i < num_graphs; ++i) {
      RETURN_IF_ERROR(graph_->Launch(stream_->get()));
    }
    return end_->Record(stream_->get());
  }
  bool IsUnderWay() const {
    return cudaStreamQuery(stream_->get()) == cudaErrorNotReady;
  }
  // The time of one product of the newest Launch().
  absl::StatusOr<double> Seconds(int num_graphs) const {
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(stream_->get()), "run products"));
    ASSIGN_OR_RETURN(const double seconds, end_->SecondsSince(*begin_));
    return seconds / (num_graphs * kInGraph);
  }

 private:
  Products() = default;
  std::optional<DeviceBuffer<std::byte>> memory_;
  std::optional<CudaStream> stream_;
  std::optional<CapturedGraph> graph_;
  std::optional<CudaEvent> begin_;
  std::optional<CudaEvent> end_;
};

// Seconds of one exchange over runs of the step back to back.
absl::StatusOr<double> TimeRuns(PeerStep& step, int num_runs, int num_calls) {
  ASSIGN_OR_RETURN(const CudaEvent begin,
                   CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(const CudaEvent end,
                   CudaEvent::Create(CudaEvent::Kind::kTimed));
  RETURN_IF_ERROR(begin.Record(step.stream()));
  for (int i = 0; i < num_runs; ++i) RETURN_IF_ERROR(step.Run());
  RETURN_IF_ERROR(end.Record(step.stream()));
  RETURN_IF_ERROR(step.Synchronize());
  ASSIGN_OR_RETURN(const double seconds, end.SecondsSince(begin));
  return seconds / (num_runs * num_calls);
}

absl::Status RunCase(const Case& c, bool use_copies, Rank rank,
                     RendezvousStore& store, const Products& products) {
  const int num_calls = c.num_bytes > (1 << 20) ? kCallsOfLarge : kCallsOfSmall;
  std::vector<PeerCall> calls;
  for (int i = 0; i < num_calls; ++i) {
    for (const OpKind kind : c.kinds) {
      calls.push_back({.kind = kind, .num_elements = c.num_bytes / 2});
    }
  }
  ASSIGN_OR_RETURN(auto step, PeerStep::Create({.layout = c.layout,
                                                .rank = rank,
                                                .store = &store,
                                                .calls = calls,
                                                .use_copies = use_copies}));
  // The first run to the streams, the second captured.
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(step->Run());
  RETURN_IF_ERROR(step->Synchronize());
  RETURN_IF_ERROR(Meet(store, "warm", rank, kNumRanks));
  ASSIGN_OR_RETURN(const double alone, TimeRuns(*step, 3, num_calls));

  RETURN_IF_ERROR(Meet(store, "timed", rank, kNumRanks));
  constexpr int kGraphs = 1;
  RETURN_IF_ERROR(products.Launch(kGraphs));
  ASSIGN_OR_RETURN(const double product_alone, products.Seconds(kGraphs));
  RETURN_IF_ERROR(Meet(store, "products", rank, kNumRanks));
  // So many that they outlast the calls: as if those took four times as long.
  const double window = 4 * alone * num_calls + 0.005;
  const int num_graphs =
      1 + static_cast<int>(window / (product_alone * Products::kInGraph));
  RETURN_IF_ERROR(products.Launch(num_graphs));
  ASSIGN_OR_RETURN(const double beside, TimeRuns(*step, 1, num_calls));
  const bool outlasted = products.IsUnderWay();
  ASSIGN_OR_RETURN(const double product_after, products.Seconds(num_graphs));
  if (rank != Rank{0}) return absl::OkStatus();
  // Per exchange, how much later the products were done.
  const double delay = (product_after - product_alone) * num_graphs *
                       Products::kInGraph / num_calls;
  std::printf(
      "%-15s %8.3f MB  %-12s alone %8.4f ms  beside %8.4f ms%s  products "
      "later by %7.4f ms a call\n",
      c.name, 1e-6 * static_cast<double>(c.num_bytes),
      use_copies ? "copy engines" : "NCCL", 1e3 * alone, 1e3 * beside,
      outlasted ? "" : " (products ended first)", 1e3 * delay);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Main() {
  if (CountDevices() < kNumRanks) {
    return absl::InvalidArgumentError("this benchmark needs two GPUs");
  }
  RankProcesses ranks;
  return ranks.RunAll(
      kNumRanks, absl::Minutes(3), [&](Rank rank) -> absl::Status {
        ASSIGN_OR_RETURN(const auto products, Products::Create());
        int number = 0;
        for (const Case& c : Cases()) {
          for (const bool use_copies : {false, true}) {
            DirectoryRendezvousStore store(
                absl::StrCat(ranks.folder(), "/", number++));
            RETURN_IF_ERROR(RunCase(c, use_copies, rank, store, *products));
          }
        }
        return absl::OkStatus();
      });
}

}  // namespace
}  // namespace millrace

int main() {
  const absl::Status status = millrace::Main();
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
