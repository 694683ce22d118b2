#include "planner/cost/sheet_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
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
  const char* given_by;  // The thing to measure or read for it.
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
constexpr double kTileReuse = 8;  // The m n / (m + n) at which half is reached.
double TileEfficiency(const Tile& tile) {
  const double reuse = tile.m * tile.n / (tile.m + tile.n);
  constexpr double kBest = 256.0 * 128 / (256 + 128);
  return reuse / (reuse + kTileReuse) * (kBest + kTileReuse) / kBest;
}

// std::ceil() of a positive value that fits an int64_t, without a call into
// the library, which costs too much in the search.
double RoundedUp(double value) {
  const auto whole = static_cast<double>(static_cast<int64_t>(value));
  return whole < value ? whole + 1 : whole;
}

// The share that products reach of the rate of those whose rows all start at
// 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide, on
// alignment), where `elements` of 2 bytes are a row. Fitted to the heads of
// 50,257 tokens, whole and cut, in half of vTrain's table of single nodes.
double AlignmentShare(int64_t elements) {
  if (elements % 8 == 0) return 1;
  return elements % 4 == 0 ? 0.6 : 0.32;
}

}  // namespace

bool StatesSheet(const HardwareProfile& profile) {
  return profile.device.is_given() && !profile.network.empty() &&
         std::any_of(profile.constants.begin(), profile.constants.end(),
                     [](const ModelConstant& constant) {
                       return constant.name != kPassNoise &&
                              constant.name != kRunNoise;
                     });
}

SheetTimes::SheetTimes(const DeviceSpec& device, const CostConstants& constants)
    : bf16_flops_per_s_(device.bf16_flops_per_s),
      fp8_flops_per_s_(device.fp8_flops_per_s),
      fp4_flops_per_s_(device.fp4_flops_per_s),
      multiprocessors_(device.multiprocessors),
      memory_bytes_per_s_(device.memory_bytes_per_s * constants.memory_share),
      constants_(constants) {}

absl::StatusOr<SheetTimes> SheetTimes::Create(const HardwareProfile& profile) {
  const DeviceSpec& device = profile.device;
  auto missing = [&](absl::string_view key, absl::string_view given_by) {
    return absl::InvalidArgumentError(
        absl::StrCat("hardware profile '", profile.name, "' has no ", key, "; ",
                     given_by, " gives it"));
  };
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
  return SheetTimes(device, constants);
}

double SheetTimes::FlopsPerSecond(GemmFormat format) const {
  if (format == GemmFormat::kFloat4 && fp4_flops_per_s_ > 0) {
    return fp4_flops_per_s_ * constants_.gemm_fp4_share;
  }
  if (format != GemmFormat::kAsStored && fp8_flops_per_s_ > 0) {
    return fp8_flops_per_s_ * constants_.gemm_fp8_share;
  }
  return bf16_flops_per_s_ * constants_.gemm_share;
}

double SheetTimes::GemmSeconds(const GroupedGemmAttributes& gemm) const {
  const auto m = static_cast<double>(gemm.m), n = static_cast<double>(gemm.n),
             k = static_cast<double>(gemm.k);
  const auto count = static_cast<double>(gemm.count);
  const double processors = multiprocessors_;
  // Rows of tokens are whole; those of weights and results may be cut.
  const bool is_weight_gradient = gemm.trans_a;
  const double rate =
      FlopsPerSecond(gemm.format) / processors *
      std::min(AlignmentShare(gemm.n),
               AlignmentShare(is_weight_gradient ? gemm.m : gemm.k));
  double compute = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = count * RoundedUp(m / tile.m) * RoundedUp(n / tile.n);
    const double waves = RoundedUp(tiles / processors);
    const double tile_s =
        2 * tile.m * tile.n * k / (rate * TileEfficiency(tile));
    compute = std::min(compute, waves * (tile_s + constants_.gemm_tile_s));
    // Parts of k side by side (Stream-K, Osama et al., 2023): no wave is left
    // half empty, for one more tile's time.
    const double even = tiles / processors * tile_s;
    compute = std::min(
        compute, even + (tiles / processors + 2) * constants_.gemm_tile_s);
  }
  const double element_bytes =
      Describe(RecipeOf(Precision::kBfloat16, gemm.format).product).bytes;
  const double bytes = count * (element_bytes * (m * k + k * n) +
                                (is_weight_gradient ? 4 : 2) * m * n);
  return std::max(compute, MemorySeconds(bytes));
}

GeneralAttentionAttributes GeneralOf(const AttentionAttributes& attention) {
  return {.num_sequences = attention.num_sequences,
          .num_heads = attention.num_heads,
          .num_kv_heads = attention.num_kv_heads,
          .query_tokens = attention.sequence_length,
          .key_tokens = attention.sequence_length,
          .head_dim = attention.head_dim,
          .value_head_dim = attention.head_dim,
          .window = attention.window,
          .document_length = attention.document_length};
}

bool IsAttentionBackward(OpKind kind) {
  return kind == OpKind::kAttentionBackward ||
         kind == OpKind::kGeneralAttentionBackward ||
         kind == OpKind::kUnfusedAttentionBackward;
}

bool IsUnfusedAttention(OpKind kind) {
  return kind == OpKind::kUnfusedAttentionForward ||
         kind == OpKind::kUnfusedAttentionBackward;
}

ScoreProducts ScoreProductsOf(OpKind kind,
                              const GeneralAttentionAttributes& attention) {
  const bool backward = IsAttentionBackward(kind);
  const int64_t problems = attention.num_sequences * attention.num_heads;
  return {.scores = {.m = attention.query_tokens,
                     .n = attention.key_tokens,
                     .k = attention.head_dim,
                     .count = problems,
                     .trans_b = !backward},
          .context = {.m = attention.query_tokens,
                      .n = attention.value_head_dim,
                      .k = attention.key_tokens,
                      .count = problems,
                      .trans_b = !backward},
          .num_each = backward ? 2 : 1};
}

double SheetTimes::AttentionSeconds(
    OpKind kind, const GeneralAttentionAttributes& attention) const {
  if (IsUnfusedAttention(kind)) {
    const ScoreProducts products = ScoreProductsOf(kind, attention);
    return products.num_each *
           (GemmSeconds(products.scores) + GemmSeconds(products.context));
  }
  const bool backward = IsAttentionBackward(kind);
  // A block of 128 queries is one multiprocessor's work; the diagonal's blocks
  // are computed whole.
  constexpr double kBlock = 128, kCausalShare = 0.5;
  const auto queries = static_cast<double>(attention.query_tokens);
  const auto keys = static_cast<double>(attention.key_tokens);
  const double share_seen =
      kCausalShare * WindowShare(attention.window, attention.key_tokens);
  const double pairs = queries * std::min(keys, keys * share_seen + kBlock / 2);
  const double problems = static_cast<double>(attention.num_sequences) *
                          static_cast<double>(attention.num_heads);
  const double flops =
      (backward ? 2.5 : 1) * 2 * problems * pairs *
      static_cast<double>(attention.head_dim + attention.value_head_dim);
  const double share = backward ? constants_.attention_backward_share
                                : constants_.attention_forward_share;
  const double processors = multiprocessors_;
  const double blocks = problems * std::ceil(queries / kBlock);
  // Blocks of unlike length even out over waves, all but about half of one.
  const double filled = blocks / (blocks + processors / 2);
  const double gain = kind == OpKind::kFloat8AttentionForward
                          ? Float8AttentionGain(attention.head_dim)
                          : 1;
  return flops / (bf16_flops_per_s_ * share * filled * gain);
}

// The softmax limits attention in 8 bits, so that it gains less than products
// do, and nothing with narrow heads. Measured on one H200 with sequences of
// 8192 (docs/results/2026-11-22-kernels-h200.md).
double SheetTimes::Float8AttentionGain(int64_t head_dim) const {
  constexpr double kGainOf128 = 879.0 / 678, kGainOf64 = 529.0 / 553;
  if (fp8_flops_per_s_ == 0) return 1;
  return head_dim >= 128 ? kGainOf128 : kGainOf64;
}

}  // namespace millrace
