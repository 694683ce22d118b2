#include "tests/worker/cuda/ops/op_comparison.h"

#include <cmath>
#include <limits>
#include <variant>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "kernels/pointwise/cast.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

template <typename T>
std::vector<double> Widen(const std::byte* data, int64_t num_elements) {
  const T* values = reinterpret_cast<const T*>(data);
  return std::vector<double>(values, values + num_elements);
}

template <typename T>
void Narrow(absl::Span<const double> values, std::byte* data) {
  for (size_t i = 0; i < values.size(); ++i) {
    reinterpret_cast<T*>(data)[i] = static_cast<T>(values[i]);
  }
}

}  // namespace

std::vector<double> WidenElements(DType dtype, const std::byte* data,
                                  int64_t num_elements) {
  switch (dtype) {
    case DType::kFloat32:
      return Widen<float>(data, num_elements);
    case DType::kFloat64:
      return Widen<double>(data, num_elements);
    case DType::kInt32:
      return Widen<int32_t>(data, num_elements);
    case DType::kBfloat16:
      break;
    case DType::kFloat8E4m3:
    case DType::kSignedBlock8:
    case DType::kUnsignedBlock8:
      CHECK(false) << "copies in 8 bits are compared in whole steps";
  }
  std::vector<double> values(static_cast<size_t>(num_elements));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = DecodeBf16(reinterpret_cast<const uint16_t*>(data)[i]);
  }
  return values;
}

void NarrowElements(absl::Span<const double> values, DType dtype,
                    std::byte* data) {
  switch (dtype) {
    case DType::kFloat32:
      return Narrow<float>(values, data);
    case DType::kFloat64:
      return Narrow<double>(values, data);
    case DType::kInt32:
      return Narrow<int32_t>(values, data);
    case DType::kBfloat16:
      break;
    case DType::kFloat8E4m3:
    case DType::kSignedBlock8:
    case DType::kUnsignedBlock8:
      CHECK(false) << "copies in 8 bits are compared in whole steps";
  }
  for (size_t i = 0; i < values.size(); ++i) {
    reinterpret_cast<uint16_t*>(data)[i] =
        EncodeBf16(static_cast<float>(values[i]));
  }
}

OpDifference CompareElements(absl::Span<const double> expected,
                             absl::Span<const double> actual) {
  CHECK(expected.size() == actual.size());
  OpDifference result = {.relative_error = 0,
                         .worst_idx = 0,
                         .worst_expected = 0,
                         .worst_actual = 0};
  double error = 0, norm = 0, worst = -1;
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool alike = expected[i] == actual[i] ||
                       (std::isnan(expected[i]) && std::isnan(actual[i]));
    const double difference = alike ? 0 : std::fabs(actual[i] - expected[i]);
    error += difference * difference;
    if (std::isfinite(expected[i])) norm += expected[i] * expected[i];
    // So that what is not a number is the worst.
    if (difference <= worst) continue;
    result.worst_idx = static_cast<int64_t>(i);
    result.worst_expected = expected[i];
    result.worst_actual = actual[i];
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                   : difference;
  }
  result.relative_error = std::sqrt(norm == 0 ? error : error / norm);
  return result;
}

std::string OpDifferenceToString(const OpDifference& difference) {
  return absl::StrFormat(
      "relative error %.3g; the worst, element %d, is %.9g instead of %.9g",
      difference.relative_error, difference.worst_idx, difference.worst_actual,
      difference.worst_expected);
}

bool IsResult(OpKind kind, size_t i) { return i < NumResults(kind); }

double OpTolerance(const Instruction& instruction, size_t i,
                   Precision precision) {
  constexpr double kOtherOrder = 2e-5;  // For sums of thousands of products.
  constexpr double kRoundedOnce = 4e-3;
  if (precision == Precision::kFloat32) return kOtherOrder;
  switch (instruction.kind) {
    case OpKind::kGemm:
      return GemmOutputType(precision,
                            std::get<GemmAttributes>(instruction.attributes)) ==
                     DType::kFloat32
                 ? kOtherOrder
                 : kRoundedOnce;
    case OpKind::kRmsNormForward:
      return i == 0 ? kRoundedOnce : kOtherOrder;
    case OpKind::kLayerNormForward:
      // Means are near zero, so that the order of their terms shows more.
      return i == 0 ? kRoundedOnce : i == 1 ? kOtherOrder : 1e-4;
    case OpKind::kResidualLayerNormForward:
      // As below; a mean is of numbers that were rounded before, and near zero.
      return i == 3 ? 2e-2 : i == 2 ? 2e-3 : 6e-3;
    case OpKind::kResidualRmsNormForward:
      // The normalised values were rounded before.
      return i == 2 ? 2e-3 : 6e-3;
    case OpKind::kRmsNormBackward:
    case OpKind::kLayerNormBackward:
      return i == 0 ? kRoundedOnce : 1e-4;
    case OpKind::kPositionBackward:
      return kOtherOrder;
    case OpKind::kQkNormRopeForward:
      // The heads as they were are copied.
      return i == 0 ? kRoundedOnce : i == 1 ? 0 : kOtherOrder;
    case OpKind::kQkNormRopeBackward:
      return i == 0 ? kRoundedOnce : 1e-4;
    case OpKind::kBiasGradient:
      return kOtherOrder;
    case OpKind::kAttentionForward:
      return i == 0 ? 6e-3 : 1e-4;
    case OpKind::kAttentionBackward:
      return 6e-3;
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
      // Logits are rounded once, their gradient again.
      return 1e-2;
    case OpKind::kEmbeddingBackward:
    case OpKind::kSquaredNorm:
    case OpKind::kAccumulateGradients:
    case OpKind::kCrossEntropyLoss:
    case OpKind::kPreferenceLoss:
    case OpKind::kClipFactor:
      return kOtherOrder;
    case OpKind::kEmbeddingForward:
      return std::get<VocabAttributes>(instruction.attributes)
                         .embedding_scale == 1
                 ? 0
                 : kRoundedOnce;
    case OpKind::kLoadBatch:
    case OpKind::kZero:
    case OpKind::kRoundGradients:
    case OpKind::kWidenGradients:
      return 0;
    case OpKind::kAdamW:
      return i == 0 ? kRoundedOnce : kOtherOrder;
    default:
      return kRoundedOnce;
  }
}

std::vector<double> HeadsFirst(absl::Span<const double> lse,
                               const AttentionAttributes& attention) {
  const int64_t length = attention.sequence_length;
  std::vector<double> out(lse.size());
  size_t from = 0;
  for (int64_t sequence = 0; sequence < attention.num_sequences; ++sequence) {
    for (int64_t head = 0; head < attention.num_heads; ++head) {
      const int64_t first =
          (head * attention.num_sequences + sequence) * length;
      for (int64_t t = 0; t < length; ++t) out[first + t] = lse[from++];
    }
  }
  return out;
}

}  // namespace millrace
