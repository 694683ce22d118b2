#include "planner/cost/formula_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/profile/prediction_interval.h"
#include "planner/text/nearest_word.h"

namespace millrace {
namespace {

struct NamedConstant {
  const char* name;
  double CostConstants::*member;
  const char* given_by;  // What to measure or read for it.
};

constexpr std::array<NamedConstant, 13> kConstants = {{
    {"gemm_share", &CostConstants::gemm_share,
     "FLOP/s of a large bf16 product over the data sheet's"},
    {"gemm_fp8_share", &CostConstants::gemm_fp8_share,
     "FLOP/s of a large fp8 product over the data sheet's"},
    {"gemm_fp4_share", &CostConstants::gemm_fp4_share,
     "FLOP/s of a large fp4 product over the data sheet's"},
    {"gemm_tile_s", &CostConstants::gemm_tile_s,
     "what products of one shape but different k take beyond proportion"},
    {"attention_forward_share", &CostConstants::attention_forward_share,
     "FLOP/s of FlashAttention over the bf16 peak"},
    {"attention_backward_share", &CostConstants::attention_backward_share,
     "FLOP/s of FlashAttention's backward pass over the bf16 peak"},
    {"memory_share", &CostConstants::memory_share,
     "bytes/s of an elementwise kernel over the data sheet's"},
    {"link_share", &CostConstants::link_share,
     "bus bandwidth of a large all-gather inside one domain over the link's"},
    {"fabric_share", &CostConstants::fabric_share,
     "bus bandwidth of a large all-gather across domains over the fabric's"},
    {"tensor_hidden_share", &CostConstants::tensor_hidden_share,
     "a trace of a step with tensor-parallel overlap"},
    {"data_hidden_share", &CostConstants::data_hidden_share,
     "a trace of a step whose gradients are reduced under backward passes"},
    {"host_launch_s", &CostConstants::host_launch_s,
     "a trace of a step of a model too small to fill the device"},
    {"step_s", &CostConstants::step_s,
     "a trace of a step: its end, beside passes, reductions and optimizer"},
}};

absl::StatusOr<CostConstants> ReadConstants(const HardwareProfile& profile) {
  CostConstants constants{};
  std::vector<std::string> known;
  for (const NamedConstant& constant : kConstants) {
    known.emplace_back(constant.name);
    const auto given = std::find_if(
        profile.constants.begin(), profile.constants.end(),
        [&](const ModelConstant& c) { return c.name == constant.name; });
    if (given == profile.constants.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "hardware profile '", profile.name, "': constants: '", constant.name,
          "' is missing; ", constant.given_by, " gives it"));
    }
    constants.*constant.member = given->value;
  }
  for (const char* noise : {kPassNoise, kRunNoise}) known.emplace_back(noise);
  for (const ModelConstant& constant : profile.constants) {
    if (std::find(known.begin(), known.end(), constant.name) != known.end()) {
      continue;
    }
    const auto nearest = NearestWord(constant.name, known);
    return absl::InvalidArgumentError(absl::StrCat(
        "hardware profile '", profile.name, "': constants: unknown '",
        constant.name, "'; ",
        nearest.has_value()
            ? absl::StrCat("did you mean '", *nearest, "'?")
            : absl::StrCat("known: ", absl::StrJoin(known, ", "))));
  }
  return constants;
}

// Tiles that products are cut into; what a multiprocessor reaches with one
// falls with the operands it needs for each output.
struct Tile {
  double m, n;
};
constexpr Tile kTiles[] = {{256, 128}, {128, 256}, {128, 128},
                           {128, 64},  {64, 128},  {64, 64}};
constexpr double kTileReuse = 8;  // Of m n / (m + n), where half is reached.
double TileEfficiency(const Tile& tile) {
  const double reuse = tile.m * tile.n / (tile.m + tile.n);
  constexpr double kBest = 256.0 * 128 / (256 + 128);
  return reuse / (reuse + kTileReuse) * (kBest + kTileReuse) / kBest;
}

// Whether the profile lists any constant of the cost formulas.
bool ListsConstants(const HardwareProfile& profile) {
  return std::any_of(profile.constants.begin(), profile.constants.end(),
                     [](const ModelConstant& constant) {
                       return constant.name != kPassNoise &&
                              constant.name != kRunNoise;
                     });
}

double MedianBytesPerSecond(const std::vector<BandwidthTime>& rows) {
  std::vector<double> rates;
  for (const BandwidthTime& row : rows) {
    rates.push_back(static_cast<double>(row.bytes) / row.seconds);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

bool IsNear(double a, double b) { return a <= 2 * b && b <= 2 * a; }

double BytesOf(GemmFormat format) {
  switch (format) {
    case GemmFormat::kAsStored:
      return 2;
    case GemmFormat::kFloat8:
      return 1;
    case GemmFormat::kFloat4:
      return 0.5;
  }
  return 2;
}

std::optional<OpKind> OpKindOf(CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return OpKind::kAllGather;
    case CommKind::kReduceScatter:
      return OpKind::kReduceScatter;
    case CommKind::kAllReduce:
      return OpKind::kAllReduce;
    case CommKind::kAllToAll:
    case CommKind::kRing:
      return std::nullopt;
  }
  return std::nullopt;
}

// Of its links, what a ring reaches that enters and leaves domains at devices
// whose ports differ, through the host's memory: its members are some of a
// domain's devices, neither one nor all. Fitted to half of vTrain's runs with 2
// and 4 tensor ranks on 64 to 512 A100 (Bang et al., 2024).
constexpr double kFarPortShare = 0.36;

// Of the rate of products whose rows all start at 16 bytes (NVIDIA, Matrix
// Multiplication Background User's Guide, on alignment): where `elements` of 2
// bytes are a row. Fitted to the heads of 50,257 tokens, whole and cut, in half
// of vTrain's table of single nodes.
double AlignmentShare(int64_t elements) {
  if (elements % 8 == 0) return 1;
  return elements % 4 == 0 ? 0.6 : 0.32;
}

// Members of the group inside one domain of `devices` (0: all) devices.
int64_t MembersInside(const GroupPlacement& group, int32_t devices) {
  if (devices == 0) return group.size();
  int64_t members = 1;
  for (const GroupPlacement::Axis& axis : {group.inner, group.outer}) {
    members *= std::clamp<int64_t>(devices / axis.stride, 1, axis.size);
  }
  return members;
}

}  // namespace

DeviceCost::DeviceCost(HardwareProfile profile, const CostConstants& constants)
    : profile_(std::move(profile)),
      constants_(constants),
      memory_bytes_per_s_(profile_.device.memory_bytes_per_s *
                          constants.memory_share) {}

absl::StatusOr<DeviceCost> DeviceCost::Create(HardwareProfile profile) {
  const DeviceSpec& device = profile.device;
  auto missing = [&](absl::string_view key, absl::string_view given_by) {
    return absl::InvalidArgumentError(
        absl::StrCat("hardware profile '", profile.name, "' has no ", key, "; ",
                     given_by, " gives it"));
  };
  const bool has_sheet = device.is_given() && !profile.network.empty();
  if (!profile.gemms.empty() && (!has_sheet || !ListsConstants(profile))) {
    return CreateFromTables(std::move(profile));
  }
  if (!device.is_given()) {
    return missing("device.bf16_flops_per_s", "the device's data sheet");
  }
  if (device.memory_bytes_per_s <= 0) {
    return missing("device.memory_bytes_per_s", "the device's data sheet");
  }
  if (device.multiprocessors <= 0) {
    return missing("device.multiprocessors", "the device's data sheet");
  }
  if (profile.network.empty()) {
    return missing("network", "the data sheet of links and fabric");
  }
  ASSIGN_OR_RETURN(const CostConstants constants, ReadConstants(profile));
  DeviceCost cost(std::move(profile), constants);
  if (!cost.profile_.gemms.empty()) {
    ASSIGN_OR_RETURN(cost.tables_, CostModel::Create(cost.profile_));
  }
  return cost;
}

absl::StatusOr<DeviceCost> DeviceCost::CreateFromTables(
    HardwareProfile profile) {
  // What only shares of a data sheet's figures need stays zero.
  CostConstants constants{};
  constants.tensor_hidden_share = constants.data_hidden_share = 1;
  constants.step_s = profile.waits.between_steps_s;
  DeviceCost cost(std::move(profile), constants);
  ASSIGN_OR_RETURN(cost.tables_, CostModel::Create(cost.profile_));
  cost.has_sheet_ = false;
  cost.memory_bytes_per_s_ = MedianBytesPerSecond(cost.profile_.bandwidth);
  return cost;
}

double DeviceCost::GemmFlopsPerSecond(GemmFormat format) const {
  const DeviceSpec& device = profile_.device;
  if (format == GemmFormat::kFloat4 && device.fp4_flops_per_s > 0) {
    return device.fp4_flops_per_s * constants_.gemm_fp4_share;
  }
  if (format != GemmFormat::kAsStored && device.fp8_flops_per_s > 0) {
    return device.fp8_flops_per_s * constants_.gemm_fp8_share;
  }
  return device.bf16_flops_per_s * constants_.gemm_share;
}

double DeviceCost::FormulaGemmSeconds(const GemmWork& work,
                                      GemmFormat format) const {
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n),
             k = static_cast<double>(work.k);
  const auto count = static_cast<double>(work.count);
  const double processors = profile_.device.multiprocessors;
  // Rows of tokens are whole; those of weights and results may be cut.
  const bool is_weight_gradient = work.phase == WorkPhase::kWeightGradient;
  const double rate =
      GemmFlopsPerSecond(format) / processors *
      std::min(AlignmentShare(work.n),
               AlignmentShare(is_weight_gradient ? work.m : work.k));
  double compute = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = count * std::ceil(m / tile.m) * std::ceil(n / tile.n);
    const double waves = std::ceil(tiles / processors);
    const double tile_s =
        2 * tile.m * tile.n * k / (rate * TileEfficiency(tile));
    compute = std::min(compute, waves * (tile_s + constants_.gemm_tile_s));
    // Parts of k side by side (Stream-K, Osama et al., 2023): no wave is left
    // half empty, for one more tile's time.
    const double even = tiles / processors * tile_s;
    compute = std::min(
        compute, even + (tiles / processors + 2) * constants_.gemm_tile_s);
  }
  const double bytes = count * (BytesOf(format) * (m * k + k * n) +
                                (is_weight_gradient ? 4 : 2) * m * n);
  return std::max(compute, MemorySeconds(bytes));
}

bool DeviceCost::HasGemmNear(const GemmWork& work) const {
  return std::any_of(
      profile_.gemms.begin(), profile_.gemms.end(), [&](const GemmTime& time) {
        return IsNear(static_cast<double>(time.m),
                      static_cast<double>(work.m)) &&
               IsNear(static_cast<double>(time.n),
                      static_cast<double>(work.n)) &&
               IsNear(static_cast<double>(time.k), static_cast<double>(work.k));
      });
}

// Operands as workers store them.
double DeviceCost::MeasuredGemmSeconds(const GemmWork& work) const {
  const bool forward =
      work.phase == WorkPhase::kForward || work.phase == WorkPhase::kRecompute;
  return tables_->Seconds(
      Layout{}, OpKind::kGemm,
      GemmAttributes{.m = work.m,
                     .n = work.n,
                     .k = work.k,
                     .trans_a = work.phase == WorkPhase::kWeightGradient,
                     .trans_b = forward});
}

double DeviceCost::GemmSeconds(const GemmWork& work, GemmFormat format) const {
  if (!has_sheet_) {
    const double launch = profile_.launch_overhead_s;
    return static_cast<double>(work.count) *
               (MeasuredGemmSeconds(work) - launch) +
           launch;
  }
  if (!work.low_precision) format = GemmFormat::kAsStored;
  if (tables_.has_value() && format == GemmFormat::kAsStored &&
      work.count == 1 && HasGemmNear(work)) {
    return MeasuredGemmSeconds(work);
  }
  return FormulaGemmSeconds(work, format) + profile_.launch_overhead_s;
}

bool DeviceCost::HasAttentionNear(const AttentionWork& work) const {
  return std::any_of(profile_.attention.begin(), profile_.attention.end(),
                     [&](const AttentionTime& time) {
                       return time.backward ==
                                  (work.phase == WorkPhase::kInputGradient) &&
                              time.head_dim == work.head_dim &&
                              IsNear(static_cast<double>(time.sequence_length),
                                     static_cast<double>(work.key_tokens));
                     });
}

// Rows are of whole sequences, whose queries see half of the keys.
double DeviceCost::MeasuredAttentionSeconds(const AttentionWork& work) const {
  const double launch = profile_.launch_overhead_s;
  const double whole_s =
      tables_->Seconds(
          Layout{},
          work.phase == WorkPhase::kInputGradient ? OpKind::kAttentionBackward
                                                  : OpKind::kAttentionForward,
          AttentionAttributes{
              .num_sequences = work.num_sequences,
              .sequence_length = work.key_tokens,
              .num_heads = work.num_heads,
              .num_kv_heads = work.num_kv_heads,
              .head_dim = (work.head_dim + work.value_head_dim) / 2}) -
      launch;
  constexpr double kCausalShare = 0.5;
  return whole_s * static_cast<double>(work.query_tokens) /
             static_cast<double>(work.key_tokens) * work.causal_share /
             kCausalShare +
         launch;
}

double DeviceCost::AttentionSeconds(const AttentionWork& work) const {
  const bool backward = work.phase == WorkPhase::kInputGradient;
  if (!work.flash) {
    const int64_t problems = work.num_sequences * work.num_heads;
    // Scores and context; backward, the gradients of both operands of each.
    const GemmWork scores{.phase = work.phase,
                          .m = work.query_tokens,
                          .n = work.key_tokens,
                          .k = work.head_dim,
                          .count = problems};
    const GemmWork context{.phase = work.phase,
                           .m = work.query_tokens,
                           .n = work.value_head_dim,
                           .k = work.key_tokens,
                           .count = problems};
    if (!has_sheet_) {
      return (backward ? 2 : 1) * (GemmSeconds(scores, GemmFormat::kAsStored) +
                                   GemmSeconds(context, GemmFormat::kAsStored));
    }
    const double once = FormulaGemmSeconds(scores, GemmFormat::kAsStored) +
                        FormulaGemmSeconds(context, GemmFormat::kAsStored);
    return (backward ? 2 : 1) * (once + 2 * profile_.launch_overhead_s);
  }
  if (!has_sheet_) return MeasuredAttentionSeconds(work);
  if (tables_.has_value() && work.query_tokens == work.key_tokens &&
      work.head_dim == work.value_head_dim && work.causal_share == 0.5 &&
      HasAttentionNear(work)) {
    return tables_->Seconds(
        Layout{},
        backward ? OpKind::kAttentionBackward : OpKind::kAttentionForward,
        AttentionAttributes{
            .num_sequences = static_cast<int32_t>(work.num_sequences),
            .sequence_length = work.key_tokens,
            .num_heads = work.num_heads,
            .num_kv_heads = work.num_kv_heads,
            .head_dim = work.head_dim});
  }
  // A block of 128 queries is one multiprocessor's work; the diagonal's blocks
  // are computed whole.
  constexpr double kBlock = 128;
  const auto queries = static_cast<double>(work.query_tokens);
  const auto keys = static_cast<double>(work.key_tokens);
  const double pairs =
      queries * std::min(keys, keys * work.causal_share + kBlock / 2);
  const double problems = static_cast<double>(work.num_sequences) *
                          static_cast<double>(work.num_heads);
  const double flops = (backward ? 2.5 : 1) * 2 * problems * pairs *
                       static_cast<double>(work.head_dim + work.value_head_dim);
  const double share = backward ? constants_.attention_backward_share
                                : constants_.attention_forward_share;
  const double processors = profile_.device.multiprocessors;
  const double blocks = problems * std::ceil(queries / kBlock);
  // Blocks of unlike length even out over waves, all but about half of one.
  const double filled = blocks / (blocks + processors / 2);
  return flops / (profile_.device.bf16_flops_per_s * share * filled) +
         profile_.launch_overhead_s;
}

double DeviceCost::BandwidthSeconds(const BandwidthWork& work) const {
  return MemorySeconds(work.bytes) + work.launches * profile_.launch_overhead_s;
}

double DeviceCost::LinkBytesPerSecond(size_t level) const {
  return profile_.network[level].bytes_per_s *
         (level == 0 ? constants_.link_share : constants_.fabric_share);
}

bool DeviceCost::HasCollective(CommKind kind,
                               const GroupPlacement& group) const {
  return OpKindOf(kind).has_value() && tables_.has_value() &&
         tables_->HasCommunication() &&
         group.size() <= profile_.provenance.num_ranks &&
         group.size() <= MembersInside(group, profile_.network[0].devices);
}

double DeviceCost::CollectiveSeconds(CommKind kind, double bytes,
                                     const GroupPlacement& group,
                                     int64_t experts_per_row) const {
  const int64_t size = group.size();
  if (size <= 1) return 0;
  if (!has_sheet_) {
    // An exchange and a ring give each rank as many bytes as an all-gather of
    // the same tensor.
    return tables_->RowSeconds(
               {.kind = OpKindOf(kind).value_or(OpKind::kAllGather),
                .figures = {size, static_cast<int64_t>(bytes)}}) +
           profile_.launch_overhead_s;
  }
  if (HasCollective(kind, group)) {
    constexpr double kElementBytes = 2;
    return tables_->Seconds(
        Layout{.tensor = static_cast<int32_t>(size)}, *OpKindOf(kind),
        CollectiveAttributes{
            .group = Group::kTensor,
            .num_elements = static_cast<int64_t>(bytes / kElementBytes),
            .dtype = DType::kBfloat16});
  }
  const auto ranks = static_cast<double>(size);
  // What each rank sends of the full tensor; an all-reduce scatters and
  // gathers.
  const double sent =
      bytes * (ranks - 1) / ranks * (kind == CommKind::kAllReduce ? 2 : 1);
  double slowest = 0, ring_latency = 0, tree_latency = 0;
  int64_t below = 1;  // Members inside one domain of the level below.
  for (size_t i = 0; i < profile_.network.size(); ++i) {
    const bool is_last = i + 1 == profile_.network.size();
    const int64_t inside =
        is_last ? size : MembersInside(group, profile_.network[i].devices);
    if (inside <= below) continue;
    const double domains = static_cast<double>(inside / below);
    const double rate = LinkBytesPerSecond(i);
    if (kind == CommKind::kAllToAll && experts_per_row > 0) {
      const double others = ranks / static_cast<double>(below) - 1;
      const auto experts = static_cast<double>(experts_per_row);
      const double met =
          others * (1 - std::pow(others / (others + 1), experts));
      slowest = std::max(slowest, bytes * met / experts / rate);
    } else if (kind == CommKind::kAllToAll) {
      // Parts go straight to their ranks: those outside over one's own link.
      const double outside = static_cast<double>(inside - below) / ranks;
      slowest = std::max(slowest, bytes * outside / rate);
    } else if (kind == CommKind::kRing) {
      // All members of a domain pass on at once, but only one has to cross.
      slowest = std::max(slowest, sent / rate);
    } else {
      const bool has_far_ports = i > 0 && !group.relays_to_ports && below > 1 &&
                                 below < profile_.network[i - 1].devices;
      slowest = std::max(slowest, sent / (static_cast<double>(below) * rate *
                                          (has_far_ports ? kFarPortShare : 1)));
    }
    ring_latency += (domains - 1) * profile_.network[i].latency_s;
    tree_latency +=
        std::ceil(std::log2(domains)) * profile_.network[i].latency_s;
    below = inside;
  }
  double latency = ring_latency;
  if (kind == CommKind::kAllReduce) {
    latency = 2 * std::min(ring_latency, 2 * tree_latency);
  } else if (kind == CommKind::kAllToAll) {
    latency = tree_latency;
  }
  return slowest + latency + profile_.launch_overhead_s;
}

double DeviceCost::TransferSeconds(double bytes, int64_t stride,
                                   int64_t num_stages) const {
  if (num_stages <= 1) return 0;
  if (!has_sheet_) {
    return tables_->RowSeconds({.kind = OpKind::kSend,
                                .figures = {2, static_cast<int64_t>(bytes)}}) +
           profile_.launch_overhead_s;
  }
  size_t level = 0;
  while (level + 1 < profile_.network.size() &&
         profile_.network[level].devices != 0 &&
         stride * num_stages > profile_.network[level].devices) {
    ++level;
  }
  return bytes / LinkBytesPerSecond(level) + profile_.network[level].latency_s +
         profile_.launch_overhead_s;
}

}  // namespace millrace
