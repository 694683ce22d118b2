#include "planner/cost/op_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/profile/host_size.h"
#include "planner/program/copy_engines.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

HardwareProfile Sorted(HardwareProfile profile) {
  std::sort(profile.bandwidth.begin(), profile.bandwidth.end(),
            [](const BandwidthTime& a, const BandwidthTime& b) {
              return std::tie(a.kind, a.bytes) < std::tie(b.kind, b.bytes);
            });
  const auto is_before = [](const CommunicationTime& a,
                            const CommunicationTime& b) {
    return std::tie(a.kind, a.group_size, a.hosts, a.pairs, a.bytes) <
           std::tie(b.kind, b.group_size, b.hosts, b.pairs, b.bytes);
  };
  std::sort(profile.communication.begin(), profile.communication.end(),
            is_before);
  std::sort(profile.copy_engines.begin(), profile.copy_engines.end(),
            is_before);
  return profile;
}

// The kind whose rows price attention of the kind.
OpKind RowKindOf(OpKind kind, const MeasuredTimes& measured) {
  if (IsAttentionBackward(kind)) return OpKind::kAttentionBackward;
  return kind == OpKind::kFloat8AttentionForward && measured.HasAttention(kind)
             ? kind
             : OpKind::kAttentionForward;
}

}  // namespace

CostModel::CostModel(HardwareProfile profile)
    : profile_(
          std::make_shared<const HardwareProfile>(Sorted(std::move(profile)))) {
  constants_.step_s = profile_->waits.between_steps_s;
}

absl::StatusOr<CostModel> CostModel::Create(HardwareProfile profile) {
  CostModel cost(std::move(profile));
  const HardwareProfile& known = *cost.profile_;
  const bool has_tables = !known.gemms.empty();
  if (!has_tables && !known.device.is_given()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hardware profile '", known.name,
        "' has no gemms table; measure a whole one with millrace profile JOB, "
        "or give device.bf16_flops_per_s and the rest of a data sheet"));
  }
  if (has_tables) RETURN_IF_ERROR(CheckTables(known));
  if (!has_tables || StatesSheet(known)) {
    ASSIGN_OR_RETURN(cost.sheet_, SheetTimes::Create(known));
    cost.constants_ = cost.sheet_->constants();
    cost.network_.emplace(known.network, cost.constants_.link_share,
                          cost.constants_.fabric_share);
  }
  if (has_tables) cost.measured_.emplace(known, cost.sheet_);
  cost.memory_bytes_per_s_ =
      cost.sheet_.has_value()
          ? known.device.memory_bytes_per_s * cost.constants_.memory_share
          : cost.measured_->BytesPerSecond();
  return cost;
}

absl::Status CostModel::CheckTablesPrice(const Layout& layout) const {
  if (profile_->precision == layout.precision && IsFloat8(layout.gemm_format) &&
      !measured_->HasGemms(layout.gemm_format)) {
    const bool has_blocks = layout.gemm_format == GemmFormat::kFloat8Blocks;
    return absl::FailedPreconditionError(absl::StrCat(
        "hardware profile '", profile_->name,
        "' has no times of 8-bit products (rows of gemms with ",
        has_blocks ? "float8_blocks" : "float8",
        ": true), which training.precision: ", PrecisionName(layout),
        " needs; measure one with millrace profile JOB"));
  }
  if (profile_->precision != layout.precision ||
      layout.gemm_format == GemmFormat::kFloat4) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hardware profile '", profile_->name, "' was measured in ",
        PrecisionName(profile_->precision), ", but the job trains in ",
        PrecisionName(layout),
        " (training.precision); measure one with millrace profile JOB"));
  }
  if (layout.num_ranks() > 1 && !HasCommunication()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hardware profile '", profile_->name,
        "' was measured with one rank and cannot price the communication of ",
        layout.num_ranks(), "; measure one with millrace profile JOB"));
  }
  return absl::OkStatus();
}

bool CostModel::WereMeasured(int64_t group_size, int64_t stride) const {
  if (!network_.has_value()) return true;
  const int64_t hosts =
      millrace::HostsOf(group_size, stride, profile_->ranks_per_host);
  // Larger groups of a host than were measured have like links.
  if (hosts == 1 && WasMeasuredOnOneHost(*profile_)) return true;
  return (group_size - 1) * stride < profile_->provenance.num_ranks &&
         (hosts == 1 || (measured_.has_value() && measured_->HasHosts()));
}

bool CostModel::IsPricedByRow(const Layout& layout, OpKind kind,
                              const OpAttributes& attributes) const {
  if (CopyEnginesCarry(layout, kind, attributes)) return false;
  if (IsTransfer(kind)) return WereMeasured(layout.pipeline, layout.tensor);
  if (!IsCollective(kind)) return true;
  const Group group = std::get<CollectiveAttributes>(attributes).group;
  return WereMeasured(GroupSize(layout, group), GroupStride(layout, group));
}

bool CostModel::IsByCopyEngines(const Layout& layout, OpKind kind,
                                const OpAttributes& attributes) const {
  if (kind == OpKind::kReceive) kind = OpKind::kSend;
  return CopyEnginesCarry(layout, kind, attributes) &&
         LiesWithinHosts(layout, kind, attributes, profile_->ranks_per_host) &&
         measured_.has_value() && measured_->HasCopyEngines(kind);
}

double CostModel::CollectiveOpSeconds(
    const Layout& layout, OpKind kind,
    const CollectiveAttributes& collective) const {
  const int32_t size = GroupSize(layout, collective.group);
  const double bytes = WorkOf(layout, kind, collective).bytes;
  const int64_t stride = GroupStride(layout, collective.group);
  if (WereMeasured(size, stride)) {
    return measured_->CommunicationSeconds(
        {.kind = kind,
         .group_size = size,
         .hosts = millrace::HostsOf(size, stride, profile_->ranks_per_host)},
        bytes, IsByCopyEngines(layout, kind, collective));
  }
  return network_->CollectiveSeconds(
      kind, bytes, {.inner = {.size = size, .stride = stride}, .outer = {}},
      /*experts_per_row=*/0);
}

double CostModel::TransferOpSeconds(const Layout& layout, OpKind kind,
                                    const OpAttributes& attributes,
                                    int64_t hosts) const {
  const double bytes = WorkOf(layout, kind, attributes).bytes;
  if (WereMeasured(layout.pipeline, layout.tensor)) {
    return measured_->CommunicationSeconds(
        {.kind = kind,
         .group_size = 2,
         .hosts = hosts,
         .pairs = hosts > 1
                      ? PairsBetweenHosts(layout, profile_->ranks_per_host)
                      : 1},
        bytes, IsByCopyEngines(layout, kind, attributes));
  }
  return network_->TransferSeconds(bytes, layout.tensor, layout.pipeline);
}

double CostModel::Seconds(const Layout& layout, OpKind kind,
                          const OpAttributes& attributes) const {
  return SecondsAlone(layout, kind, attributes) + profile_->launch_overhead_s;
}

double CostModel::SecondsAlone(const Layout& layout, OpKind kind,
                               const OpAttributes& attributes) const {
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms:
      return measured_->GemmSeconds(std::get<GemmAttributes>(attributes),
                                    FormatOfProduct(kind));
    case ProfileTable::kAttention:
      return measured_->AttentionSeconds(
          kind, std::get<AttentionAttributes>(attributes));
    case ProfileTable::kCrossEntropy:
      return measured_->CrossEntropySeconds(
          kind, std::get<VocabAttributes>(attributes));
    case ProfileTable::kCommunication:
      return IsTransfer(kind)
                 ? TransferOpSeconds(
                       layout, kind, attributes,
                       HostsOfSlowestTransfer(layout, profile_->ranks_per_host))
                 : CollectiveOpSeconds(
                       layout, kind,
                       std::get<CollectiveAttributes>(attributes));
    case ProfileTable::kBandwidth:
      return measured_->BandwidthSeconds(
          kind, WorkOf(layout, kind, attributes).bytes);
  }
  CHECK(false) << "no price for " << OpKindName(kind);
  return 0;
}

std::vector<std::string> CostModel::KindsWithoutRows(
    std::span<const Program> programs) const {
  std::set<OpKind> measured;
  for (const auto& row : profile_->attention) measured.insert(KindOf(row));
  for (const auto& row : profile_->cross_entropy) measured.insert(row.kind);
  for (const auto& row : profile_->bandwidth) measured.insert(row.kind);
  for (const auto& row : profile_->communication) measured.insert(row.kind);
  std::set<std::string> missing;
  for (const Program& program : programs) {
    for (const Instruction& instruction : program.instructions) {
      const OpKind kind = instruction.kind == OpKind::kReceive
                              ? OpKind::kSend
                              : instruction.kind;
      // Create() asks for rows of products.
      if (Describe(kind).profile == ProfileTable::kGemms ||
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

double CostModel::InstructionSeconds(const Program& program,
                                     const Instruction& instruction) const {
  const OpKind kind = instruction.kind;
  const OpAttributes& attributes = instruction.attributes;
  if (!IsTransfer(kind)) return Seconds(program.layout, kind, attributes);
  const bool to_next =
      std::get<TransferAttributes>(attributes).direction == Direction::kToNext;
  // The stage before the one that is crossed to, whoever of both this is.
  const bool is_upper = to_next == (kind == OpKind::kSend);
  const int32_t num_stages = program.layout.pipeline;
  const int32_t stage =
      is_upper ? program.stage : (program.stage + num_stages - 1) % num_stages;
  return TransferOpSeconds(
             program.layout, kind, attributes,
             HostsOfTransfer(program.layout, stage, profile_->ranks_per_host)) +
         profile_->launch_overhead_s;
}

std::vector<double> CostModel::ProgramSeconds(const Program& program) const {
  // Micro-batches and layers repeat a few shapes many times: by kind, those
  // priced so far.
  std::array<std::vector<std::pair<const OpAttributes*, double>>, kNumOpKinds>
      priced;
  std::vector<double> seconds;
  seconds.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    auto& of_kind = priced[static_cast<size_t>(instruction.kind)];
    const auto known = std::find_if(
        of_kind.begin(), of_kind.end(), [&](const auto& attributes_seconds) {
          return *attributes_seconds.first == instruction.attributes;
        });
    if (known != of_kind.end()) {
      seconds.push_back(known->second);
      continue;
    }
    seconds.push_back(InstructionSeconds(program, instruction));
    of_kind.emplace_back(&instruction.attributes, seconds.back());
  }
  if (profile_->waits.between_lanes_s == 0) return seconds;
  // Copy engines are started by a lane and waited for by it at no such cost.
  const auto is_by_copy_engines = [&](const Instruction& instruction) {
    return CopyEnginesCarry(program.layout, instruction.kind,
                            instruction.attributes);
  };
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.lane == Lane::kHost || is_by_copy_engines(instruction)) {
      continue;
    }
    const bool waits =
        std::any_of(instruction.waits.begin(), instruction.waits.end(),
                    [&](InstructionId id) {
                      return !is_by_copy_engines(program.instructions[id]);
                    });
    if (waits) seconds[i] += profile_->waits.between_lanes_s;
  }
  return seconds;
}

double CostModel::MeasuredGemmSeconds(const GroupedGemmAttributes& gemm) const {
  const bool has_format = measured_->HasGemms(gemm.format);
  return measured_->GemmSeconds(
      {.m = gemm.m,
       .n = gemm.n,
       .k = gemm.k,
       .trans_a = gemm.trans_a,
       .trans_b = gemm.trans_b},
      has_format ? gemm.format : GemmFormat::kAsStored);
}

double CostModel::GemmSeconds(const GroupedGemmAttributes& gemm) const {
  double alone_s = 0;
  if (measured_.has_value() && gemm.count == 1 &&
      measured_->HasGemmNear(gemm.m, gemm.n, gemm.k, gemm.format)) {
    alone_s = MeasuredGemmSeconds(gemm);
  } else if (sheet_.has_value()) {
    alone_s = sheet_->GemmSeconds(gemm);
  } else {
    alone_s = static_cast<double>(gemm.count) * MeasuredGemmSeconds(gemm);
  }
  return alone_s + profile_->launch_overhead_s;
}

// Rows are of whole sequences.
double CostModel::MeasuredAttentionSeconds(
    OpKind kind, const GeneralAttentionAttributes& attention) const {
  return measured_->AttentionSeconds(
             IsAttentionBackward(kind) ? OpKind::kAttentionBackward
             : kind == OpKind::kFloat8AttentionForward
                 ? kind
                 : OpKind::kAttentionForward,
             {.num_sequences = attention.num_sequences,
              .sequence_length = attention.key_tokens,
              .num_heads = attention.num_heads,
              .num_kv_heads = attention.num_kv_heads,
              .head_dim = (attention.head_dim + attention.value_head_dim) / 2,
              .window = attention.window}) *
         (static_cast<double>(attention.query_tokens) /
          static_cast<double>(attention.key_tokens));
}

bool CostModel::HasAttentionNear(
    OpKind kind, const GeneralAttentionAttributes& attention) const {
  return measured_.has_value() &&
         attention.query_tokens == attention.key_tokens &&
         attention.head_dim == attention.value_head_dim &&
         measured_->HasAttentionNear(RowKindOf(kind, *measured_),
                                     attention.key_tokens, attention.head_dim);
}

double CostModel::AttentionSeconds(
    OpKind kind, const GeneralAttentionAttributes& given) const {
  const GeneralAttentionAttributes attention = AsWholeSequences(given);
  const bool is_unfused = IsUnfusedAttention(kind);
  // Without flash a product for the scores and one for what they weigh, and
  // backward two for each.
  const int launches = is_unfused ? (IsAttentionBackward(kind) ? 4 : 2) : 1;
  double alone_s = 0;
  if (!is_unfused &&
      (!sheet_.has_value() || HasAttentionNear(kind, attention))) {
    alone_s = MeasuredAttentionSeconds(kind, attention);
  } else if (sheet_.has_value()) {
    alone_s = sheet_->AttentionSeconds(kind, attention);
  } else {
    const ScoreProducts products = ScoreProductsOf(kind, attention);
    alone_s = products.num_each * static_cast<double>(products.scores.count) *
              (MeasuredGemmSeconds(products.scores) +
               MeasuredGemmSeconds(products.context));
  }
  return alone_s + launches * profile_->launch_overhead_s;
}

double CostModel::BandwidthSeconds(double bytes, int32_t launches) const {
  return MemorySeconds(bytes) + launches * profile_->launch_overhead_s;
}

int64_t CostModel::HostsOf(const GroupPlacement& group) const {
  const int64_t inside = MembersInside(group, profile_->ranks_per_host);
  return (group.size() + inside - 1) / inside;
}

bool CostModel::HasCollectiveNear(OpKind kind,
                                  const GroupPlacement& group) const {
  return IsCollective(kind) && measured_.has_value() && HasCommunication() &&
         (group.size() <= profile_->provenance.num_ranks ||
          (HostsOf(group) == 1 && WasMeasuredOnOneHost(*profile_))) &&
         (measured_->HasHosts() ||
          group.size() <= MembersInside(group, profile_->network[0].devices));
}

double CostModel::CollectiveSeconds(OpKind kind, double bytes,
                                    const GroupPlacement& group,
                                    int64_t experts_per_row) const {
  if (group.size() <= 1) return 0;
  double alone_s = 0;
  if (network_.has_value() && !HasCollectiveNear(kind, group)) {
    alone_s = network_->CollectiveSeconds(kind, bytes, group, experts_per_row);
  } else {
    constexpr double kElementBytes = 2;  // Rows are of whole elements.
    alone_s = measured_->CommunicationSeconds(
        {.kind = IsCollective(kind) ? kind : OpKind::kAllGather,
         .group_size = static_cast<int32_t>(group.size()),
         .hosts = HostsOf(group)},
        kElementBytes * std::floor(bytes / kElementBytes),
        /*by_copy_engines=*/false);
  }
  return alone_s + profile_->launch_overhead_s;
}

double CostModel::TransferSeconds(double bytes, int64_t stride,
                                  int64_t num_stages) const {
  if (num_stages <= 1) return 0;
  double alone_s = 0;
  if (network_.has_value()) {
    alone_s = network_->TransferSeconds(bytes, stride, num_stages);
  } else {
    const int64_t on_host = profile_->ranks_per_host;
    const bool leaves_host = stride * num_stages > on_host;
    alone_s = measured_->CommunicationSeconds(
        {.kind = OpKind::kSend,
         .group_size = 2,
         .hosts = leaves_host ? 2 : 1,
         .pairs = leaves_host ? std::min(stride, on_host) : 1},
        bytes, /*by_copy_engines=*/false);
  }
  return alone_s + profile_->launch_overhead_s;
}

double CostModel::PeakFlopsPerSecond() const {
  return HasTables() ? measured_->BestFlopsPerSecond()
                     : profile_->device.bf16_flops_per_s;
}

}  // namespace millrace
