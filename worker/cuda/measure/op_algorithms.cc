// Chooses the algorithms of bf16 products; see worker/cuda/measure/op_timer.h.

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "kernels/gemm/gemm_bf16.h"
#include "kernels/vocabulary/cross_entropy_bf16.h"
#include "worker/cuda/device/device_arenas.h"
#include "worker/cuda/measure/op_timer.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

constexpr int kMaxCandidates = 8;
constexpr int32_t kMaxSets = 4;
constexpr size_t kMaxFinalists = 3;
// Another algorithm must take less than this share of the guess's time, since a
// smaller gain may be chance.
constexpr double kWorthwhile = 0.99;

GemmBf16Shape ShapeOf(const GemmAttributes& gemm) {
  return {.m = gemm.m,
          .n = gemm.n,
          .k = gemm.k,
          .trans_a = gemm.trans_a,
          .trans_b = gemm.trans_b,
          .fp32_output =
              GemmOutputType(Precision::kBfloat16, gemm) == DType::kFloat32,
          .accumulate = gemm.accumulate};
}

}  // namespace

std::vector<GemmAttributes> Bf16ProductsOf(const ProfileOp& op) {
  if (const auto* gemm = std::get_if<GemmAttributes>(&op.attributes)) {
    return {*gemm};
  }
  const auto* vocab = std::get_if<VocabAttributes>(&op.attributes);
  if (vocab == nullptr || vocab->chunk_tokens == 0) return {};
  // Other rows of logits are padded, as those of no op are.
  if (vocab->vocab_rows % 8 != 0) return {};
  const CrossEntropyBf16Products products =
      CrossEntropyBf16ProductsOf({.num_tokens = vocab->num_tokens,
                                  .hidden = vocab->hidden,
                                  .vocab_rows = vocab->vocab_rows,
                                  .chunk_tokens = vocab->chunk_tokens},
                                 vocab->chunk_tokens);
  std::vector<GemmAttributes> gemms;
  for (const GemmBf16Shape& shape :
       {products.logits, products.d_hidden, products.d_weight}) {
    gemms.push_back({.m = shape.m,
                     .n = shape.n,
                     .k = shape.k,
                     .trans_a = shape.trans_a,
                     .trans_b = shape.trans_b,
                     .accumulate = shape.accumulate});
    if (op.kind == OpKind::kCrossEntropyStats) break;
  }
  return gemms;
}

bool CudaOpTimer::HasAlgorithm(const GemmAttributes& gemm) const {
  return algorithms_.Find(chip_, ShapeOf(gemm), nullptr).has_value();
}

std::optional<ProductChoice> CudaOpTimer::ProductChoiceOf(
    const GemmAttributes& gemm) const {
  if (precision_ != Precision::kBfloat16) return std::nullopt;
  const auto entries = algorithms_.EntriesOf(chip_);
  const auto found = entries.find(GemmBf16ShapeWord(ShapeOf(gemm)));
  if (found == entries.end()) return std::nullopt;
  return ProductChoice{.shape = found->first,
                       .algorithm = found->second.algorithm.text,
                       .seconds = 1e-6 * found->second.microseconds};
}

absl::Status CudaOpTimer::ChooseAlgorithm(const GemmAttributes& gemm,
                                          double budget_seconds) {
  if (precision_ != Precision::kBfloat16) return absl::OkStatus();
  const GemmBf16Shape shape = ShapeOf(gemm);
  const ProfileOp op = {OpKind::kGemm, gemm};
  const absl::StatusOr<GemmBf16Plan> guess = GemmBf16Plan::Create(shape, {});
  // A shape that the fast door refuses runs on plain kernels.
  if (absl::IsInvalidArgument(guess.status())) return absl::OkStatus();
  RETURN_IF_ERROR(guess.status());
  std::vector<GemmMeasurement> finalists;
  {
    const Program program = SingleOpProgram(precision_, op.kind, op.attributes,
                                            kMaxSets, working_set_bytes_);
    ASSIGN_OR_RETURN(const DeviceArenas arenas,
                     DeviceArenas::Allocate(0, program.step_arena_bytes,
                                            /*patience=*/absl::ZeroDuration()));
    RETURN_IF_ERROR(FillOperands(program, arenas));
    std::vector<GemmBf16Args> sets;
    for (const Instruction& in : program.instructions) {
      sets.push_back(
          {.c = arenas.At(program.buffers[in.outputs[0]]),
           .a = arenas.At(program.buffers[in.inputs[0]]),
           .b = arenas.At(program.buffers[in.inputs[1]]),
           .workspace = arenas.At(program.buffers[program.scratch_buffer])});
    }
    ASSIGN_OR_RETURN(finalists, MeasureGemmBf16(shape, {}, sets, kMaxCandidates,
                                                executor_->stream()));
  }
  finalists.resize(std::min(finalists.size(), kMaxFinalists));
  auto time = [&](const GemmAlgorithm& algorithm) {
    algorithms_.Set(chip_, shape, {.algorithm = algorithm, .microseconds = 0});
    return Time(op, budget_seconds);
  };
  GemmAlgorithm best = guess->algorithm();
  ASSIGN_OR_RETURN(const double guess_seconds, time(best));
  double best_seconds = guess_seconds;
  for (const GemmMeasurement& finalist : finalists) {
    if (finalist.algorithm == guess->algorithm()) continue;
    ASSIGN_OR_RETURN(const double seconds, time(finalist.algorithm));
    if (seconds > std::min(best_seconds, kWorthwhile * guess_seconds)) continue;
    best = finalist.algorithm;
    best_seconds = seconds;
  }
  algorithms_.Set(chip_, shape,
                  {.algorithm = best, .microseconds = 1e6 * best_seconds});
  return absl::OkStatus();
}

}  // namespace millrace
