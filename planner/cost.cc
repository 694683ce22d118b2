#include "planner/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

constexpr double kFloatBytes = 4;
// More neighbours than this only blur: the fourth nearest GEMM is already twice
// as large in some dim on the grids that a profile measures.
constexpr int kNumNeighbours = 3;

// A measured point as seen from the shape asked for.
struct Neighbour {
  double squared_distance;
  double rate;  // Of work, per second.
};

double SquaredLogRatio(double a, double b) {
  const double difference = std::log(a / b);
  return difference * difference;
}

// Inverse-distance weighting (Shepard 1968) of the nearest rates.
double RateFromNeighbours(std::vector<Neighbour> neighbours) {
  const size_t count =
      std::min<size_t>(neighbours.size(), static_cast<size_t>(kNumNeighbours));
  std::partial_sort(
      neighbours.begin(), neighbours.begin() + static_cast<ptrdiff_t>(count),
      neighbours.end(), [](const Neighbour& a, const Neighbour& b) {
        return std::tie(a.squared_distance, a.rate) <
               std::tie(b.squared_distance, b.rate);
      });
  if (neighbours[0].squared_distance < 1e-12) return neighbours[0].rate;
  double weight_sum = 0, rate_sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double weight = 1 / neighbours[i].squared_distance;
    weight_sum += weight;
    rate_sum += weight * neighbours[i].rate;
  }
  return rate_sum / weight_sum;
}

double AttentionFlops(bool backward, double num_sequences,
                      double sequence_length, double num_heads,
                      double head_dim) {
  // Forward: scores and values, two GEMMs of which a causal kernel does half.
  // Backward: five, the scores once more among them.
  const double gemm =
      num_sequences * num_heads * sequence_length * sequence_length * head_dim;
  return (backward ? 5 : 2) * gemm;
}

double CrossEntropyFlops(OpKind kind, double num_tokens, double hidden,
                         double vocab_rows) {
  const double gemm = 2 * num_tokens * hidden * vocab_rows;
  // Logits alone; or logits, hidden gradient and weight gradient.
  return kind == OpKind::kCrossEntropyStats ? gemm : 3 * gemm;
}

// (bytes, seconds) of one kind, sorted by bytes.
struct SizedTime {
  double bytes;
  double seconds;
};

// Log-log interpolation between the two sizes around `bytes`; beyond the ends
// the time scales with the bytes.
double InterpolateSeconds(std::span<const SizedTime> times, double bytes) {
  CHECK(!times.empty());
  const auto above = std::lower_bound(
      times.begin(), times.end(), bytes,
      [](const SizedTime& time, double wanted) { return time.bytes < wanted; });
  if (above == times.end()) {
    return times.back().seconds * bytes / times.back().bytes;
  }
  if (above->bytes == bytes) return above->seconds;
  if (above == times.begin()) return above->seconds * bytes / above->bytes;
  const SizedTime& below = *std::prev(above);
  const double share =
      std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.seconds * std::pow(above->seconds / below.seconds, share);
}

template <typename Rows>
std::vector<SizedTime> RowsOfKind(const Rows& rows, OpKind kind) {
  std::vector<SizedTime> times;
  for (const auto& row : rows) {
    if (row.kind == kind) {
      times.push_back({static_cast<double>(row.bytes), row.seconds});
    }
  }
  return times;
}

absl::Status MissingTable(const HardwareProfile& profile,
                          absl::string_view table) {
  return absl::InvalidArgumentError(
      absl::StrCat("hardware profile '", profile.name, "' has no ", table,
                   "; measure a whole one with millrace profile JOB"));
}

template <typename Rows>
bool AllPositive(const Rows& rows) {
  return std::all_of(rows.begin(), rows.end(),
                     [](const auto& row) { return row.seconds > 0; });
}

// Tokens that a kLoadBatch or kCrossEntropyLoss handles, whatever attributes
// say so.
struct ElementCount {
  double operator()(const NoAttributes&) const { return 0; }
  double operator()(const VocabAttributes& a) const {
    return static_cast<double>(a.num_tokens);
  }
  double operator()(const NormAttributes& a) const {
    return static_cast<double>(a.num_tokens * a.hidden);
  }
  double operator()(const GemmAttributes& a) const {
    return static_cast<double>(a.m * a.n);
  }
  double operator()(const AttentionAttributes& a) const {
    return static_cast<double>(a.num_sequences * a.sequence_length);
  }
  double operator()(const ElementwiseAttributes& a) const {
    return static_cast<double>(a.rows * a.cols);
  }
  double operator()(const CollectiveAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
  double operator()(const TransferAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
  double operator()(const OptimizerAttributes& a) const {
    return static_cast<double>(a.num_elements);
  }
};

OpWork GemmWork(const GemmAttributes& a) {
  const auto m = static_cast<double>(a.m);
  const auto n = static_cast<double>(a.n);
  const auto k = static_cast<double>(a.k);
  return {
      .flops = 2 * m * n * k,
      .bytes = kFloatBytes * (m * k + k * n + m * n * (a.accumulate ? 2 : 1))};
}

OpWork AttentionWork(bool backward, const AttentionAttributes& a) {
  const auto tokens = static_cast<double>(a.num_sequences * a.sequence_length);
  const auto qkv =
      static_cast<double>((a.num_heads + 2 * a.num_kv_heads) * a.head_dim);
  const auto output = static_cast<double>(a.num_heads * a.head_dim);
  return {
      .flops = AttentionFlops(backward, static_cast<double>(a.num_sequences),
                              static_cast<double>(a.sequence_length),
                              static_cast<double>(a.num_heads),
                              static_cast<double>(a.head_dim)),
      .bytes = kFloatBytes * tokens *
               (backward ? 2 * qkv + 2 * output : qkv + output)};
}

OpWork CrossEntropyWork(OpKind kind, const VocabAttributes& a) {
  const auto tokens = static_cast<double>(a.num_tokens);
  const auto hidden = static_cast<double>(a.hidden);
  const auto rows = static_cast<double>(a.vocab_rows);
  const double passes = kind == OpKind::kCrossEntropyStats ? 1 : 2;
  return {.flops = CrossEntropyFlops(kind, tokens, hidden, rows),
          .bytes = kFloatBytes * passes * (tokens * hidden + rows * hidden)};
}

OpWork OptimizerWork(const Layout& layout, OpKind kind,
                     const OptimizerAttributes& a) {
  const double elements =
      static_cast<double>(a.num_elements) / (a.data_sharded ? layout.data : 1);
  // AdamW reads four buffers and writes three.
  return kind == OpKind::kAdamW
             ? OpWork{.flops = 12 * elements,
                      .bytes = 7 * kFloatBytes * elements}
             : OpWork{.flops = 2 * elements, .bytes = kFloatBytes * elements};
}

bool IsCrossEntropyChain(OpKind kind) {
  return kind == OpKind::kLinearCrossEntropy ||
         kind == OpKind::kCrossEntropyStats ||
         kind == OpKind::kCrossEntropyGradient;
}

}  // namespace

OpWork WorkOf(const Layout& layout, OpKind kind,
              const OpAttributes& attributes) {
  const double elements = std::visit(ElementCount{}, attributes);
  switch (kind) {
    case OpKind::kLoadBatch:
      // Tokens, targets and document starts.
      return {.flops = 0, .bytes = 3 * 4 * elements};
    case OpKind::kEmbeddingForward: {
      const auto& a = std::get<VocabAttributes>(attributes);
      return {.flops = 0,
              .bytes = 2 * kFloatBytes *
                       static_cast<double>(a.num_tokens * a.hidden)};
    }
    case OpKind::kEmbeddingBackward: {
      const auto& a = std::get<VocabAttributes>(attributes);
      const auto gradient = static_cast<double>(a.num_tokens * a.hidden);
      return {.flops = gradient, .bytes = 3 * kFloatBytes * gradient};
    }
    case OpKind::kRmsNormForward:
      return {.flops = 4 * elements, .bytes = 2 * kFloatBytes * elements};
    case OpKind::kResidualRmsNormForward:
      return {.flops = 5 * elements, .bytes = 4 * kFloatBytes * elements};
    case OpKind::kRmsNormBackward:
      return {.flops = 10 * elements, .bytes = 4 * kFloatBytes * elements};
    case OpKind::kAdd:
      return {.flops = elements, .bytes = 3 * kFloatBytes * elements};
    case OpKind::kGemm:
      return GemmWork(std::get<GemmAttributes>(attributes));
    case OpKind::kRope: {
      const auto& a = std::get<AttentionAttributes>(attributes);
      const double rotated =
          elements *
          static_cast<double>((a.num_heads + a.num_kv_heads) * a.head_dim);
      return {.flops = 3 * rotated, .bytes = 2 * kFloatBytes * rotated};
    }
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward:
      return AttentionWork(kind == OpKind::kAttentionBackward,
                           std::get<AttentionAttributes>(attributes));
    case OpKind::kSwigluForward:
      return {.flops = 5 * elements, .bytes = 3 * kFloatBytes * elements};
    case OpKind::kSwigluBackward:
      return {.flops = 10 * elements, .bytes = 5 * kFloatBytes * elements};
    case OpKind::kLinearCrossEntropy:
    case OpKind::kCrossEntropyStats:
    case OpKind::kCrossEntropyGradient:
      return CrossEntropyWork(kind, std::get<VocabAttributes>(attributes));
    case OpKind::kCrossEntropyLoss:
      // Each tensor rank's three statistics, and the target.
      return {.flops = 4 * elements,
              .bytes = kFloatBytes * elements * (3 * layout.tensor + 1)};
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllReduce: {
      const auto& a = std::get<CollectiveAttributes>(attributes);
      return {.flops = 0,
              .bytes = elements * static_cast<double>(DTypeBytes(a.dtype))};
    }
    case OpKind::kSend:
    case OpKind::kReceive: {
      const auto& a = std::get<TransferAttributes>(attributes);
      return {.flops = 0,
              .bytes = elements * static_cast<double>(DTypeBytes(a.dtype))};
    }
    case OpKind::kZero:
      return {.flops = 0, .bytes = kFloatBytes * elements};
    case OpKind::kSquaredNorm:
    case OpKind::kAdamW:
      return OptimizerWork(layout, kind,
                           std::get<OptimizerAttributes>(attributes));
  }
  return {.flops = 0, .bytes = 0};
}

CostModel::CostModel(HardwareProfile profile) : profile_(std::move(profile)) {
  std::sort(profile_.bandwidth.begin(), profile_.bandwidth.end(),
            [](const BandwidthTime& a, const BandwidthTime& b) {
              return std::tie(a.kind, a.bytes) < std::tie(b.kind, b.bytes);
            });
  std::sort(profile_.communication.begin(), profile_.communication.end(),
            [](const CommunicationTime& a, const CommunicationTime& b) {
              return std::tie(a.kind, a.group_size, a.bytes) <
                     std::tie(b.kind, b.group_size, b.bytes);
            });
}

absl::StatusOr<CostModel> CostModel::Create(HardwareProfile profile) {
  if (profile.gemms.empty()) return MissingTable(profile, "gemms table");
  for (const bool backward : {false, true}) {
    if (std::none_of(profile.attention.begin(), profile.attention.end(),
                     [&](const AttentionTime& time) {
                       return time.backward == backward;
                     })) {
      return MissingTable(profile, backward ? "backward rows in attention"
                                            : "forward rows in attention");
    }
  }
  if (profile.cross_entropy.empty()) {
    return MissingTable(profile, "cross_entropy table");
  }
  if (profile.bandwidth.empty()) {
    return MissingTable(profile, "bandwidth table");
  }
  if (profile.provenance.num_ranks > 1 && profile.communication.empty()) {
    return MissingTable(profile, "communication table");
  }
  if (!AllPositive(profile.gemms) || !AllPositive(profile.attention) ||
      !AllPositive(profile.cross_entropy) || !AllPositive(profile.bandwidth) ||
      !AllPositive(profile.communication)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hardware profile '", profile.name,
                     "' has an op that takes no time; measure it again with "
                     "millrace profile JOB"));
  }
  return CostModel(std::move(profile));
}

double CostModel::GemmSeconds(const GemmAttributes& gemm) const {
  std::vector<Neighbour> neighbours;
  for (const GemmTime& time : profile_.gemms) {
    const double flops = 2.0 * static_cast<double>(time.m) *
                         static_cast<double>(time.n) *
                         static_cast<double>(time.k);
    double distance = SquaredLogRatio(static_cast<double>(time.m),
                                      static_cast<double>(gemm.m)) +
                      SquaredLogRatio(static_cast<double>(time.n),
                                      static_cast<double>(gemm.n)) +
                      SquaredLogRatio(static_cast<double>(time.k),
                                      static_cast<double>(gemm.k));
    // Other transposes serve only where the same ones were not measured.
    if (time.trans_a != gemm.trans_a || time.trans_b != gemm.trans_b) {
      distance += 100;
    }
    neighbours.push_back({distance, flops / time.seconds});
  }
  return GemmWork(gemm).flops / RateFromNeighbours(std::move(neighbours));
}

double CostModel::AttentionSeconds(bool backward,
                                   const AttentionAttributes& attention) const {
  std::vector<Neighbour> neighbours;
  for (const AttentionTime& time : profile_.attention) {
    if (time.backward != backward) continue;
    const double flops =
        AttentionFlops(backward, static_cast<double>(time.num_sequences),
                       static_cast<double>(time.sequence_length),
                       static_cast<double>(time.num_heads),
                       static_cast<double>(time.head_dim));
    // Sequences and heads are alike to a kernel: independent problems.
    const double distance =
        SquaredLogRatio(
            static_cast<double>(time.num_sequences * time.num_heads),
            static_cast<double>(attention.num_sequences *
                                attention.num_heads)) +
        SquaredLogRatio(static_cast<double>(time.sequence_length),
                        static_cast<double>(attention.sequence_length)) +
        SquaredLogRatio(static_cast<double>(time.head_dim),
                        static_cast<double>(attention.head_dim));
    neighbours.push_back({distance, flops / time.seconds});
  }
  return AttentionWork(backward, attention).flops /
         RateFromNeighbours(std::move(neighbours));
}

double CostModel::CrossEntropySeconds(OpKind kind,
                                      const VocabAttributes& vocab) const {
  std::vector<Neighbour> neighbours;
  for (const CrossEntropyTime& time : profile_.cross_entropy) {
    const double flops = CrossEntropyFlops(
        time.kind, static_cast<double>(time.num_tokens),
        static_cast<double>(time.hidden), static_cast<double>(time.vocab_rows));
    double distance = SquaredLogRatio(static_cast<double>(time.num_tokens),
                                      static_cast<double>(vocab.num_tokens)) +
                      SquaredLogRatio(static_cast<double>(time.hidden),
                                      static_cast<double>(vocab.hidden)) +
                      SquaredLogRatio(static_cast<double>(time.vocab_rows),
                                      static_cast<double>(vocab.vocab_rows));
    // Another kind of the family serves only where this one was not measured.
    if (time.kind != kind) distance += 100;
    neighbours.push_back({distance, flops / time.seconds});
  }
  return CrossEntropyWork(kind, vocab).flops /
         RateFromNeighbours(std::move(neighbours));
}

double CostModel::BandwidthSeconds(OpKind kind, double bytes) const {
  if (bytes <= 0) return 0;
  const std::vector<SizedTime> times = RowsOfKind(profile_.bandwidth, kind);
  if (!times.empty()) return InterpolateSeconds(times, bytes);
  // A kind that was not measured moves its bytes at the median rate of those
  // that were.
  std::vector<double> rates;
  for (const BandwidthTime& time : profile_.bandwidth) {
    rates.push_back(static_cast<double>(time.bytes) / time.seconds);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return bytes / *middle;
}

double CostModel::CommunicationSeconds(OpKind kind, int32_t group_size,
                                       double bytes) const {
  CHECK(HasCommunication());
  if (kind == OpKind::kReceive) kind = OpKind::kSend;
  // The nearest measured (kind, group size): the same kind first.
  const CommunicationTime* nearest = nullptr;
  double nearest_distance = std::numeric_limits<double>::infinity();
  for (const CommunicationTime& time : profile_.communication) {
    const double distance = SquaredLogRatio(time.group_size, group_size) +
                            (time.kind == kind ? 0 : 100);
    if (distance < nearest_distance) {
      nearest = &time;
      nearest_distance = distance;
    }
  }
  std::vector<SizedTime> times;
  for (const CommunicationTime& time : profile_.communication) {
    if (time.kind == nearest->kind && time.group_size == nearest->group_size) {
      times.push_back({static_cast<double>(time.bytes), time.seconds});
    }
  }
  return InterpolateSeconds(times, std::max(bytes, times.front().bytes));
}

double CostModel::Seconds(const Layout& layout, OpKind kind,
                          const OpAttributes& attributes) const {
  double seconds = 0;
  if (kind == OpKind::kGemm) {
    seconds = GemmSeconds(std::get<GemmAttributes>(attributes));
  } else if (kind == OpKind::kAttentionForward ||
             kind == OpKind::kAttentionBackward) {
    seconds = AttentionSeconds(kind == OpKind::kAttentionBackward,
                               std::get<AttentionAttributes>(attributes));
  } else if (IsCrossEntropyChain(kind)) {
    seconds = CrossEntropySeconds(kind, std::get<VocabAttributes>(attributes));
  } else if (IsCollective(kind)) {
    const auto& collective = std::get<CollectiveAttributes>(attributes);
    seconds = CommunicationSeconds(kind, GroupSize(layout, collective.group),
                                   WorkOf(layout, kind, attributes).bytes);
  } else if (IsTransfer(kind)) {
    seconds =
        CommunicationSeconds(kind, 2, WorkOf(layout, kind, attributes).bytes);
  } else {
    seconds = BandwidthSeconds(kind, WorkOf(layout, kind, attributes).bytes);
  }
  return seconds + profile_.launch_overhead_s;
}

std::vector<double> CostModel::ProgramSeconds(const Program& program) const {
  // Micro-batches and layers repeat a few shapes many times.
  std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool>, double> gemms;
  std::vector<double> seconds;
  seconds.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    const auto* gemm = std::get_if<GemmAttributes>(&instruction.attributes);
    if (gemm == nullptr) {
      seconds.push_back(
          Seconds(program.layout, instruction.kind, instruction.attributes));
      continue;
    }
    double& cached =
        gemms[{gemm->m, gemm->n, gemm->k, gemm->trans_a, gemm->trans_b}];
    if (cached == 0) {
      cached =
          Seconds(program.layout, instruction.kind, instruction.attributes);
    }
    seconds.push_back(cached);
  }
  return seconds;
}

double CostModel::PeakFlopsPerSecond() const {
  double peak = 0;
  for (const GemmTime& time : profile_.gemms) {
    peak = std::max(peak, 2.0 * static_cast<double>(time.m) *
                              static_cast<double>(time.n) *
                              static_cast<double>(time.k) / time.seconds);
  }
  return peak;
}

}  // namespace millrace
