// Measures the cost of communication between the GPUs of this machine: the
// bandwidth of each collective by size and by the limit on thread blocks, and
// how much it and a matrix product beside it slow each other down.
//
//   nccl_bench [GPUS]
//
// One process a GPU. Calls are replayed from a CUDA graph, as in training, so
// that no time is the host's.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"

namespace millrace {
namespace {

constexpr int64_t kMegabyte = 1 << 20;
constexpr int64_t kSizes[] = {1, 4, 16, 64, 256, 1024};  // MB of full tensors.
constexpr int kBlockLimits[] = {4, 8, 16, 0};            // Zero: NCCL's choice.
constexpr int kMultiprocessors = 132;  // Hopper's; GEMMs are told to use fewer.

// The calls that are measured. Buffers are in place, as gradients and
// parameters are.
struct Traffic {
  const char* name;
  // Bytes that cross a GPU's links, as a share of the full tensor's.
  double link_share;
  std::function<absl::Status(int64_t num_bytes, cudaStream_t)> enqueue;
};

// A stream with what is replayed on it.
class Replayed {
 public:
  static absl::StatusOr<Replayed> Capture(
      CudaStream::Priority priority, int num_calls,
      const std::function<absl::Status(cudaStream_t)>& enqueue) {
    ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Create(priority));
    ASSIGN_OR_RETURN(CapturedGraph graph,
                     CapturedGraph::Capture(stream.get(), [&] {
                       absl::Status status;
                       for (int i = 0; i < num_calls; ++i)
                         status.Update(enqueue(stream.get()));
                       return status;
                     }));
    return Replayed(std::move(stream), std::move(graph), num_calls);
  }

  int num_calls() const { return num_calls_; }
  const CudaStream& stream() const { return stream_; }
  absl::Status Launch() const { return graph_.Launch(stream_.get()); }
  absl::Status Synchronize() const {
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "run a graph");
  }

 private:
  Replayed(CudaStream stream, CapturedGraph graph, int num_calls)
      : stream_(std::move(stream)),
        graph_(std::move(graph)),
        num_calls_(num_calls) {}

  CudaStream stream_;
  CapturedGraph graph_;
  int num_calls_;
};

// Around launches back to back.
struct Stopwatch {
  CudaEvent begin;
  CudaEvent end;
  static absl::StatusOr<Stopwatch> Create() {
    ASSIGN_OR_RETURN(CudaEvent begin,
                     CudaEvent::Create(CudaEvent::Kind::kTimed));
    ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
    return Stopwatch{std::move(begin), std::move(end)};
  }
  absl::Status Launch(const Replayed& replayed, int num_launches) const {
    RETURN_IF_ERROR(begin.Record(replayed.stream().get()));
    for (int i = 0; i < num_launches; ++i) RETURN_IF_ERROR(replayed.Launch());
    return end.Record(replayed.stream().get());
  }
  absl::StatusOr<double> SecondsACall(const Replayed& replayed,
                                      int num_launches) const {
    double seconds = 0;
    ASSIGN_OR_RETURN(seconds, end.SecondsSince(begin));
    return seconds / num_launches / replayed.num_calls();
  }
};

absl::StatusOr<double> TimeAlone(const Replayed& replayed) {
  constexpr int kLaunches = 2;
  RETURN_IF_ERROR(replayed.Launch());
  ASSIGN_OR_RETURN(const Stopwatch watch, Stopwatch::Create());
  RETURN_IF_ERROR(watch.Launch(replayed, kLaunches));
  RETURN_IF_ERROR(replayed.Synchronize());
  return watch.SecondsACall(replayed, kLaunches);
}

// One rank's part in everything.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(Rank rank, int num_ranks,
                                                       std::string folder) {
    std::unique_ptr<Bench> bench(new Bench(rank, num_ranks, std::move(folder)));
    ASSIGN_OR_RETURN(auto buffer,
                     DeviceBuffer<std::byte>::Allocate(
                         kSizes[std::size(kSizes) - 1] * kMegabyte));
    bench->buffer_.emplace(std::move(buffer));
    RETURN_IF_ERROR(CudaStatus(
        cudaMemset(bench->data(), 0, bench->buffer_->size()), "clear"));
    return bench;
  }

  absl::Status Run() {
    for (const int limit : kBlockLimits) {
      RETURN_IF_ERROR(RunCollectives(limit));
      RETURN_IF_ERROR(RunTransfers(limit));
    }
    return absl::OkStatus();
  }

 private:
  Bench(Rank rank, int num_ranks, std::string folder)
      : rank_(rank),
        num_ranks_(num_ranks),
        folder_(std::move(folder)),
        store_(folder_ + "/agreed") {}

  // Rank 0's value, on every rank: how often calls are made must not differ.
  // Nobody returns before all have come.
  absl::StatusOr<double> Agree(double value) {
    const std::string name = absl::StrCat("agreement ", num_agreed_++);
    if (rank_ == Rank{0}) {
      RETURN_IF_ERROR(store_.Set(name, absl::StrFormat("%.17g", value)));
    }
    RETURN_IF_ERROR(Meet(store_, name, rank_, num_ranks_));
    ASSIGN_OR_RETURN(const std::string text,
                     store_.Get(name, absl::Seconds(30)));
    return std::strtod(text.c_str(), nullptr);
  }
  // Seconds of a call while no rank does anything else; rank 0's.
  absl::StatusOr<double> TimeTogether(const Replayed& replayed) {
    RETURN_IF_ERROR(Agree(0).status());
    double seconds = 0;
    ASSIGN_OR_RETURN(seconds, TimeAlone(replayed));
    return Agree(seconds);
  }

  std::byte* data() { return buffer_->data(); }
  void Print(const std::string& line) const {
    if (rank_ != Rank{0}) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  absl::StatusOr<std::unique_ptr<NcclCommunicatorSet>> Join(
      const Layout& layout, int limit) {
    DirectoryRendezvousStore store(
        absl::StrCat(folder_, "/", LayoutToString(layout), "/", limit));
    size_t before = 0, after = 0, total = 0;
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&before, &total), "ask memory"));
    const std::atomic<bool> never_aborted = false;
    ASSIGN_OR_RETURN(auto set,
                     NcclCommunicatorSet::Create(
                         {.layout = layout,
                          .rank = rank_,
                          .store = &store,
                          .max_blocks = {.data = limit, .transfers = limit}},
                         never_aborted));
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&after, &total), "ask memory"));
    Print(absl::StrFormat(
        "\n%s, %s thread blocks: communicators take %d MB of the device",
        layout.data > 1 ? "collectives" : "transfers",
        limit == 0 ? "NCCL's choice of" : absl::StrCat(limit),
        (before - after) / kMegabyte));
    return set;
  }

  absl::Status RunCollectives(int limit) {
    ASSIGN_OR_RETURN(auto set, Join({.data = num_ranks_}, limit));
    NcclCommunicator* const group = set->ForCollective(Group::kData);
    RETURN_IF_ERROR(Verify(*group));
    const double share = (num_ranks_ - 1.0) / num_ranks_;
    const auto own = [this, group](int64_t num_bytes) {
      return data() + num_bytes / num_ranks_ * group->index();
    };
    const std::vector<Traffic> traffics = {
        {"all-gather", share,
         [&](int64_t bytes, cudaStream_t stream) {
           return group->AllGather(own(bytes), data(), bytes / 2,
                                   DType::kBfloat16, stream);
         }},
        {"reduce-scatter", share,
         [&](int64_t bytes, cudaStream_t stream) {
           return group->ReduceScatter(data(), own(bytes), bytes / 4,
                                       DType::kFloat32, stream);
         }},
        {"all-reduce", 2 * share,
         [&](int64_t bytes, cudaStream_t stream) {
           return group->AllReduce(data(), bytes / 4, DType::kFloat32, stream);
         }},
    };
    RETURN_IF_ERROR(MeasureSizes(traffics));
    return MeasureBesideGemm(traffics, limit);
  }

  absl::Status RunTransfers(int limit) {
    ASSIGN_OR_RETURN(auto set, Join({.pipeline = num_ranks_}, limit));
    // Stages 0 and 1, 2 and 3 at once, each pair over its own link.
    const bool sends = ToInt(rank_) % 2 == 0;
    NcclCommunicator* const link =
        set->ForTransferLane(sends ? Lane::kSendNext : Lane::kReceivePrevious);
    const std::vector<Traffic> traffics = {
        {"send, receive", 1.0,
         [&](int64_t bytes, cudaStream_t stream) -> absl::Status {
           if (link == nullptr) return absl::OkStatus();  // An odd stage out.
           return sends ? link->Send(data(), bytes, 1, stream)
                        : link->Receive(data(), bytes, 0, stream);
         }}};
    return MeasureSizes(traffics);
  }

  // Sums and gathers of ones, before anything is timed.
  absl::Status Verify(NcclCommunicator& group) {
    constexpr int64_t kElements = 1 << 18;
    std::vector<float> host(kElements, 1.0f);
    const auto copy_in = [&] {
      return CudaStatus(cudaMemcpy(data(), host.data(), kElements * 4,
                                   cudaMemcpyHostToDevice),
                        "copy in");
    };
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kNormal));
    RETURN_IF_ERROR(copy_in());
    RETURN_IF_ERROR(
        group.AllReduce(data(), kElements, DType::kFloat32, stream.get()));
    RETURN_IF_ERROR(group.ReduceScatter(
        data(), data() + kElements * 4 / num_ranks_ * group.index(), kElements,
        DType::kFloat32, stream.get()));
    RETURN_IF_ERROR(
        group.AllGather(data() + kElements * 4 / num_ranks_ * group.index(),
                        data(), kElements, DType::kFloat32, stream.get()));
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(stream.get()), "run collectives"));
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(host.data(), data(), kElements * 4, cudaMemcpyDeviceToHost),
        "copy out"));
    for (const float value : host) {
      if (value == static_cast<float>(num_ranks_ * num_ranks_)) continue;
      return absl::DataLossError(absl::StrCat("collectives gave ", value));
    }
    host.assign(kElements, 0.0f);
    return copy_in();
  }

  absl::Status MeasureSizes(const std::vector<Traffic>& traffics) {
    std::string line = "      MB";
    for (const Traffic& traffic : traffics) {
      absl::StrAppendFormat(&line, "  %22s", traffic.name);
    }
    Print(line);
    for (const int64_t megabytes : kSizes) {
      line = absl::StrFormat("%8d", megabytes);
      for (const Traffic& traffic : traffics) {
        const int64_t bytes = megabytes * kMegabyte;
        ASSIGN_OR_RETURN(const Replayed replayed,
                         Replayed::Capture(CudaStream::Priority::kHigh,
                                           megabytes > 100 ? 4 : 16,
                                           [&](cudaStream_t stream) {
                                             return traffic.enqueue(bytes,
                                                                    stream);
                                           }));
        double seconds = 0;
        ASSIGN_OR_RETURN(seconds, TimeTogether(replayed));
        absl::StrAppendFormat(&line, "  %8.3f ms %6.1f GB/s", 1e3 * seconds,
                              1e-9 * bytes * traffic.link_share / seconds);
      }
      Print(line);
    }
    return absl::OkStatus();
  }

  // The down projection of Llama-3 8B over two sequences of 8192 tokens.
  absl::StatusOr<Replayed> CaptureGemms(int num_multiprocessors) {
    constexpr GemmBf16Shape kShape = {
        .m = 16384, .n = 4096, .k = 14336, .trans_b = true};
    constexpr int kCalls = 8;
    ASSIGN_OR_RETURN(const GemmBf16Plan plan,
                     GemmBf16Plan::Create(
                         kShape, {.num_multiprocessors = num_multiprocessors}));
    if (!gemm_.has_value()) {
      const int64_t bytes[] = {kShape.m * kShape.k * 2, kShape.k * kShape.n * 2,
                               kShape.m * kShape.n * 2, int64_t{64} << 20};
      int64_t sum = 0;
      for (const int64_t part : bytes) sum += part;
      ASSIGN_OR_RETURN(auto memory, DeviceBuffer<std::byte>::Allocate(sum));
      gemm_.emplace(std::move(memory));
      // Numbers of ordinary size: zeros would draw less power, and so run
      // faster than training does.
      std::vector<uint16_t> host((bytes[0] + bytes[1]) / 2);
      uint32_t state = 1;
      for (uint16_t& value : host) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<uint16_t>(0x3C00 + (state >> 16 & 0x83FF));
      }
      RETURN_IF_ERROR(
          CudaStatus(cudaMemcpy(gemm_->data(), host.data(), host.size() * 2,
                                cudaMemcpyHostToDevice),
                     "fill the operands"));
    }
    GemmBf16Args args;
    std::byte* at = gemm_->data();
    args.a = at;
    args.b = at += kShape.m * kShape.k * 2;
    args.c = at += kShape.k * kShape.n * 2;
    args.workspace = at + kShape.m * kShape.n * 2;
    return Replayed::Capture(
        CudaStream::Priority::kNormal, kCalls,
        [&](cudaStream_t stream) { return plan.Run(args, stream); });
  }

  // How much a GEMM and a collective slow each other down while both run.
  absl::Status MeasureBesideGemm(const std::vector<Traffic>& traffics,
                                 int limit) {
    constexpr int64_t kBytes = 128 * kMegabyte;
    constexpr int kGemmLaunches = 2;
    Print("  beside a GEMM: collective alone, beside; GEMM alone, beside");
    std::vector<int> multiprocessors = {0};
    if (limit > 0) multiprocessors.push_back(kMultiprocessors - limit);
    for (const int num : multiprocessors) {
      ASSIGN_OR_RETURN(const Replayed gemms, CaptureGemms(num));
      double gemm_alone = 0;
      ASSIGN_OR_RETURN(gemm_alone, TimeTogether(gemms));
      for (const Traffic& traffic : traffics) {
        ASSIGN_OR_RETURN(const Replayed calls,
                         Replayed::Capture(CudaStream::Priority::kHigh, 4,
                                           [&](cudaStream_t stream) {
                                             return traffic.enqueue(kBytes,
                                                                    stream);
                                           }));
        double call_alone = 0;
        ASSIGN_OR_RETURN(call_alone, TimeTogether(calls));
        const double window = gemm_alone * kGemmLaunches * gemms.num_calls();
        // Measured while GEMMs certainly run: about a third of the window. Then
        // as many more as outlast it.
        const double launch_seconds = call_alone * calls.num_calls();
        const int num_inside =
            std::max(1, static_cast<int>(window / launch_seconds / 3));
        const int num_after =
            static_cast<int>(window * 1.5 / launch_seconds) + 1;
        ASSIGN_OR_RETURN(const Stopwatch call_watch, Stopwatch::Create());
        ASSIGN_OR_RETURN(const Stopwatch gemm_watch, Stopwatch::Create());
        RETURN_IF_ERROR(calls.Launch());
        RETURN_IF_ERROR(gemm_watch.Launch(gemms, kGemmLaunches));
        RETURN_IF_ERROR(call_watch.Launch(calls, num_inside));
        for (int i = 0; i < num_after; ++i) RETURN_IF_ERROR(calls.Launch());
        RETURN_IF_ERROR(gemms.Synchronize());
        const bool outlasted =
            cudaStreamQuery(calls.stream().get()) == cudaErrorNotReady;
        RETURN_IF_ERROR(calls.Synchronize());
        double call_beside = 0, gemm_beside = 0;
        ASSIGN_OR_RETURN(call_beside,
                         call_watch.SecondsACall(calls, num_inside));
        ASSIGN_OR_RETURN(gemm_beside,
                         gemm_watch.SecondsACall(gemms, kGemmLaunches));
        Print(absl::StrFormat(
            "  %-15s GEMM on %3d SMs: %7.3f, %7.3f ms (%+5.1f %%); %6.3f, "
            "%6.3f ms (%+5.1f %%)%s",
            traffic.name, num == 0 ? kMultiprocessors : num, 1e3 * call_alone,
            1e3 * call_beside, 100 * (call_beside / call_alone - 1),
            1e3 * gemm_alone, 1e3 * gemm_beside,
            100 * (gemm_beside / gemm_alone - 1),
            outlasted ? "" : "; the calls ended first"));
      }
    }
    return absl::OkStatus();
  }

  const Rank rank_;
  const int num_ranks_;
  const std::string folder_;
  DirectoryRendezvousStore store_;
  int num_agreed_ = 0;
  std::optional<DeviceBuffer<std::byte>> buffer_;
  std::optional<DeviceBuffer<std::byte>> gemm_;
};

absl::Status Main(int argc, char** argv) {
  const int32_t num_devices = CountDevices();
  const int32_t num_ranks = argc > 1 ? std::atoi(argv[1]) : num_devices;
  if (num_ranks < 2 || num_ranks > num_devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("this benchmark needs two GPUs at least; asked for ",
                     num_ranks, " of ", num_devices));
  }
  RankProcesses ranks;
  return ranks.RunAll(
      num_ranks, absl::Minutes(5), [&](Rank rank) -> absl::Status {
        ASSIGN_OR_RETURN(auto bench,
                         Bench::Create(rank, num_ranks, ranks.folder()));
        return bench->Run();
      });
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const absl::Status status = millrace::Main(argc, argv);
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
