#include "planner/cost/op_cost.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/cost/formula_cost.h"
#include "planner/profile/measured_rows.h"
#include "planner/program/copy_engines.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

// Kernels that take less than so many times the quickest one move hardly any
// bytes.
constexpr double kMostLaunches = 2;
// Smaller products than one in so many of a measured one are other kernels.
constexpr int64_t kMostParts = 8;

double FlopsOf(OpKind kind, const OpAttributes& attributes) {
  return WorkOf(Layout{}, kind, attributes).flops;
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

CommKind CommKindOf(OpKind collective) {
  switch (collective) {
    case OpKind::kAllGather:
      return CommKind::kAllGather;
    case OpKind::kReduceScatter:
      return CommKind::kReduceScatter;
    default:
      CHECK(collective == OpKind::kAllReduce)
          << "no collective: " << OpKindName(collective);
      return CommKind::kAllReduce;
  }
}

// Between ranks of the group that are next to each other.
int64_t StrideOf(const Layout& layout, Group group) {
  if (group == Group::kPipeline) return layout.tensor;
  if (group == Group::kData) return int64_t{layout.tensor} * layout.pipeline;
  return 1;
}

}  // namespace

CostModel::CostModel(HardwareProfile profile) : profile_(std::move(profile)) {
  std::sort(profile_.bandwidth.begin(), profile_.bandwidth.end(),
            [](const BandwidthTime& a, const BandwidthTime& b) {
              return std::tie(a.kind, a.bytes) < std::tie(b.kind, b.bytes);
            });
  const auto is_before = [](const CommunicationTime& a,
                            const CommunicationTime& b) {
    return std::tie(a.kind, a.group_size, a.bytes) <
           std::tie(b.kind, b.group_size, b.bytes);
  };
  std::sort(profile_.communication.begin(), profile_.communication.end(),
            is_before);
  std::sort(profile_.copy_engines.begin(), profile_.copy_engines.end(),
            is_before);
}

absl::StatusOr<CostModel> CostModel::Create(HardwareProfile profile) {
  if (profile.gemms.empty() && profile.device.is_given()) {
    return CostModel(std::move(profile));
  }
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
      !AllPositive(profile.communication) ||
      !AllPositive(profile.copy_engines)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hardware profile '", profile.name,
                     "' has an op that takes no time; measure it again with "
                     "millrace profile JOB"));
  }
  CostModel cost(std::move(profile));
  if (cost.profile_.device.is_given() && !cost.profile_.network.empty()) {
    HardwareProfile beyond = cost.profile_;
    beyond.gemms.clear();
    beyond.launch_overhead_s = 0;  // Seconds() adds it.
    absl::StatusOr<DeviceCost> network = DeviceCost::Create(std::move(beyond));
    if (network.ok()) {
      cost.network_ = std::make_shared<const DeviceCost>(*std::move(network));
    }
  }
  cost.FillSpeeds();
  return cost;
}

double CostModel::GemmWorkOf(const GemmAttributes& gemm) const {
  if (network_ == nullptr) return FlopsOf(OpKind::kGemm, gemm);
  return network_->GemmSeconds(
      {.phase = gemm.trans_a ? WorkPhase::kWeightGradient : WorkPhase::kForward,
       .m = gemm.m,
       .n = gemm.n,
       .k = gemm.k},
      GemmFormat::kAsStored);
}

double CostModel::AttentionWorkOf(OpKind kind,
                                  const AttentionAttributes& attention) const {
  if (network_ == nullptr) return FlopsOf(kind, attention);
  return network_->AttentionSeconds({.phase = kind == OpKind::kAttentionBackward
                                                  ? WorkPhase::kInputGradient
                                                  : WorkPhase::kForward,
                                     .num_sequences = attention.num_sequences,
                                     .num_heads = attention.num_heads,
                                     .num_kv_heads = attention.num_kv_heads,
                                     .query_tokens = attention.sequence_length,
                                     .key_tokens = attention.sequence_length,
                                     .head_dim = attention.head_dim,
                                     .value_head_dim = attention.head_dim,
                                     .causal_share = 0.5,
                                     .flash = true});
}

// The products, and what passes over the logits between them move: written and
// read for the losses, and once more as gradients.
double CostModel::CrossEntropyWorkOf(OpKind kind,
                                     const VocabAttributes& vocab) const {
  if (network_ == nullptr) return FlopsOf(kind, vocab);
  const int64_t tokens = vocab.num_tokens, hidden = vocab.hidden,
                rows = vocab.vocab_rows;
  constexpr double kLogitBytes = 2;
  const double pass = network_->MemorySeconds(
      kLogitBytes * static_cast<double>(tokens) * static_cast<double>(rows));
  double seconds = 0;
  if (!vocab.keeps_logits) {
    seconds += 2 * pass + GemmWorkOf({.m = tokens, .n = rows, .k = hidden});
  }
  if (kind == OpKind::kCrossEntropyStats) return seconds;
  return seconds + pass + GemmWorkOf({.m = tokens, .n = hidden, .k = rows}) +
         GemmWorkOf({.m = rows, .n = hidden, .k = tokens, .trans_a = true});
}

void CostModel::FillSpeeds() {
  for (const GemmTime& time : profile_.gemms) {
    gemm_speeds_.push_back(GemmWorkOf({.m = time.m,
                                       .n = time.n,
                                       .k = time.k,
                                       .trans_a = time.trans_a,
                                       .trans_b = time.trans_b}) /
                           time.seconds);
  }
}

bool CostModel::WereMeasured(int64_t group_size, int64_t stride) const {
  return network_ == nullptr ||
         (group_size - 1) * stride < profile_.provenance.num_ranks;
}

bool CostModel::IsPricedByRow(const Layout& layout, OpKind kind,
                              const OpAttributes& attributes) const {
  if (CopyEnginesCarry(layout, kind, attributes)) return false;
  if (IsTransfer(kind)) return WereMeasured(layout.pipeline, layout.tensor);
  if (!IsCollective(kind)) return true;
  const Group group = std::get<CollectiveAttributes>(attributes).group;
  return WereMeasured(GroupSize(layout, group), StrideOf(layout, group));
}

double CostModel::CollectiveSeconds(
    const Layout& layout, OpKind kind,
    const CollectiveAttributes& collective) const {
  const int32_t size = GroupSize(layout, collective.group);
  const double bytes = WorkOf(layout, kind, collective).bytes;
  const int64_t stride = StrideOf(layout, collective.group);
  if (WereMeasured(size, stride)) {
    return CommunicationSeconds(kind, size, bytes,
                                IsByCopyEngines(layout, kind, collective));
  }
  return network_->CollectiveSeconds(
      CommKindOf(kind), bytes,
      {.inner = {.size = size, .stride = stride}, .outer = {}});
}

double CostModel::TransferSeconds(const Layout& layout, OpKind kind,
                                  const OpAttributes& attributes) const {
  const double bytes = WorkOf(layout, kind, attributes).bytes;
  if (WereMeasured(layout.pipeline, layout.tensor)) {
    return CommunicationSeconds(kind, 2, bytes,
                                IsByCopyEngines(layout, kind, attributes));
  }
  return network_->TransferSeconds(bytes, layout.tensor, layout.pipeline);
}

// A product of a part of the rows of one that was measured takes its share of
// that one's time, but for the tiles that its last wave leaves empty: what the
// device's closed form makes of the two. Of several measured ones the nearest.
std::optional<double> CostModel::PartOfGemmSeconds(
    const GemmAttributes& gemm) const {
  if (network_ == nullptr || gemm.trans_a) return std::nullopt;
  const GemmTime* whole = nullptr;
  for (const GemmTime& time : profile_.gemms) {
    if (time.n != gemm.n || time.k != gemm.k || time.trans_a ||
        time.trans_b != gemm.trans_b || time.m < gemm.m ||
        time.m % gemm.m != 0 || time.m > kMostParts * gemm.m) {
      continue;
    }
    if (whole == nullptr || time.m < whole->m) whole = &time;
  }
  if (whole == nullptr || whole->m == gemm.m) return std::nullopt;
  const auto seconds = [&](int64_t m) {
    return network_->GemmSeconds(
        {.phase = WorkPhase::kForward, .m = m, .n = gemm.n, .k = gemm.k},
        GemmFormat::kAsStored);
  };
  return whole->seconds * seconds(gemm.m) / seconds(whole->m);
}

double CostModel::GemmSeconds(const GemmAttributes& gemm) const {
  if (const std::optional<double> part = PartOfGemmSeconds(gemm)) return *part;
  std::vector<Neighbour> neighbours;
  for (const GemmTime& time : profile_.gemms) {
    double distance = SquaredLogRatio(time.m, gemm.m) +
                      SquaredLogRatio(time.n, gemm.n) +
                      SquaredLogRatio(time.k, gemm.k);
    // Other transposes serve only where the same ones were not measured.
    if (time.trans_a != gemm.trans_a || time.trans_b != gemm.trans_b) {
      distance += kOtherKindDistance;
    }
    neighbours.push_back({distance, gemm_speeds_[neighbours.size()]});
  }
  return GemmWorkOf(gemm) / RateFromNeighbours(std::move(neighbours));
}

// Rows are of products that overwrite. One that adds reads its output as well.
// On an H200 that read takes all the time that memory needs for it while k is
// at most about 2,048, and half of it at 4,096: longer products hide it
// (docs/results/2026-11-22-small-models-h200.md).
double CostModel::AccumulationSeconds(int64_t m, int64_t n, int64_t k) const {
  constexpr double kHidingDepth = 2048;
  if (network_ == nullptr) return 0;
  const double bytes = static_cast<double>(DTypeBytes(DType::kFloat32)) *
                       static_cast<double>(m) * static_cast<double>(n);
  return network_->MemorySeconds(bytes) *
         std::min(1.0, kHidingDepth / static_cast<double>(k));
}

double CostModel::AttentionSeconds(OpKind kind,
                                   const AttentionAttributes& attention) const {
  std::vector<Neighbour> neighbours;
  for (const AttentionTime& time : profile_.attention) {
    if (time.backward != (kind == OpKind::kAttentionBackward)) continue;
    // Sequences and heads are alike to a kernel: independent problems.
    const double distance =
        SquaredLogRatio(time.num_sequences * time.num_heads,
                        attention.num_sequences * attention.num_heads) +
        SquaredLogRatio(time.sequence_length, attention.sequence_length) +
        SquaredLogRatio(time.head_dim, attention.head_dim);
    const AttentionAttributes measured{.num_sequences = time.num_sequences,
                                       .sequence_length = time.sequence_length,
                                       .num_heads = time.num_heads,
                                       .num_kv_heads = time.num_kv_heads,
                                       .head_dim = time.head_dim};
    neighbours.push_back(
        {distance, AttentionWorkOf(kind, measured) / time.seconds});
  }
  return AttentionWorkOf(kind, attention) /
         RateFromNeighbours(std::move(neighbours));
}

double CostModel::CrossEntropySeconds(OpKind kind,
                                      const VocabAttributes& vocab) const {
  std::vector<Neighbour> neighbours;
  for (const CrossEntropyTime& time : profile_.cross_entropy) {
    double distance = SquaredLogRatio(time.num_tokens, vocab.num_tokens) +
                      SquaredLogRatio(time.hidden, vocab.hidden) +
                      SquaredLogRatio(time.vocab_rows, vocab.vocab_rows);
    // Another kind of the family serves only where this one was not measured.
    if (time.kind != kind) distance += kOtherKindDistance;
    const VocabAttributes measured{.num_tokens = time.num_tokens,
                                   .hidden = time.hidden,
                                   .vocab_rows = time.vocab_rows};
    neighbours.push_back(
        {distance, CrossEntropyWorkOf(time.kind, measured) / time.seconds});
  }
  return CrossEntropyWorkOf(kind, vocab) /
         RateFromNeighbours(std::move(neighbours));
}

double CostModel::BandwidthSeconds(OpKind kind, double bytes) const {
  if (bytes <= 0) return 0;
  const std::vector<SizedTime> times = RowsOfKind(profile_.bandwidth, kind);
  // What was measured only where launching is all of it tells nothing of bytes.
  double launch = std::numeric_limits<double>::infinity();
  for (const BandwidthTime& time : profile_.bandwidth) {
    launch = std::min(launch, time.seconds);
  }
  const bool is_a_launch =
      !times.empty() && times.back().seconds < kMostLaunches * launch;
  if (!times.empty() && (!is_a_launch || bytes <= times.back().bytes)) {
    return InterpolateSeconds(times, bytes);
  }
  // A kind that was not measured moves its bytes at the median rate of those
  // that were.
  std::vector<double> rates;
  for (const BandwidthTime& time : profile_.bandwidth) {
    rates.push_back(static_cast<double>(time.bytes) / time.seconds);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  const double moving = bytes / *middle;
  return times.empty() ? moving : std::max(moving, times.back().seconds);
}

bool CostModel::IsByCopyEngines(const Layout& layout, OpKind kind,
                                const OpAttributes& attributes) const {
  if (kind == OpKind::kReceive) kind = OpKind::kSend;
  return CopyEnginesCarry(layout, kind, attributes) &&
         LiesWithinHosts(layout, kind, attributes, profile_.ranks_per_host) &&
         std::any_of(
             profile_.copy_engines.begin(), profile_.copy_engines.end(),
             [&](const CommunicationTime& time) { return time.kind == kind; });
}

double CostModel::CommunicationSeconds(OpKind kind, int32_t group_size,
                                       double bytes,
                                       bool by_copy_engines) const {
  CHECK(HasCommunication());
  if (kind == OpKind::kReceive) kind = OpKind::kSend;
  const std::vector<SizedTime> times =
      by_copy_engines ? NearestRows(profile_.copy_engines, kind, group_size)
                      : NearestRows(profile_.communication, kind, group_size);
  return InterpolateSeconds(times, std::max(bytes, times.front().bytes));
}

double CostModel::Seconds(const Layout& layout, OpKind kind,
                          const OpAttributes& attributes) const {
  return SecondsAlone(layout, kind, attributes) + profile_.launch_overhead_s;
}

double CostModel::SecondsAlone(const Layout& layout, OpKind kind,
                               const OpAttributes& attributes) const {
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms: {
      const auto& gemm = std::get<GemmAttributes>(attributes);
      const double adding =
          gemm.accumulate ? AccumulationSeconds(gemm.m, gemm.n, gemm.k) : 0;
      return GemmSeconds(gemm) + adding;
    }
    case ProfileTable::kAttention:
      return AttentionSeconds(kind, std::get<AttentionAttributes>(attributes));
    case ProfileTable::kCrossEntropy: {
      const auto& vocab = std::get<VocabAttributes>(attributes);
      // Only the first chunk of tokens may overwrite.
      const bool adds = vocab.accumulate && kind != OpKind::kCrossEntropyStats;
      const int64_t chunk =
          vocab.chunk_tokens > 0 ? vocab.chunk_tokens : vocab.num_tokens;
      const double adding =
          adds ? AccumulationSeconds(vocab.vocab_rows, vocab.hidden, chunk) : 0;
      return CrossEntropySeconds(kind, vocab) + adding;
    }
    case ProfileTable::kCommunication:
      return IsTransfer(kind) ? TransferSeconds(layout, kind, attributes)
                              : CollectiveSeconds(
                                    layout, kind,
                                    std::get<CollectiveAttributes>(attributes));
    case ProfileTable::kBandwidth:
      return BandwidthSeconds(kind, WorkOf(layout, kind, attributes).bytes);
  }
  CHECK(false) << "no price for " << OpKindName(kind);
  return 0;
}

double CostModel::RowSeconds(const OpShape& shape) const {
  const auto& f = shape.figures;
  const OpKind kind = shape.kind;
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms:
      return GemmSeconds({.m = f[0],
                          .n = f[1],
                          .k = f[2],
                          .trans_a = f[3] != 0,
                          .trans_b = f[4] != 0});
    case ProfileTable::kAttention:
      return AttentionSeconds(kind, {.num_sequences = f[0],
                                     .sequence_length = f[1],
                                     .num_heads = f[2],
                                     .num_kv_heads = f[3],
                                     .head_dim = f[4]});
    case ProfileTable::kCrossEntropy:
      return CrossEntropySeconds(
          kind, {.num_tokens = f[0], .hidden = f[1], .vocab_rows = f[2]});
    case ProfileTable::kCommunication:
      return CommunicationSeconds(kind, static_cast<int32_t>(f[0]),
                                  static_cast<double>(f[1]),
                                  /*by_copy_engines=*/false);
    case ProfileTable::kBandwidth:
      return BandwidthSeconds(kind, static_cast<double>(f[0]));
  }
  CHECK(false) << "no price for " << OpKindName(kind);
  return 0;
}

std::vector<std::string> CostModel::KindsWithoutRows(
    std::span<const Program> programs) const {
  std::set<OpKind> measured;
  for (const auto& row : profile_.cross_entropy) measured.insert(row.kind);
  for (const auto& row : profile_.bandwidth) measured.insert(row.kind);
  for (const auto& row : profile_.communication) measured.insert(row.kind);
  std::set<std::string> missing;
  for (const Program& program : programs) {
    for (const Instruction& instruction : program.instructions) {
      const OpKind kind = instruction.kind == OpKind::kReceive
                              ? OpKind::kSend
                              : instruction.kind;
      // Create() asks for rows of these.
      const ProfileTable table = Describe(kind).profile;
      if (table == ProfileTable::kGemms || table == ProfileTable::kAttention ||
          measured.contains(kind)) {
        continue;
      }
      const OpAttributes& attributes = instruction.attributes;
      const bool is_priced =
          IsCollective(kind) || IsTransfer(kind)
              ? IsPricedByRow(program.layout, kind, attributes)
              : WorkOf(program.layout, kind, attributes).bytes > 0;
      if (is_priced) missing.insert(std::string(OpKindName(kind)));
    }
  }
  return {missing.begin(), missing.end()};
}

std::vector<double> CostModel::ProgramSeconds(const Program& program) const {
  // Micro-batches and layers repeat a few shapes many times.
  std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool, bool>, double>
      gemms;
  std::vector<double> seconds;
  seconds.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    const auto* gemm = std::get_if<GemmAttributes>(&instruction.attributes);
    if (gemm == nullptr) {
      seconds.push_back(
          Seconds(program.layout, instruction.kind, instruction.attributes));
      continue;
    }
    double& cached = gemms[{gemm->m, gemm->n, gemm->k, gemm->trans_a,
                            gemm->trans_b, gemm->accumulate}];
    if (cached == 0) {
      cached =
          Seconds(program.layout, instruction.kind, instruction.attributes);
    }
    seconds.push_back(cached);
  }
  if (profile_.waits.between_lanes_s == 0) return seconds;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.lane != Lane::kHost && !instruction.waits.empty()) {
      seconds[i] += profile_.waits.between_lanes_s;
    }
  }
  return seconds;
}

double CostModel::PeakFlopsPerSecond() const {
  if (!HasTables()) return profile_.device.bf16_flops_per_s;
  double peak = 0;
  for (const GemmTime& time : profile_.gemms) {
    peak = std::max(peak, 2.0 * static_cast<double>(time.m) *
                              static_cast<double>(time.n) *
                              static_cast<double>(time.k) / time.seconds);
  }
  return peak;
}

}  // namespace millrace
