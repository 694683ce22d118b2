#include "planner/cost/measured_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/profile/measured_rows.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"

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

double MedianBytesPerSecond(std::span<const BandwidthTime> rows) {
  std::vector<double> rates;
  for (const BandwidthTime& row : rows) {
    rates.push_back(static_cast<double>(row.bytes) / row.seconds);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

double RatioOf(int64_t a, int64_t b) {
  const double ratio = static_cast<double>(a) / static_cast<double>(b);
  return std::max(ratio, 1 / ratio);
}

bool IsNear(int64_t a, int64_t b) { return a <= 2 * b && b <= 2 * a; }

constexpr double kNowhere = std::numeric_limits<double>::infinity();
// How far groups across hosts are from rows of one host: links differ as much.
constexpr double kAnotherLevel = 10;

// Twice the keys that a query sees on average.
int64_t KeysSeen(int64_t window, int64_t sequence_length) {
  return std::llround(static_cast<double>(sequence_length) *
                      WindowShare(window, sequence_length));
}

// The distance between windows, by the pairs of tokens that each leaves.
double SquaredLogRatioOfShares(const AttentionTime& time,
                               const AttentionAttributes& attention) {
  const double ratio =
      std::log(WindowShare(time.window, time.sequence_length) /
               WindowShare(attention.window, attention.sequence_length));
  return ratio * ratio;
}

// From the nearest of no rows there is no distance.
double ReachOf(double nearest) { return nearest == kNowhere ? 1 : nearest; }

// From the sizes of rows to one beyond them.
template <typename Rows, typename IsAlike>
double ReachOfSize(const Rows& rows, const IsAlike& is_alike, int64_t bytes) {
  int64_t least = 0, most = 0;
  for (const auto& row : rows) {
    if (!is_alike(row)) continue;
    least = least == 0 ? row.bytes : std::min(least, row.bytes);
    most = std::max(most, row.bytes);
  }
  if (most == 0 || bytes <= 0) return 1;
  if (bytes < least) return RatioOf(least, bytes);
  return bytes > most ? RatioOf(bytes, most) : 1;
}

GemmFormat FormatOf(const GemmTime& row) {
  return FormatOfProduct(KindOf(row));
}

}  // namespace

absl::Status CheckTables(const HardwareProfile& profile) {
  if (profile.gemms.empty()) return MissingTable(profile, "gemms table");
  for (const OpKind kind :
       {OpKind::kAttentionForward, OpKind::kAttentionBackward}) {
    if (std::none_of(
            profile.attention.begin(), profile.attention.end(),
            [&](const AttentionTime& time) { return KindOf(time) == kind; })) {
      return MissingTable(profile, kind == OpKind::kAttentionBackward
                                       ? "backward rows in attention"
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
  return absl::OkStatus();
}

MeasuredTimes::MeasuredTimes(const HardwareProfile& profile,
                             const std::optional<SheetTimes>& sheet)
    : profile_(&profile),
      sheet_(sheet),
      bytes_per_s_(MedianBytesPerSecond(profile.bandwidth)) {
  for (const GemmTime& time : profile_->gemms) {
    gemm_speeds_.push_back(GemmWorkOf({.m = time.m,
                                       .n = time.n,
                                       .k = time.k,
                                       .trans_a = time.trans_a,
                                       .trans_b = time.trans_b},
                                      FormatOf(time)) /
                           time.seconds);
  }
}

double MeasuredTimes::GemmWorkOf(const GemmAttributes& gemm,
                                 GemmFormat format) const {
  if (!sheet_.has_value()) return FlopsOf(OpKind::kGemm, gemm);
  return sheet_->GemmSeconds({.m = gemm.m,
                              .n = gemm.n,
                              .k = gemm.k,
                              .format = format,
                              .trans_a = gemm.trans_a});
}

double MeasuredTimes::AttentionWorkOf(
    OpKind kind, const AttentionAttributes& attention) const {
  if (!sheet_.has_value()) return FlopsOf(kind, attention);
  return sheet_->AttentionSeconds(kind, GeneralOf(attention));
}

// The products, and what passes over the logits between them move: written and
// read for the losses, and once more as gradients.
double MeasuredTimes::CrossEntropyWorkOf(OpKind kind,
                                         const VocabAttributes& vocab) const {
  if (!sheet_.has_value()) return FlopsOf(kind, vocab);
  const int64_t tokens = vocab.num_tokens, hidden = vocab.hidden,
                rows = vocab.vocab_rows;
  constexpr double kLogitBytes = 2;
  const double pass = sheet_->MemorySeconds(
      kLogitBytes * static_cast<double>(tokens) * static_cast<double>(rows));
  const double losses =
      2 * pass + GemmWorkOf({.m = tokens, .n = rows, .k = hidden});
  if (kind == OpKind::kCrossEntropyStats) return losses;
  // The gradient takes over the logits that the statistics kept.
  return (vocab.keeps_logits ? 0 : losses) + pass +
         GemmWorkOf({.m = tokens, .n = hidden, .k = rows}) +
         GemmWorkOf({.m = rows, .n = hidden, .k = tokens, .trans_a = true});
}

// A product of a part of the rows of a measured one takes its share of that
// one's time, but for the tiles that its last wave leaves empty. The device's
// closed form of the two gives the share. Among several measured ones the
// nearest counts.
std::optional<double> MeasuredTimes::PartOfGemmSeconds(
    const GemmAttributes& gemm, GemmFormat format) const {
  if (!sheet_.has_value() || gemm.trans_a) return std::nullopt;
  const GemmTime* whole = nullptr;
  for (const GemmTime& time : profile_->gemms) {
    if (FormatOf(time) != format || time.n != gemm.n || time.k != gemm.k ||
        time.trans_a || time.trans_b != gemm.trans_b || time.m < gemm.m ||
        time.m % gemm.m != 0 || time.m > kMostParts * gemm.m) {
      continue;
    }
    if (whole == nullptr || time.m < whole->m) whole = &time;
  }
  if (whole == nullptr || whole->m == gemm.m) return std::nullopt;
  const auto seconds = [&](int64_t m) {
    return sheet_->GemmSeconds(
        {.m = m, .n = gemm.n, .k = gemm.k, .format = format});
  };
  return whole->seconds * seconds(gemm.m) / seconds(whole->m);
}

double MeasuredTimes::OverwritingGemmSeconds(const GemmAttributes& gemm,
                                             GemmFormat format) const {
  if (const std::optional<double> part = PartOfGemmSeconds(gemm, format)) {
    return *part;
  }
  std::vector<Neighbour> neighbours;
  for (size_t i = 0; i < profile_->gemms.size(); ++i) {
    const GemmTime& time = profile_->gemms[i];
    if (FormatOf(time) != format) continue;
    double distance = SquaredLogRatio(time.m, gemm.m) +
                      SquaredLogRatio(time.n, gemm.n) +
                      SquaredLogRatio(time.k, gemm.k);
    // Other transposes serve only where the same ones were not measured.
    if (time.trans_a != gemm.trans_a || time.trans_b != gemm.trans_b) {
      distance += kOtherKindDistance;
    }
    neighbours.push_back({distance, gemm_speeds_[i]});
  }
  return GemmWorkOf(gemm, format) / RateFromNeighbours(std::move(neighbours));
}

// Rows are of products that overwrite. One that adds reads its output as well.
// On an H200 that read takes all the time that memory needs for it while k is
// at most about 2,048, and half of it at 4,096: longer products hide it
// (docs/results/2026-11-22-small-models-h200.md).
double MeasuredTimes::AccumulationSeconds(int64_t m, int64_t n,
                                          int64_t k) const {
  constexpr double kHidingDepth = 2048;
  if (!sheet_.has_value()) return 0;
  const double bytes = static_cast<double>(DTypeBytes(DType::kFloat32)) *
                       static_cast<double>(m) * static_cast<double>(n);
  return sheet_->MemorySeconds(bytes) *
         std::min(1.0, kHidingDepth / static_cast<double>(k));
}

double MeasuredTimes::GemmSeconds(const GemmAttributes& gemm,
                                  GemmFormat format) const {
  const double adding =
      gemm.accumulate ? AccumulationSeconds(gemm.m, gemm.n, gemm.k) : 0;
  return OverwritingGemmSeconds(gemm, format) + adding;
}

double MeasuredTimes::AttentionSeconds(OpKind kind,
                                       const AttentionAttributes& given) const {
  const AttentionAttributes attention = AsWholeSequences(given);
  if (kind == OpKind::kFloat8AttentionForward && !HasAttention(kind)) {
    const double stored_s =
        AttentionSeconds(OpKind::kAttentionForward, attention);
    return sheet_.has_value()
               ? stored_s / sheet_->Float8AttentionGain(attention.head_dim)
               : stored_s;
  }
  std::vector<Neighbour> neighbours;
  for (const AttentionTime& time : profile_->attention) {
    if (KindOf(time) != kind) continue;
    // Sequences and heads are alike to a kernel: independent problems. The
    // backward pass takes one key head at a time with its query heads, so that
    // few key heads leave multiprocessors idle, or cost it partial sums.
    const double distance =
        SquaredLogRatio(time.num_sequences * time.num_heads,
                        attention.num_sequences * attention.num_heads) +
        SquaredLogRatio(time.num_sequences * time.num_kv_heads,
                        attention.num_sequences * attention.num_kv_heads) +
        SquaredLogRatio(time.sequence_length, attention.sequence_length) +
        SquaredLogRatio(time.head_dim, attention.head_dim) +
        SquaredLogRatioOfShares(time, attention);
    const AttentionAttributes measured{.num_sequences = time.num_sequences,
                                       .sequence_length = time.sequence_length,
                                       .num_heads = time.num_heads,
                                       .num_kv_heads = time.num_kv_heads,
                                       .head_dim = time.head_dim,
                                       .window = time.window};
    neighbours.push_back(
        {distance, AttentionWorkOf(kind, measured) / time.seconds});
  }
  return AttentionWorkOf(kind, attention) /
         RateFromNeighbours(std::move(neighbours));
}

double MeasuredTimes::CrossEntropySeconds(OpKind kind,
                                          const VocabAttributes& vocab) const {
  std::vector<Neighbour> neighbours;
  for (const CrossEntropyTime& time : profile_->cross_entropy) {
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
  // Only the first chunk of tokens may overwrite.
  const bool adds = vocab.accumulate && kind != OpKind::kCrossEntropyStats;
  const int64_t chunk =
      vocab.chunk_tokens > 0 ? vocab.chunk_tokens : vocab.num_tokens;
  const double adding =
      adds ? AccumulationSeconds(vocab.vocab_rows, vocab.hidden, chunk) : 0;
  return CrossEntropyWorkOf(kind, vocab) /
             RateFromNeighbours(std::move(neighbours)) +
         adding;
}

double MeasuredTimes::BandwidthSeconds(OpKind kind, double bytes) const {
  if (bytes <= 0) return 0;
  const std::vector<SizedTime> times = RowsOfKind(profile_->bandwidth, kind);
  // Rows so small that they measured a launch alone say nothing about bytes.
  double launch = std::numeric_limits<double>::infinity();
  for (const BandwidthTime& time : profile_->bandwidth) {
    launch = std::min(launch, time.seconds);
  }
  const bool is_a_launch =
      !times.empty() && times.back().seconds < kMostLaunches * launch;
  if (!times.empty() && (!is_a_launch || bytes <= times.back().bytes)) {
    return InterpolateSeconds(times, bytes);
  }
  // A kind that was not measured moves its bytes at the median rate of those
  // that were.
  const double moving = bytes / bytes_per_s_;
  return times.empty() ? moving : std::max(moving, times.back().seconds);
}

double MeasuredTimes::CommunicationSeconds(CommunicationTime what, double bytes,
                                           bool by_copy_engines) const {
  CHECK(!profile_->communication.empty());
  if (what.kind == OpKind::kReceive) what.kind = OpKind::kSend;
  const std::vector<SizedTime> times =
      by_copy_engines ? NearestRows(profile_->copy_engines, what)
                      : NearestRows(profile_->communication, what);
  return InterpolateSeconds(times, std::max(bytes, times.front().bytes));
}

double MeasuredTimes::RowSeconds(const OpShape& shape) const {
  const auto& f = shape.figures;
  const OpKind kind = shape.kind;
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms:
      return GemmSeconds({.m = f[0],
                          .n = f[1],
                          .k = f[2],
                          .trans_a = f[3] != 0,
                          .trans_b = f[4] != 0},
                         FormatOfProduct(kind));
    case ProfileTable::kAttention:
      return AttentionSeconds(kind, {.num_sequences = f[0],
                                     .sequence_length = f[1],
                                     .num_heads = f[2],
                                     .num_kv_heads = f[3],
                                     .head_dim = f[4],
                                     .window = f[5]});
    case ProfileTable::kCrossEntropy:
      return CrossEntropySeconds(
          kind, {.num_tokens = f[0], .hidden = f[1], .vocab_rows = f[2]});
    case ProfileTable::kCommunication:
      return CommunicationSeconds({.kind = kind,
                                   .group_size = static_cast<int32_t>(f[0]),
                                   .hosts = f[2],
                                   .pairs = f[3]},
                                  static_cast<double>(f[1]),
                                  /*by_copy_engines=*/false);
    case ProfileTable::kBandwidth:
      return BandwidthSeconds(kind, static_cast<double>(f[0]));
  }
  CHECK(false) << "no price for " << OpKindName(kind);
  return 0;
}

double MeasuredTimes::Reach(const OpShape& shape) const {
  const auto& f = shape.figures;
  const OpKind kind = shape.kind;
  double nearest = kNowhere;
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms:
      for (const GemmTime& row : profile_->gemms) {
        if (KindOf(row) != kind || row.trans_a != (f[3] != 0) ||
            row.trans_b != (f[4] != 0)) {
          continue;
        }
        nearest = std::min(nearest,
                           std::max({RatioOf(row.m, f[0]), RatioOf(row.n, f[1]),
                                     RatioOf(row.k, f[2])}));
      }
      return ReachOf(nearest);
    case ProfileTable::kAttention:
      for (const AttentionTime& row : profile_->attention) {
        if (KindOf(row) != kind) continue;
        nearest = std::min(
            nearest,
            std::max({RatioOf(row.num_sequences * row.num_heads, f[0] * f[2]),
                      RatioOf(row.sequence_length, f[1]),
                      RatioOf(KeysSeen(row.window, row.sequence_length),
                              KeysSeen(f[5], f[1])),
                      RatioOf(row.head_dim, f[4])}));
      }
      return ReachOf(nearest);
    case ProfileTable::kCrossEntropy:
      for (const CrossEntropyTime& row : profile_->cross_entropy) {
        if (row.kind != kind) continue;
        nearest = std::min(nearest, std::max({RatioOf(row.num_tokens, f[0]),
                                              RatioOf(row.hidden, f[1]),
                                              RatioOf(row.vocab_rows, f[2])}));
      }
      return ReachOf(nearest);
    case ProfileTable::kCommunication:
      if (f[2] > 1 && !HasHosts()) return kAnotherLevel;
      return ReachOfSize(
          profile_->communication,
          [&](const CommunicationTime& row) {
            return row.kind == kind && row.group_size == f[0] &&
                   row.hosts == f[2] && row.pairs == f[3];
          },
          f[1]);
    case ProfileTable::kBandwidth:
      return ReachOfSize(
          profile_->bandwidth,
          [&](const BandwidthTime& row) { return row.kind == kind; }, f[0]);
  }
  CHECK(false) << "no price for " << OpKindName(kind);
  return 0;
}

bool MeasuredTimes::HasHosts() const {
  return std::any_of(
      profile_->communication.begin(), profile_->communication.end(),
      [](const CommunicationTime& row) { return row.hosts > 1; });
}

bool MeasuredTimes::HasGemmNear(int64_t m, int64_t n, int64_t k,
                                GemmFormat format) const {
  return std::any_of(profile_->gemms.begin(), profile_->gemms.end(),
                     [&](const GemmTime& row) {
                       return FormatOf(row) == format && IsNear(row.m, m) &&
                              IsNear(row.n, n) && IsNear(row.k, k);
                     });
}

bool MeasuredTimes::HasGemms(GemmFormat format) const {
  return std::any_of(
      profile_->gemms.begin(), profile_->gemms.end(),
      [&](const GemmTime& row) { return FormatOf(row) == format; });
}

bool MeasuredTimes::HasAttention(OpKind kind) const {
  return std::any_of(
      profile_->attention.begin(), profile_->attention.end(),
      [&](const AttentionTime& row) { return KindOf(row) == kind; });
}

bool MeasuredTimes::HasAttentionNear(OpKind kind, int64_t sequence_length,
                                     int64_t head_dim) const {
  return std::any_of(profile_->attention.begin(), profile_->attention.end(),
                     [&](const AttentionTime& row) {
                       return KindOf(row) == kind && row.head_dim == head_dim &&
                              IsNear(row.sequence_length, sequence_length);
                     });
}

bool MeasuredTimes::HasCopyEngines(OpKind kind) const {
  return std::any_of(
      profile_->copy_engines.begin(), profile_->copy_engines.end(),
      [&](const CommunicationTime& row) { return row.kind == kind; });
}

double MeasuredTimes::BestFlopsPerSecond() const {
  double peak = 0;
  const bool has_others = HasGemms(GemmFormat::kAsStored);
  for (const GemmTime& time : profile_->gemms) {
    if (FormatOf(time) != GemmFormat::kAsStored && has_others) continue;
    peak = std::max(peak, 2.0 * static_cast<double>(time.m) *
                              static_cast<double>(time.n) *
                              static_cast<double>(time.k) / time.seconds);
  }
  return peak;
}

}  // namespace millrace
