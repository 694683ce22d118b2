#include "planner/search/extrapolation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {
namespace {

constexpr double kNearRatio = 2;
// How much shorter and longer than predicted a step may be if all of it is
// extrapolated. Both are chosen, not fitted. Rows of large models alone
// predicted steps of small models up to 49 % too short
// (docs/results/2026-11-22-small-models-h200.md).
constexpr double kFurtherLow = 0.25;
constexpr double kFurtherHigh = 0.5;

struct SizeRange {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
};

// RowKind: the rows that may price a product, attention or a head with the
// loss. RowDims: the dims by which such a row is near to a shape or far.
using RowKind = std::pair<OpKind, std::pair<int64_t, int64_t>>;
using RowDims = std::vector<int64_t>;

bool IsSized(OpKind kind) {
  return kind != OpKind::kGemm && kind != OpKind::kAttentionForward &&
         kind != OpKind::kAttentionBackward &&
         kind != OpKind::kLinearCrossEntropy &&
         kind != OpKind::kCrossEntropyStats &&
         kind != OpKind::kCrossEntropyGradient;
}

std::pair<RowKind, RowDims> DimsOf(const OpShape& shape) {
  const auto& f = shape.figures;
  if (shape.kind == OpKind::kGemm) {
    return {{shape.kind, {f[3], f[4]}}, {f[0], f[1], f[2]}};
  }
  if (shape.kind == OpKind::kAttentionForward ||
      shape.kind == OpKind::kAttentionBackward) {
    return {{shape.kind, {0, 0}}, {f[0] * f[2], f[1], f[4]}};
  }
  return {{shape.kind, {0, 0}}, {f[0], f[1], f[2]}};
}

bool AreNear(const RowDims& a, const RowDims& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const double ratio = static_cast<double>(a[i]) / static_cast<double>(b[i]);
    if (ratio > kNearRatio || ratio < 1 / kNearRatio) return false;
  }
  return true;
}

class MeasuredShapes {
 public:
  explicit MeasuredShapes(const HardwareProfile& profile) {
    for (const GemmTime& row : profile.gemms) {
      AddDims(
          {OpKind::kGemm,
           {row.m, row.n, row.k, row.trans_a ? 1 : 0, row.trans_b ? 1 : 0}});
    }
    for (const AttentionTime& row : profile.attention) {
      AddDims({row.backward ? OpKind::kAttentionBackward
                            : OpKind::kAttentionForward,
               {row.num_sequences, row.sequence_length, row.num_heads,
                row.num_kv_heads, row.head_dim}});
    }
    for (const CrossEntropyTime& row : profile.cross_entropy) {
      AddDims({row.kind, {row.num_tokens, row.hidden, row.vocab_rows}});
    }
    for (const BandwidthTime& row : profile.bandwidth) {
      AddSize(row.kind, 0, static_cast<double>(row.bytes));
    }
    for (const CommunicationTime& row : profile.communication) {
      AddSize(row.kind, row.group_size, static_cast<double>(row.bytes));
    }
  }

  // Whether rows of its kind exist, none of which is near.
  bool IsBeyond(const OpShape& shape) const {
    if (!IsSized(shape.kind)) {
      const auto [kind, dims] = DimsOf(shape);
      const auto rows = dims_.find(kind);
      return rows != dims_.end() &&
             std::none_of(
                 rows->second.begin(), rows->second.end(),
                 [&](const RowDims& row) { return AreNear(dims, row); });
    }
    const bool communicates = IsCommunication(shape);
    const auto range =
        sizes_.find({shape.kind, communicates ? shape.figures[0] : 0});
    const auto bytes = static_cast<double>(shape.figures[communicates ? 1 : 0]);
    return range != sizes_.end() && bytes > 0 &&
           (bytes < range->second.least / kNearRatio ||
            bytes > range->second.most * kNearRatio);
  }

 private:
  void AddDims(const OpShape& shape) {
    auto [kind, dims] = DimsOf(shape);
    dims_[kind].push_back(std::move(dims));
  }
  void AddSize(OpKind kind, int64_t group_size, double bytes) {
    SizeRange& range = sizes_[{kind, group_size}];
    range.least = std::min(range.least, bytes);
    range.most = std::max(range.most, bytes);
  }

  std::map<RowKind, std::vector<RowDims>> dims_;
  std::map<std::pair<OpKind, int64_t>, SizeRange> sizes_;
};

}  // namespace

Extrapolation ExtrapolationOf(std::span<const Program> programs,
                              const CostModel& cost) {
  if (!cost.HasTables()) return {};
  const MeasuredShapes measured(cost.profile());
  std::map<OpShape, bool> is_beyond;
  std::map<std::string, double> seconds_by_kind;
  double all_s = 0, beyond_s = 0;
  for (const Program& program : programs) {
    const std::vector<double> seconds = cost.ProgramSeconds(program);
    for (size_t i = 0; i < seconds.size(); ++i) {
      const Instruction& in = program.instructions[i];
      if (in.lane == Lane::kHost) continue;
      all_s += seconds[i];
      if (!cost.IsPricedByRow(program.layout, in.kind, in.attributes)) continue;
      const OpShape shape = ShapeOf(program.layout, in.kind, in.attributes);
      const auto [known, is_new] = is_beyond.try_emplace(shape, false);
      if (is_new) known->second = measured.IsBeyond(shape);
      if (!known->second) continue;
      beyond_s += seconds[i];
      seconds_by_kind[KindText(shape)] += seconds[i];
    }
  }
  if (beyond_s == 0) return {};
  const auto most = std::max_element(
      seconds_by_kind.begin(), seconds_by_kind.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  return {.share = beyond_s / all_s, .most = most->first};
}

void SayWhatWasExtrapolated(std::span<const Program> programs,
                            const CostModel& cost, Plan* plan) {
  const Extrapolation beyond = ExtrapolationOf(programs, cost);
  if (beyond.share < kLeastExtrapolatedShare) return;
  plan->warnings.push_back(absl::StrCat(
      absl::StrFormat("extrapolated: %.0f %% of the time of the step's ops",
                      100 * beyond.share),
      " is of shapes beyond the rows of hardware profile '",
      cost.profile().name, "', mostly ", beyond.most,
      "; the interval is wider for it; measure with millrace profile JOB"));
  Prediction& prediction = plan->prediction;
  if (prediction.step_time_low_s.has_value()) {
    *prediction.step_time_low_s /= 1 + kFurtherLow * beyond.share;
  }
  if (prediction.step_time_high_s.has_value()) {
    *prediction.step_time_high_s *= 1 + kFurtherHigh * beyond.share;
  }
}

}  // namespace millrace
