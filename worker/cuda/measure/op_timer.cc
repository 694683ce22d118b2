#include "worker/cuda/measure/op_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/cast_bf16.h"
#include "kernels/pointwise/random_normal_cuda.h"
#include "planner/program/op_table.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

constexpr int64_t kNumNormals = int64_t{8} << 20;
// Logits of weights any larger leave most probabilities, and so most of their
// gradient, at zero, which costs a chip less than training does.
constexpr double kWeightStd = 0.02;
constexpr int32_t kTrialRuns = 2;
constexpr int32_t kMaxRuns = 200;
constexpr int kNumGraphs = 3;
// The measurements among surroundings, where a chip at its power limit changes
// its clocks by some percent from one burst to the next. The times below are
// those of a graph, of the mix before it, and of the mix before the first
// graph.
constexpr int kNumBursts = 5;
constexpr double kBurstSeconds = 4e-3;
constexpr double kMixSeconds = 20e-3;
constexpr double kFirstMixSeconds = 120e-3;

// Copies `pattern` again and again until `num_bytes` are full.
absl::Status Tile(std::byte* to, int64_t num_bytes, const void* pattern,
                  int64_t pattern_bytes, cudaStream_t stream) {
  for (int64_t begin = 0; begin < num_bytes; begin += pattern_bytes) {
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(
            to + begin, pattern,
            static_cast<size_t>(std::min(pattern_bytes, num_bytes - begin)),
            cudaMemcpyDeviceToDevice, stream),
        "fill an operand"));
  }
  return absl::OkStatus();
}

// Ids far apart, as those of real text are; no flags, and whole sequences.
std::vector<int32_t> Ids(const Instruction& in, int64_t count) {
  const auto* vocabulary = std::get_if<VocabAttributes>(&in.attributes);
  const int64_t modulus = vocabulary == nullptr ? 1 : vocabulary->vocab_rows;
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    ids[i] = static_cast<int32_t>(i * 2654435761 % modulus);
  }
  return ids;
}

// Every second instruction on a lane of communication, each behind the one
// before it.
void AlternateLanes(Program* program) {
  for (std::vector<InstructionId>& lane : program->lanes) lane.clear();
  for (size_t i = 0; i < program->instructions.size(); ++i) {
    Instruction& instruction = program->instructions[i];
    const auto id = static_cast<InstructionId>(i);
    instruction.lane = i % 2 == 0 ? Lane::kCompute : Lane::kTensorComm;
    if (i > 0) instruction.waits = {id - 1};
    program->lanes[static_cast<int>(instruction.lane)].push_back(id);
  }
}

bool IsHeadWeight(const Instruction& in, size_t input) {
  return input == 1 && Describe(in.kind).profile == ProfileTable::kCrossEntropy;
}

}  // namespace

struct CudaOpTimer::Prepared {
  Program program;
  std::unique_ptr<CudaKernelCache> kernels;
  std::unique_ptr<DeviceArenas> arenas;
  std::unique_ptr<DeviceBuffer<int32_t>> ids;
  CudaStepInputs inputs;
  std::unique_ptr<CudaPreparedProgram> ops;
};

class CudaOpTimer::Loop : public TimedLoop {
 public:
  Loop(CudaExecutor* executor, std::unique_ptr<Prepared> prepared,
       CudaEvent start, CudaEvent end)
      : executor_(executor),
        prepared_(std::move(prepared)),
        start_(std::move(start)),
        end_(std::move(end)) {}

  absl::Status Start() override {
    RETURN_IF_ERROR(start_.Record(executor_->stream()));
    RETURN_IF_ERROR(executor_->Run(*prepared_->ops));
    return end_.Record(executor_->stream());
  }
  absl::StatusOr<double> Finish() override {
    RETURN_IF_ERROR(executor_->Synchronize());
    return end_.SecondsSince(start_);
  }

 private:
  CudaExecutor* executor_;
  std::unique_ptr<Prepared> prepared_;
  CudaEvent start_;
  CudaEvent end_;
};

class CudaOpTimer::SurroundingsLoop : public TimedLoop {
 public:
  SurroundingsLoop(CudaOpTimer* timer, double seconds, CudaEvent start,
                   CudaEvent end)
      : timer_(timer),
        seconds_(seconds),
        start_(std::move(start)),
        end_(std::move(end)) {}

  absl::Status Start() override {
    RETURN_IF_ERROR(start_.Record(timer_->executor_->stream()));
    timer_->next_part_ = 0;  // So that every run is the same.
    RETURN_IF_ERROR(timer_->RunSurroundings(seconds_));
    return end_.Record(timer_->executor_->stream());
  }
  absl::StatusOr<double> Finish() override {
    RETURN_IF_ERROR(timer_->executor_->Synchronize());
    return end_.SecondsSince(start_);
  }

 private:
  CudaOpTimer* timer_;
  const double seconds_;
  CudaEvent start_;
  CudaEvent end_;
};

absl::StatusOr<std::unique_ptr<CudaOpTimer>> CudaOpTimer::Create(
    Precision precision, GemmAlgorithmTable algorithms) {
  ASSIGN_OR_RETURN(std::string chip, CurrentChipWord());
  ASSIGN_OR_RETURN(auto executor, CudaExecutor::Create({.name = "profiling"}));
  ASSIGN_OR_RETURN(auto normals, DeviceBuffer<float>::Allocate(kNumNormals));
  ASSIGN_OR_RETURN(auto bf16_normals,
                   DeviceBuffer<uint16_t>::Allocate(kNumNormals));
  ASSIGN_OR_RETURN(auto small_normals,
                   DeviceBuffer<uint16_t>::Allocate(kNumNormals));
  ASSIGN_OR_RETURN(auto float8_normals,
                   DeviceBuffer<uint8_t>::Allocate(kNumNormals));
  ASSIGN_OR_RETURN(auto step, DeviceBuffer<AdamWStep>::Allocate(1));
  const AdamWStep first = {.learning_rate = 1e-6, .step = 1};
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(step.data(), &first, sizeof(first), cudaMemcpyHostToDevice),
      "copy a step's number"));
  struct Draw {
    double std;
    uint16_t* rounded;
  };
  for (const Draw& draw : {Draw{kWeightStd, small_normals.data()},
                           Draw{1.0, bf16_normals.data()}}) {
    RETURN_IF_ERROR(LaunchFillNormalBox({.out = normals.data(),
                                         .begin = 0,
                                         .end = kNumNormals,
                                         .row_begin = 0,
                                         .col_begin = 0,
                                         .box_cols = kNumNormals,
                                         .cols = kNumNormals,
                                         .std = draw.std,
                                         .seed = 1,
                                         .stream = 1},
                                        executor->stream()));
    RETURN_IF_ERROR(LaunchCastToBf16({.y = draw.rounded,
                                      .x = normals.data(),
                                      .num_elements = kNumNormals,
                                      .stochastic = false},
                                     executor->stream()));
  }
  constexpr int64_t kColumns = 1024;
  RETURN_IF_ERROR(LaunchQuantizeFloat8Bf16({.y = float8_normals.data(),
                                            .y_transposed = nullptr,
                                            .amax = nullptr,
                                            .x = bf16_normals.data(),
                                            .x_row_stride = kColumns,
                                            .rows = kNumNormals / kColumns,
                                            .columns = kColumns,
                                            .scale = nullptr,
                                            .format = Float8Format::kE4m3},
                                           executor->stream()));
  RETURN_IF_ERROR(executor->Synchronize());
  return std::unique_ptr<CudaOpTimer>(new CudaOpTimer(
      precision, std::move(algorithms), std::move(chip), std::move(executor),
      std::move(normals), std::move(bf16_normals), std::move(small_normals),
      std::move(float8_normals), std::move(step)));
}

CudaOpTimer::CudaOpTimer(
    Precision precision, GemmAlgorithmTable algorithms, std::string chip,
    std::unique_ptr<CudaExecutor> executor, DeviceBuffer<float> normals,
    DeviceBuffer<uint16_t> bf16_normals, DeviceBuffer<uint16_t> small_normals,
    DeviceBuffer<uint8_t> float8_normals, DeviceBuffer<AdamWStep> step)
    : precision_(precision),
      algorithms_(std::move(algorithms)),
      chip_(std::move(chip)),
      executor_(std::move(executor)),
      normals_(std::move(normals)),
      bf16_normals_(std::move(bf16_normals)),
      small_normals_(std::move(small_normals)),
      float8_normals_(std::move(float8_normals)),
      step_(std::move(step)) {}
CudaOpTimer::~CudaOpTimer() = default;

int64_t CudaOpTimer::held_bytes() const {
  return static_cast<int64_t>(normals_.size() * sizeof(float) +
                              (bf16_normals_.size() + small_normals_.size()) *
                                  sizeof(uint16_t) +
                              float8_normals_.size());
}

// Buffers that an op only writes, workspaces among them, keep their content.
absl::Status CudaOpTimer::FillOperands(const Program& program,
                                       const DeviceArenas& arenas) {
  cudaStream_t stream = executor_->stream();
  std::vector<bool> is_filled(program.buffers.size(), false);
  for (const Instruction& in : program.instructions) {
    for (size_t i = 0; i < in.inputs.size(); ++i) {
      const BufferId id = in.inputs[i];
      if (is_filled[id]) continue;
      is_filled[id] = true;
      const Buffer& buffer = program.buffers[id];
      std::byte* const data = arenas.At(buffer);
      switch (buffer.dtype) {
        case DType::kFloat32:
          // Units are above zero, or attention would compute other numbers.
          if (in.kind == OpKind::kFloat8AttentionForward) {
            constexpr int kByte = 0x3D;  // Four of them are 0.046 in fp32.
            RETURN_IF_ERROR(CudaStatus(
                cudaMemsetAsync(data, kByte, static_cast<size_t>(buffer.bytes),
                                stream),
                "fill units"));
            break;
          }
          RETURN_IF_ERROR(Tile(data, buffer.bytes, normals_.data(),
                               kNumNormals * 4, stream));
          break;
        case DType::kBfloat16:
          RETURN_IF_ERROR(Tile(data, buffer.bytes,
                               IsHeadWeight(in, i) ? small_normals_.data()
                                                   : bf16_normals_.data(),
                               kNumNormals * 2, stream));
          break;
        case DType::kFloat8E4m3:
          RETURN_IF_ERROR(Tile(data, buffer.bytes, float8_normals_.data(),
                               kNumNormals, stream));
          break;
        case DType::kInt32: {
          const std::vector<int32_t> ids = Ids(in, buffer.dims[0]);
          // The copy waits for what the stream was given before.
          RETURN_IF_ERROR(
              CudaStatus(cudaMemcpyAsync(data, ids.data(),
                                         static_cast<size_t>(buffer.bytes),
                                         cudaMemcpyHostToDevice, stream),
                         "copy ids"));
          RETURN_IF_ERROR(executor_->Synchronize());
          break;
        }
        case DType::kFloat64:
        case DType::kSignedBlock8:
        case DType::kUnsignedBlock8:
          RETURN_IF_ERROR(CudaStatus(
              cudaMemsetAsync(data, 0, static_cast<size_t>(buffer.bytes),
                              stream),
              "zero scalars or moments"));
          break;
      }
    }
  }
  return executor_->Synchronize();
}

absl::StatusOr<std::unique_ptr<CudaOpTimer::Prepared>> CudaOpTimer::Prepare(
    std::span<const ProfileOp> ops, CudaExecutor& executor,
    bool alternates_lanes, Inputs inputs) {
  auto prepared = std::make_unique<Prepared>();
  Program& program = prepared->program;
  program = OpsProgram(precision_, ops, working_set_bytes_, inputs);
  if (alternates_lanes) AlternateLanes(&program);
  ASSIGN_OR_RETURN(prepared->kernels, CudaKernelCache::CreateWith(
                                          {.gemm_algorithms = algorithms_}));
  ASSIGN_OR_RETURN(DeviceArenas arenas,
                   DeviceArenas::Allocate(0, program.step_arena_bytes,
                                          /*patience=*/absl::ZeroDuration()));
  prepared->arenas = std::make_unique<DeviceArenas>(std::move(arenas));
  RETURN_IF_ERROR(FillOperands(program, *prepared->arenas));
  // Stands for the batches of a step.
  if (ops.front().kind == OpKind::kLoadBatch) {
    const auto& batch = std::get<ElementwiseAttributes>(ops.front().attributes);
    const int64_t num_ids = batch.rows * batch.cols;
    ASSIGN_OR_RETURN(auto ids, DeviceBuffer<int32_t>::Allocate(
                                   static_cast<size_t>(num_ids)));
    prepared->ids = std::make_unique<DeviceBuffer<int32_t>>(std::move(ids));
    const int32_t* data = prepared->ids->data();
    prepared->inputs = {
        .tokens = data, .targets = data, .document_starts = data};
  }
  prepared->inputs.optimizer = step_.data();
  const CudaOpContext context = {.program = &program,
                                 .layout = program.layout,
                                 .coordinates = {},
                                 .arenas = prepared->arenas.get(),
                                 .kernels = prepared->kernels.get(),
                                 .inputs = &prepared->inputs,
                                 .training = &training_,
                                 .communicators = nullptr};
  std::vector<CudaOp> bound;
  for (const Instruction& in : program.instructions) {
    ASSIGN_OR_RETURN(bound.emplace_back(), BindCudaOp(context, in));
  }
  ASSIGN_OR_RETURN(prepared->ops,
                   CudaPreparedProgram::Create(&program, std::move(bound)));
  // The first run loads kernels, the second makes the graph.
  for (int i = 0; i < 2; ++i) {
    RETURN_IF_ERROR(executor.Run(*prepared->ops));
  }
  RETURN_IF_ERROR(executor.Synchronize());
  return prepared;
}

absl::StatusOr<std::unique_ptr<TimedLoop>> CudaOpTimer::MakeLoop(
    const ProfileOp& op, int32_t num_runs, Inputs inputs) {
  const std::vector<ProfileOp> runs(num_runs, op);
  return MakeLoopOn(*executor_, runs, /*alternates_lanes=*/false, inputs);
}

absl::StatusOr<std::unique_ptr<TimedLoop>> CudaOpTimer::MakeLoopOn(
    CudaExecutor& executor, std::span<const ProfileOp> ops,
    bool alternates_lanes, Inputs inputs) {
  ASSIGN_OR_RETURN(std::unique_ptr<Prepared> prepared,
                   Prepare(ops, executor, alternates_lanes, inputs));
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
  return std::make_unique<Loop>(&executor, std::move(prepared),
                                std::move(start), std::move(end));
}

absl::StatusOr<double> CudaOpTimer::TimeBetweenLanes() {
  const ProfileOp tiny = {OpKind::kAdd,
                          ElementwiseAttributes{.rows = 1, .cols = 8}};
  const std::vector<ProfileOp> runs(kMaxRuns, tiny);
  ASSIGN_OR_RETURN(
      const auto executor,
      CudaExecutor::Create({.name = "profiling", .note_progress = true}));
  double seconds[2] = {};
  for (const bool alternates : {false, true}) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TimedLoop> loop,
                     MakeLoopOn(*executor, runs, alternates));
    std::vector<double> times;
    for (int i = 0; i < kNumBursts; ++i) {
      RETURN_IF_ERROR(loop->Start());
      ASSIGN_OR_RETURN(times.emplace_back(), loop->Finish());
    }
    std::sort(times.begin(), times.end());
    seconds[alternates ? 1 : 0] = times[kNumBursts / 2] / kMaxRuns;
  }
  return std::max(0.0, seconds[1] - seconds[0]);
}

absl::StatusOr<double> CudaOpTimer::Time(const ProfileOp& op,
                                         double budget_seconds, Inputs inputs) {
  ASSIGN_OR_RETURN(std::unique_ptr<TimedLoop> loop,
                   MakeLoop(op, kTrialRuns, inputs));
  RETURN_IF_ERROR(loop->Start());
  ASSIGN_OR_RETURN(const double trial, loop->Finish());
  const bool is_alone = surroundings_.empty();
  const int num_graphs = is_alone ? kNumGraphs : kNumBursts;
  const double graph_seconds =
      is_alone ? budget_seconds / num_graphs
               : std::min(kBurstSeconds, budget_seconds / num_graphs);
  const auto num_runs = static_cast<int32_t>(
      std::clamp<double>(graph_seconds / std::max(trial / kTrialRuns, 1e-7),
                         kTrialRuns, kMaxRuns));
  if (num_runs > kTrialRuns) {
    loop = nullptr;  // Its memory first.
    ASSIGN_OR_RETURN(loop, MakeLoop(op, num_runs, inputs));
  }
  std::vector<double> times;
  for (int i = 0; i < num_graphs; ++i) {
    RETURN_IF_ERROR(RunSurroundings(i == 0 ? kFirstMixSeconds : kMixSeconds));
    RETURN_IF_ERROR(loop->Start());
    ASSIGN_OR_RETURN(const double seconds, loop->Finish());
    times.push_back(seconds / num_runs);
  }
  std::sort(times.begin(), times.end());
  // Shorter graphs scatter by what the clock tells apart.
  if (!is_alone && times[0] * num_runs >= 5e-4) AddRepeats(times, &repeats_);
  return times[num_graphs / 2];
}

absl::StatusOr<double> CudaOpTimer::TimeBehindOthers(
    std::span<const ProfileOp> ops) {
  constexpr double kOneSeconds = 0.02;
  constexpr double kAllSeconds = 0.1;
  constexpr double kMostLoad = 20e9;  // Some 30 us (LoadOf()).
  std::vector<ProfileOp> short_ops;
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(short_ops),
               [](const ProfileOp& op) { return LoadOf(op) < kMostLoad; });
  if (short_ops.empty()) return 0.0;
  RETURN_IF_ERROR(SetSurroundings(short_ops));
  RETURN_IF_ERROR(WarmUp());
  // Both on cold operands: the ops do not write what the next ones read.
  std::map<std::pair<OpKind, std::string>, double> seconds;
  double apart = 0;
  for (const ProfileOp& op : short_ops) {
    const auto [known, is_new] = seconds.emplace(
        std::pair(op.kind, AttributesToString(op.attributes)), 0);
    if (is_new) {
      ASSIGN_OR_RETURN(known->second, Time(op, kOneSeconds, Inputs::kCold));
    }
    apart += known->second;
  }
  double once = 0;
  for (const Part& part : surroundings_) once += part.seconds;
  const auto num_rounds = std::max(1.0, std::floor(kAllSeconds / once));
  std::vector<double> times;
  ASSIGN_OR_RETURN(const auto loop,
                   MakeSurroundingsLoop((num_rounds - 1e-6) * once));
  for (int i = 0; i < kNumBursts; ++i) {
    RETURN_IF_ERROR(loop->Start());
    ASSIGN_OR_RETURN(times.emplace_back(), loop->Finish());
  }
  std::sort(times.begin(), times.end());
  const double together = times[kNumBursts / 2] / num_rounds;
  return std::max(0.0,
                  (together - apart) / static_cast<double>(short_ops.size()));
}

absl::Status CudaOpTimer::SetSurroundings(std::span<const ProfileOp> ops) {
  // About five milliseconds, so that a measurement is not far behind them.
  constexpr double kPartLoad = 3e12;
  surroundings_.clear();
  next_part_ = 0;
  std::vector<Part> parts;
  for (size_t begin = 0, end = 0; begin < ops.size(); begin = end) {
    double load = 0;
    for (; end < ops.size() && (end == begin || load < kPartLoad); ++end) {
      load += LoadOf(ops[end]);
    }
    ASSIGN_OR_RETURN(auto loop,
                     MakeLoopOn(*executor_, ops.subspan(begin, end - begin),
                                /*alternates_lanes=*/false));
    RETURN_IF_ERROR(loop->Start());
    ASSIGN_OR_RETURN(const double seconds, loop->Finish());
    parts.push_back({std::move(loop), seconds});
  }
  surroundings_ = std::move(parts);
  return absl::OkStatus();
}

absl::Status CudaOpTimer::RunSurroundings(double seconds) {
  if (surroundings_.empty()) return absl::OkStatus();
  for (double filled = 0; filled < seconds;) {
    const Part& part = surroundings_[next_part_++ % surroundings_.size()];
    RETURN_IF_ERROR(part.loop->Start());
    filled += part.seconds;
  }
  return absl::OkStatus();
}

absl::Status CudaOpTimer::WarmUp() {
  if (surroundings_.empty()) return absl::OkStatus();
  constexpr double kWindowSeconds = 0.1;
  constexpr size_t kSpan = 5;  // Windows that are compared over.
  constexpr size_t kMaxWindows = 40;
  constexpr double kSteady = 0.005;
  ASSIGN_OR_RETURN(const auto loop, MakeSurroundingsLoop(kWindowSeconds));
  std::vector<double> windows;
  while (windows.size() < kMaxWindows) {
    RETURN_IF_ERROR(loop->Start());
    ASSIGN_OR_RETURN(const double seconds, loop->Finish());
    windows.push_back(seconds);
    if (windows.size() <= kSpan) continue;
    const double before = windows[windows.size() - 1 - kSpan];
    if (std::abs(seconds - before) < kSteady * before) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TimedLoop>> CudaOpTimer::MakeSurroundingsLoop(
    double seconds) {
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
  return std::make_unique<SurroundingsLoop>(this, seconds, std::move(start),
                                            std::move(end));
}

}  // namespace millrace
