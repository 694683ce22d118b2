#include "planner/diagnose/trace_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "planner/diagnose/hints.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Traces in microseconds, which the profiler counts in.
class TraceBuilder {
 public:
  struct Gpu {
    std::string name;
    int64_t start_us = 0;
    int64_t end_us = 0;
    int64_t stream = 7;
    int32_t device = 0;
    int64_t correlation = kNoId;
    int64_t external_id = kNoId;
    GpuWork work = GpuWork::kKernel;
  };
  void Add(const Gpu& event) {
    trace_.gpu_events.push_back(
        {.time = {event.start_us * 1000, event.end_us * 1000},
         .device = event.device,
         .stream = event.stream,
         .work = event.work,
         .name_idx = Name(event.name),
         .correlation = event.correlation,
         .external_id = event.external_id});
  }
  void Call(const std::string& name, int64_t start_us, int64_t end_us,
            int64_t correlation, int64_t thread = 1) {
    trace_.calls.push_back({.time = {start_us * 1000, end_us * 1000},
                            .name_idx = Name(name),
                            .correlation = correlation,
                            .thread = thread});
  }
  void Op(const std::string& name, int64_t external_id) {
    trace_.ops.push_back({external_id, Name(name)});
  }
  void Step(int64_t step, int64_t start_us, int64_t end_us,
            std::optional<int32_t> device) {
    trace_.steps.push_back({step, {start_us * 1000, end_us * 1000}, device});
  }
  Trace Build() {
    Trace trace = trace_;
    SortTrace(trace);
    return trace;
  }

 private:
  int32_t Name(const std::string& name) {
    trace_.names.push_back(name);
    return static_cast<int32_t>(trace_.names.size()) - 1;
  }
  Trace trace_;
};

Diagnosis MustDiagnose(const Trace& trace, const DiagnoseRequest& request) {
  absl::StatusOr<Diagnosis> diagnosis = Diagnose(trace, request);
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return diagnosis.ok() ? *std::move(diagnosis) : Diagnosis();
}

const GapTotal& GapsOf(const DeviceTime& device, GapCause cause) {
  return device.gaps_by_cause[static_cast<size_t>(cause)];
}

const CategoryTime& TimeOf(const DeviceTime& device, KernelCategory category) {
  return device.categories[static_cast<size_t>(category)];
}

const CollectiveTime& TimeOf(const DeviceTime& device, Collective collective) {
  return device.collectives[static_cast<size_t>(collective)];
}

// Goal: overlapping streams are never counted twice and the parts are exact.
// Method: drawn by hand, events in no order (microseconds):
//   stream 7   gemm 0-100, flash 90-120 on stream 8, elementwise 200-210
//   stream 20  all-gather 80-150, reduce-scatter 140-180
//   stream 30  copy 110-190, fill 205-220
// compute 0-120 and 200-210, exposed communication 120-180, exposed copy
// 180-190 and 210-220, idle 190-200.
TEST(DiagnoseTest, SplitsOverlappingStreamsExactly) {
  TraceBuilder builder;
  builder.Add({.name = "elementwise", .start_us = 200, .end_us = 210});
  builder.Add({.name = "ncclDevKernel_ReduceScatter",
               .start_us = 140,
               .end_us = 180,
               .stream = 20});
  builder.Add(
      {.name = "flash_fwd", .start_us = 90, .end_us = 120, .stream = 8});
  builder.Add({.name = "ncclDevKernel_AllGather",
               .start_us = 80,
               .end_us = 150,
               .stream = 20});
  builder.Add({.name = "gemm", .start_us = 0, .end_us = 100});
  builder.Add({.name = "Memcpy HtoD",
               .start_us = 110,
               .end_us = 190,
               .stream = 30,
               .work = GpuWork::kCopy});
  builder.Add({.name = "Memset",
               .start_us = 205,
               .end_us = 220,
               .stream = 30,
               .work = GpuWork::kFill});
  const Diagnosis diagnosis = MustDiagnose(builder.Build(), {});
  ASSERT_EQ(diagnosis.devices.size(), 1);
  const DeviceTime& gpu = diagnosis.devices[0];
  EXPECT_EQ(gpu.split.window_ns, 220'000);
  EXPECT_EQ(gpu.split.compute_ns, 130'000);
  EXPECT_EQ(gpu.split.exposed_communication_ns, 60'000);
  EXPECT_EQ(gpu.split.exposed_copy_ns, 20'000);
  EXPECT_EQ(gpu.split.idle_ns, 10'000);
  EXPECT_EQ(gpu.communication_ns, 100'000);
  EXPECT_EQ(gpu.copy_ns, 95'000);
  EXPECT_EQ(TimeOf(gpu, KernelCategory::kGemm).share_ns, 100'000);
  EXPECT_EQ(TimeOf(gpu, KernelCategory::kAttention).share_ns, 20'000);
  EXPECT_EQ(TimeOf(gpu, KernelCategory::kAttention).sum_ns, 30'000);
  EXPECT_EQ(TimeOf(gpu, KernelCategory::kElementwise).share_ns, 10'000);
  EXPECT_EQ(TimeOf(gpu, Collective::kAllGather).busy_ns, 70'000);
  EXPECT_EQ(TimeOf(gpu, Collective::kAllGather).overlapped_ns, 40'000);
  EXPECT_EQ(TimeOf(gpu, Collective::kAllGather).exposed_ns, 30'000);
  EXPECT_EQ(TimeOf(gpu, Collective::kReduceScatter).busy_ns, 40'000);
  EXPECT_EQ(TimeOf(gpu, Collective::kReduceScatter).exposed_ns, 30'000)
      << "140-150 is the all-gather's";
  ASSERT_EQ(gpu.streams.size(), 4);
  EXPECT_EQ(gpu.streams[0].stream, 7);
  EXPECT_EQ(gpu.streams[0].split.compute_ns, 110'000);
  EXPECT_EQ(gpu.streams[0].split.idle_ns, 110'000);
  EXPECT_EQ(gpu.streams[2].split.exposed_communication_ns, 100'000)
      << "a stream by itself has nothing to hide under";
}

// Goal: the parts add up, whatever the trace. Method: random events on two
// devices and three streams with four steps; the seed prints with a failure.
TEST(DiagnoseTest, PartsAlwaysAddUp) {
  const std::vector<std::string> names = {
      "gemm", "flash", "elementwise", "ncclAllReduce", "ncclAllGather", "x"};
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    TraceBuilder builder;
    for (int i = 0; i < 40; ++i) {
      const int64_t start = random() % 400;
      const auto work = random() % 5 == 0 ? GpuWork::kCopy : GpuWork::kKernel;
      builder.Add({.name = names[random() % names.size()],
                   .start_us = start,
                   .end_us = start + static_cast<int64_t>(random() % 20),
                   .stream = static_cast<int64_t>(random() % 3),
                   .device = static_cast<int32_t>(random() % 2),
                   .work = work});
    }
    for (int step = 0; step < 4; ++step) {
      builder.Step(step, step * 100, step * 100 + 90, std::nullopt);
    }
    for (const bool whole : {false, true}) {
      const Diagnosis diagnosis =
          MustDiagnose(builder.Build(), {.whole = whole});
      for (const DeviceTime& gpu : diagnosis.devices) {
        const TimeSplit& split = gpu.split;
        ASSERT_EQ(split.compute_ns + split.exposed_communication_ns +
                      split.exposed_copy_ns + split.idle_ns,
                  split.window_ns)
            << "seed " << seed;
        int64_t compute_ns = 0;
        for (const CategoryTime& time : gpu.categories) {
          compute_ns += time.share_ns;
        }
        compute_ns -= TimeOf(gpu, KernelCategory::kCommunication).share_ns;
        ASSERT_EQ(compute_ns, split.compute_ns) << "seed " << seed;
        int64_t exposed_ns = 0;
        for (const CollectiveTime& time : gpu.collectives) {
          exposed_ns += time.exposed_ns;
        }
        ASSERT_EQ(exposed_ns, split.exposed_communication_ns);
        int64_t idle_ns = 0;
        for (const GapTotal& total : gpu.gaps_by_cause) {
          idle_ns += total.idle_ns;
        }
        ASSERT_EQ(idle_ns, split.idle_ns) << "seed " << seed;
      }
    }
  }
}

// Goal: each gap gets the cause that the host's calls show. Method: one gap of
// each sort and length, in microseconds:
//   10-30   launched at 20-25: launch, 5 within the call
//   40-41   launched at 5-6: queued
//   50-90   launched at 85-88 after a synchronize of 35-80: synchronize
//   100-160 launched at 155-158, cudaMalloc 110-150: allocate
//   170-173 no launch recorded: unknown
TEST(DiagnoseTest, ExplainsGaps) {
  TraceBuilder builder;
  const auto kernel = [&](int64_t start, int64_t end, int64_t correlation) {
    builder.Add({.name = absl::StrCat("k", start),
                 .start_us = start,
                 .end_us = end,
                 .correlation = correlation,
                 .external_id = correlation});
  };
  kernel(0, 10, 1);
  kernel(30, 40, 2);
  kernel(41, 50, 3);
  kernel(90, 100, 4);
  kernel(160, 170, 5);
  kernel(173, 180, kNoId);
  builder.Op("aten::mm", 4);
  builder.Call("cudaLaunchKernel", -5, -1, 1);
  builder.Call("cudaLaunchKernel", 20, 25, 2);
  builder.Call("cuLaunchKernelEx", 5, 6, 3);
  builder.Call("cudaStreamSynchronize", 35, 80, 90);
  builder.Call("cudaDeviceSynchronize", 0, 158, 91, /*thread=*/2);
  builder.Call("cudaLaunchKernel", 85, 88, 4);
  builder.Call("cudaMalloc", 110, 150, 92);
  builder.Call("cudaLaunchKernel", 155, 158, 5);
  const Diagnosis diagnosis = MustDiagnose(builder.Build(), {});
  const DeviceTime& gpu = diagnosis.devices.at(0);
  EXPECT_EQ(GapsOf(gpu, GapCause::kLaunch).idle_ns, 20'000);
  EXPECT_EQ(gpu.launch_call_ns, 5'000);
  EXPECT_EQ(GapsOf(gpu, GapCause::kQueued).idle_ns, 1'000);
  EXPECT_EQ(GapsOf(gpu, GapCause::kSynchronize).idle_ns, 40'000);
  EXPECT_EQ(GapsOf(gpu, GapCause::kAllocate).idle_ns, 60'000);
  EXPECT_EQ(GapsOf(gpu, GapCause::kUnknown).idle_ns, 3'000);
  EXPECT_EQ(GapsOf(gpu, GapCause::kEnd).num_gaps, 0);
  ASSERT_EQ(gpu.largest_gaps.size(), 5);
  EXPECT_EQ(gpu.largest_gaps[0].time, (Interval{100'000, 160'000}));
  const Gap& second = gpu.largest_gaps[1];
  EXPECT_EQ(second.next, "k90");
  EXPECT_EQ(second.launched_by, "cudaLaunchKernel");
  EXPECT_EQ(second.op, "aten::mm");
  EXPECT_EQ(gpu.largest_gaps[0].op, "") << "op 5 was not recorded";
}

// Goal: steps are told apart by the device's own annotations, reach to the next
// one's start, and the median or the wanted one is shown. Method: steps of 50,
// 30 and 40 us, the host's annotations elsewhere.
TEST(DiagnoseTest, SplitsSteps) {
  TraceBuilder builder;
  builder.Add({.name = "gemm", .start_us = 100, .end_us = 140});
  builder.Add({.name = "gemm", .start_us = 150, .end_us = 155});
  builder.Add({.name = "gemm", .start_us = 180, .end_us = 220});
  builder.Step(5, 0, 60, std::nullopt);
  builder.Step(5, 110, 140, 0);  // One mark a stream.
  builder.Step(5, 100, 120, 0);
  builder.Step(6, 150, 155, 0);
  builder.Step(7, 180, 220, 0);
  const Trace trace = builder.Build();
  const Diagnosis median = MustDiagnose(trace, {});
  ASSERT_EQ(median.steps.size(), 3);
  EXPECT_EQ(median.steps[0].length_ns, 50'000);
  EXPECT_EQ(median.steps[0].split.idle_ns, 10'000);
  EXPECT_EQ(median.steps[1].length_ns, 30'000);
  EXPECT_EQ(median.steps[1].split.compute_ns, 5'000);
  EXPECT_EQ(median.steps[2].length_ns, 40'000);
  EXPECT_EQ(median.median_step, 7);
  EXPECT_EQ(median.step, 7);
  EXPECT_EQ(median.total.split.window_ns, 40'000);

  const Diagnosis sixth = MustDiagnose(trace, {.step = 6});
  EXPECT_EQ(sixth.step, 6);
  EXPECT_EQ(sixth.total.split.compute_ns, 5'000);
  EXPECT_EQ(GapsOf(sixth.total, GapCause::kEnd).idle_ns, 25'000);

  const Diagnosis whole = MustDiagnose(trace, {.whole = true});
  EXPECT_EQ(whole.step, std::nullopt);
  EXPECT_EQ(whole.total.split.window_ns, 120'000);
  EXPECT_EQ(whole.median_step, 7);

  EXPECT_THAT(Diagnose(trace, {.step = 8}).status().message(),
              AllOf(HasSubstr("--step 8"), HasSubstr("5, 6, 7")));
}

// Goal: with host annotations alone, a step's window is the host's, and the
// last one waits for the work launched within it. Method: a kernel that ends
// after its step, one launched after the last step.
TEST(DiagnoseTest, UsesTheHostsStepsWhereTheDeviceHasNone) {
  TraceBuilder builder;
  builder.Step(1, 0, 10, std::nullopt);
  builder.Step(2, 12, 20, std::nullopt);
  builder.Add({.name = "gemm", .start_us = 5, .end_us = 9, .correlation = 1});
  builder.Add({.name = "gemm", .start_us = 18, .end_us = 33, .correlation = 2});
  builder.Add({.name = "gemm", .start_us = 40, .end_us = 50, .correlation = 3});
  builder.Call("cudaLaunchKernel", 1, 2, 1);
  builder.Call("cudaLaunchKernel", 15, 16, 2);
  builder.Call("cudaLaunchKernel", 20, 21, 3);
  const Diagnosis diagnosis = MustDiagnose(builder.Build(), {});
  ASSERT_EQ(diagnosis.steps.size(), 2);
  EXPECT_EQ(diagnosis.steps[0].length_ns, 12'000);
  EXPECT_EQ(diagnosis.steps[1].length_ns, 21'000);
  EXPECT_EQ(diagnosis.step, 1) << "of two, the shorter";
}

// Goal: devices are told apart and summed. Method: two devices, one with
// exposed communication that the other's compute must not hide.
TEST(DiagnoseTest, KeepsDevicesApart) {
  TraceBuilder builder;
  builder.Add({.name = "gemm", .start_us = 0, .end_us = 50, .device = 0});
  builder.Add({.name = "ncclAllReduce",
               .start_us = 10,
               .end_us = 30,
               .stream = 20,
               .device = 1});
  const Diagnosis diagnosis = MustDiagnose(builder.Build(), {});
  ASSERT_EQ(diagnosis.devices.size(), 2);
  EXPECT_EQ(diagnosis.devices[1].split.exposed_communication_ns, 20'000);
  EXPECT_EQ(diagnosis.total.split.window_ns, 70'000);
  EXPECT_EQ(diagnosis.total.split.compute_ns, 50'000);
  EXPECT_EQ(TimeOf(diagnosis.total, Collective::kAllReduce).exposed_ns, 20'000);
}

// Goal: the longest kernels are totalled by name over their parts within the
// window. Method: twelve names of which two are the least; copies do not count.
TEST(DiagnoseTest, TotalsTheLongestKernels) {
  TraceBuilder builder;
  int64_t at = 0;
  for (int i = 1; i <= 12; ++i) {
    const std::string name = absl::StrCat("k", i);
    builder.Add({.name = name, .start_us = at, .end_us = at + i});
    at += i;
  }
  builder.Add({.name = "Memcpy",
               .start_us = at,
               .end_us = at + 100,
               .work = GpuWork::kCopy});
  const Diagnosis diagnosis = MustDiagnose(builder.Build(), {});
  ASSERT_EQ(diagnosis.longest_kernels.size(), 10);
  EXPECT_EQ(diagnosis.longest_kernels[0].name, "k12");
  EXPECT_EQ(diagnosis.longest_kernels[0].sum_ns, 12'000);
  EXPECT_EQ(diagnosis.longest_kernels[9].name, "k3");
  EXPECT_EQ(diagnosis.total.num_short_kernels, 9) << "below 10 us";
  EXPECT_EQ(diagnosis.total.short_kernel_ns, 45'000);
}

// Goal: a hint's bound is the figure it rests on, the largest comes first, and
// what is below a hundredth is left out. Method: 100 us of GEMM, 50 us of
// exposed all-gather, a gap of 1 us in 151.
TEST(HintsTest, BoundsAreTheFigures) {
  TraceBuilder builder;
  builder.Add({.name = "gemm", .start_us = 0, .end_us = 100});
  builder.Add(
      {.name = "ncclAllGather", .start_us = 60, .end_us = 150, .stream = 20});
  builder.Add({.name = "gemm", .start_us = 151, .end_us = 170});
  const std::vector<Hint> hints = HintsFor(MustDiagnose(builder.Build(), {}));
  ASSERT_EQ(hints.size(), 1);
  EXPECT_EQ(hints[0].id, "exposed_all-gather");
  EXPECT_EQ(hints[0].saves_at_most_ns, 50'000);
  EXPECT_THAT(hints[0].evidence,
              AllOf(HasSubstr("90.0 us"), HasSubstr("50.0 us")));
}

// Goal: a trace of the CPU alone, or whose GPU events are useless, is refused
// with how to record one. Method: both.
TEST(DiagnoseTest, RefusesTracesWithoutGpuWork) {
  Trace trace;
  trace.num_events = 12;
  EXPECT_THAT(Diagnose(trace, {}).status().message(),
              AllOf(HasSubstr("12 events and none of a GPU"),
                    HasSubstr("ProfilerActivity.CUDA")));
  trace.num_skipped = 3;
  EXPECT_THAT(Diagnose(trace, {}).status().message(),
              HasSubstr("3 GPU events, all without a usable ts"));
}

// Goal: --step without annotations says how to get them. Method: one kernel.
TEST(DiagnoseTest, RefusesAStepWithoutAnnotations) {
  TraceBuilder builder;
  builder.Add({.name = "gemm", .start_us = 0, .end_us = 1});
  const absl::Status status = Diagnose(builder.Build(), {.step = 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("profiler.step()"));
}

}  // namespace
}  // namespace millrace
