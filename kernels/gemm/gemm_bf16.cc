#include "kernels/gemm/gemm_bf16.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"
#include "kernels/gemm/gemm_algorithm_table.h"
#include "kernels/gemm/gemm_bf16_sm90.h"
#include "kernels/gemm/gemm_cublaslt.h"

namespace millrace {
namespace {

std::string Name(const GemmBf16Shape& shape) {
  return absl::StrCat("bf16 GEMM ", GemmBf16ShapeWord(shape));
}

bool UsesAux(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kGeluSave ||
         epilogue == GemmEpilogue::kGeluBiasSave ||
         epilogue == GemmEpilogue::kGeluGradient ||
         epilogue == GemmEpilogue::kGeluBiasGradient;
}

// Checks a shape and says its strides where they are zero.
absl::StatusOr<GemmBf16Shape> CheckedShape(GemmBf16Shape shape) {
  auto refuse = [&](const auto&... reason) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(shape), ": ", reason...));
  };
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  for (const int64_t size : {shape.m, shape.n, shape.k}) {
    if (size < 1 || size > kMaxSize) {
      return refuse("sizes are from 1 to ", kMaxSize, "; got ", size);
    }
  }
  struct Operand {
    const char* name;
    int64_t* stride;
    int64_t columns;
  };
  for (const Operand& operand :
       {Operand{"a", &shape.a_stride, shape.trans_a ? shape.m : shape.k},
        Operand{"b", &shape.b_stride, shape.trans_b ? shape.k : shape.n},
        Operand{"c", &shape.c_stride, shape.n},
        Operand{"aux", &shape.aux_stride, shape.n}}) {
    if (*operand.stride == 0) *operand.stride = operand.columns;
    if (*operand.stride < operand.columns) {
      return refuse("rows of ", operand.name, " have ", operand.columns,
                    " elements, more than their stride of ", *operand.stride);
    }
  }
  if (UsesAux(shape.epilogue) && shape.aux_stride % 8 != 0) {
    return refuse("the stride of aux is a multiple of 8; got ",
                  shape.aux_stride);
  }
  if (shape.accumulate && shape.epilogue != GemmEpilogue::kNone &&
      shape.epilogue != GemmEpilogue::kSumA &&
      shape.epilogue != GemmEpilogue::kSumB) {
    return refuse("an epilogue that changes the product does not add to c");
  }
  return shape;
}

absl::Status CheckOptions(const GemmBf16Options& options) {
  if (options.max_workspace_bytes < 0 || options.num_multiprocessors < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "GEMM options: workspace and multiprocessors are not negative; got ",
        options.max_workspace_bytes, " bytes and ",
        options.num_multiprocessors));
  }
  return absl::OkStatus();
}

LtProblem Problem(const GemmBf16Shape& shape, const GemmBf16Options& options) {
  return {.name = Name(shape),
          .m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .trans_a = shape.trans_a,
          .trans_b = shape.trans_b,
          .accumulate = shape.accumulate,
          .a_type = LtType::kBf16,
          .b_type = LtType::kBf16,
          .c_type = shape.fp32_output ? LtType::kFp32 : LtType::kBf16,
          .epilogue = shape.epilogue,
          .a_stride = shape.a_stride,
          .b_stride = shape.b_stride,
          .c_stride = shape.c_stride,
          .aux_stride = shape.aux_stride,
          .fast_accumulation = false,
          .num_multiprocessors = options.num_multiprocessors,
          .max_workspace_bytes = options.max_workspace_bytes};
}

}  // namespace

struct GemmBf16Plan::Impl {
  GemmBf16Shape shape;  // With strides.
  GemmBf16Shape shape_as_given;
  GemmAlgorithm algorithm;
  int num_multiprocessors;
  std::optional<LtMatmul> cublaslt;
  std::optional<GemmSm90Config> sm90;  // One of the two.
};

GemmBf16Plan::GemmBf16Plan(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
GemmBf16Plan::GemmBf16Plan(GemmBf16Plan&&) noexcept = default;
GemmBf16Plan& GemmBf16Plan::operator=(GemmBf16Plan&&) noexcept = default;
GemmBf16Plan::~GemmBf16Plan() = default;

const GemmBf16Shape& GemmBf16Plan::shape() const {
  return impl_->shape_as_given;
}
const GemmAlgorithm& GemmBf16Plan::algorithm() const {
  return impl_->algorithm;
}
int64_t GemmBf16Plan::workspace_bytes() const {
  return impl_->cublaslt.has_value()
             ? impl_->cublaslt->algorithm().workspace_bytes
             : 0;
}

absl::StatusOr<GemmBf16Plan> GemmBf16Plan::Create(
    const GemmBf16Shape& shape, const GemmBf16Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->shape_as_given = shape;
  ASSIGN_OR_RETURN(impl->shape, CheckedShape(shape));
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const DeviceLimits limits, CurrentDeviceLimits());
  impl->num_multiprocessors =
      options.num_multiprocessors == 0
          ? limits.num_multiprocessors
          : std::min(options.num_multiprocessors, limits.num_multiprocessors);
  const GemmAlgorithm wanted = options.algorithm.value_or(GemmAlgorithm());
  if (!wanted.text.empty()) {
    const absl::StatusOr<GemmSm90Config> config = ParseGemmSm90(wanted);
    if (config.ok()) {
      RETURN_IF_ERROR(CheckGemmSm90(impl->shape));
      impl->sm90 = *config;
      impl->algorithm = wanted;
      return GemmBf16Plan(std::move(impl));
    }
    if (!absl::IsNotFound(config.status())) return config.status();
    const absl::Status version = CheckLtVersion(wanted);
    if (absl::IsNotFound(version)) {
      return absl::InvalidArgumentError(absl::StrCat(
          Name(shape), ": \"", wanted.text,
          "\" is no algorithm known here (those of cuBLASLt and wgmma are)"));
    }
    RETURN_IF_ERROR(version);
  }
  ASSIGN_OR_RETURN(impl->cublaslt,
                   LtMatmul::Create(Problem(impl->shape, options), wanted));
  impl->algorithm = impl->cublaslt->algorithm().algorithm;
  return GemmBf16Plan(std::move(impl));
}

absl::Status GemmBf16Plan::Run(const GemmBf16Args& args,
                               cudaStream_t stream) const {
  if (impl_->sm90.has_value()) {
    return LaunchGemmSm90(*impl_->sm90, impl_->shape,
                          impl_->num_multiprocessors, args, stream);
  }
  return impl_->cublaslt->Run({.c = args.c,
                               .a = args.a,
                               .b = args.b,
                               .bias = args.bias,
                               .aux = args.aux,
                               .a_scale = nullptr,
                               .b_scale = nullptr,
                               .scale = args.scale,
                               .workspace = args.workspace},
                              stream);
}

namespace {

// Two events around what a stream does.
class Stopwatch {
 public:
  static absl::StatusOr<Stopwatch> Create() {
    Stopwatch watch;
    for (cudaEvent_t* event : {&watch.start_, &watch.end_}) {
      RETURN_IF_ERROR(CudaStatus(cudaEventCreate(event), "create an event"));
    }
    return watch;
  }
  Stopwatch(Stopwatch&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)),
        end_(std::exchange(other.end_, nullptr)) {}
  ~Stopwatch() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  // Milliseconds that one of `num_calls` calls takes; waits for them.
  template <typename Call>
  absl::StatusOr<double> Time(const Call& call, int num_calls,
                              cudaStream_t stream) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(start_, stream), "record an event"));
    for (int i = 0; i < num_calls; ++i) RETURN_IF_ERROR(call(i));
    RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(end_, stream), "record an event"));
    RETURN_IF_ERROR(
        CudaStatus(cudaEventSynchronize(end_), "wait for a measured GEMM"));
    float milliseconds = 0;
    RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, start_, end_),
                   "read the time of a measured GEMM"));
    return milliseconds / num_calls;
  }

 private:
  Stopwatch() = default;

  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

absl::StatusOr<std::vector<GemmAlgorithm>> Candidates(
    const GemmBf16Shape& shape, const GemmBf16Options& options,
    int max_candidates) {
  ASSIGN_OR_RETURN(const auto from_cublaslt,
                   LtCandidates(Problem(shape, options), max_candidates));
  std::vector<GemmAlgorithm> candidates;
  for (const LtAlgorithm& candidate : from_cublaslt) {
    candidates.push_back(candidate.algorithm);
  }
  if (CheckGemmSm90(shape).ok()) {
    for (const GemmSm90Config& config : GemmSm90Candidates()) {
      candidates.push_back(FormatGemmSm90(config));
    }
  }
  return candidates;
}

}  // namespace

absl::StatusOr<std::vector<GemmMeasurement>> MeasureGemmBf16(
    const GemmBf16Shape& shape, const GemmBf16Options& options,
    absl::Span<const GemmBf16Args> sets, int max_candidates,
    cudaStream_t stream) {
  constexpr int kRounds = 5;
  constexpr int kFinalRounds = 6;           // More, of those that are close.
  constexpr double kClose = 1.02;           // Times the fastest median.
  constexpr double kBurstMilliseconds = 4;  // Short against the power limit.
  constexpr absl::Duration kRest = absl::Milliseconds(10);
  constexpr double kHopeless = 1.3;  // Times the fastest, in one run.
  ASSIGN_OR_RETURN(const GemmBf16Shape checked, CheckedShape(shape));
  RETURN_IF_ERROR(CheckOptions(options));
  if (sets.empty() || max_candidates < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(shape),
                     ": measuring takes at least one set of buffers and one "
                     "candidate; got ",
                     sets.size(), " and ", max_candidates));
  }
  ASSIGN_OR_RETURN(const std::vector<GemmAlgorithm> candidates,
                   Candidates(checked, options, max_candidates));
  ASSIGN_OR_RETURN(Stopwatch watch, Stopwatch::Create());

  struct Runner {
    GemmBf16Plan plan;
    double once;
    std::vector<double> times;
  };
  const int num_sets = static_cast<int>(sets.size());
  std::vector<Runner> runners;
  double fastest = std::numeric_limits<double>::infinity();
  auto run = [&](const GemmBf16Plan& plan) {
    return [&, stream](int i) { return plan.Run(sets[i % num_sets], stream); };
  };
  for (const GemmAlgorithm& candidate : candidates) {
    GemmBf16Options with = options;
    with.algorithm = candidate;
    absl::StatusOr<GemmBf16Plan> plan = GemmBf16Plan::Create(shape, with);
    // The heuristic also names what then refuses to run.
    if (!plan.ok()) continue;
    if (!run(*plan)(0).ok()) continue;
    ASSIGN_OR_RETURN(const double once,
                     watch.Time(run(*plan), num_sets, stream));
    fastest = std::min(fastest, once);
    runners.push_back({*std::move(plan), once, {}});
  }
  std::erase_if(runners, [&](const Runner& runner) {
    return runner.once > kHopeless * fastest;
  });
  auto median = [](std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2,
                     times.end());
    return times[times.size() / 2];
  };
  auto measure = [&](Runner& runner) -> absl::Status {
    absl::SleepFor(kRest);
    const int num_calls = std::clamp(
        static_cast<int>(kBurstMilliseconds / runner.once), num_sets, 400);
    // The first call wakes the clocks and is not counted.
    RETURN_IF_ERROR(run(runner.plan)(0));
    ASSIGN_OR_RETURN(const double milliseconds,
                     watch.Time(run(runner.plan), num_calls, stream));
    runner.times.push_back(milliseconds);
    return absl::OkStatus();
  };
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds + kFinalRounds; ++round) {
    if (round == kRounds) {
      for (const Runner& runner : runners) {
        best = std::min(best, median(runner.times));
      }
    }
    for (size_t i = 0; i < runners.size(); ++i) {
      // There and back, so that none always follows the same other.
      Runner& runner = runners[round % 2 == 0 ? i : runners.size() - 1 - i];
      if (round >= kRounds && median(runner.times) > kClose * best) continue;
      RETURN_IF_ERROR(measure(runner));
    }
  }
  std::vector<GemmMeasurement> measurements;
  for (const Runner& runner : runners) {
    measurements.push_back({runner.plan.algorithm(), median(runner.times),
                            runner.plan.workspace_bytes()});
  }
  std::sort(measurements.begin(), measurements.end(),
            [](const GemmMeasurement& x, const GemmMeasurement& y) {
              return x.milliseconds < y.milliseconds;
            });
  if (measurements.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(shape), ": none of ", candidates.size(), " candidates runs"));
  }
  return measurements;
}

}  // namespace millrace
