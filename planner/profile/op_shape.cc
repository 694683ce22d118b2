#include "planner/profile/op_shape.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

std::string OnHosts(int64_t hosts, int64_t pairs) {
  return absl::StrCat(hosts > 1 ? absl::StrCat(" on ", hosts, " hosts") : "",
                      pairs > 1 ? absl::StrCat(", ", pairs, " at once") : "");
}

}  // namespace

OpKind KindOf(const GemmTime& row) {
  return row.is_float8_blocks ? OpKind::kFloat8BlockGemm
         : row.is_float8      ? OpKind::kFloat8Gemm
                              : OpKind::kGemm;
}

OpKind KindOf(const AttentionTime& row) {
  return row.backward    ? OpKind::kAttentionBackward
         : row.is_float8 ? OpKind::kFloat8AttentionForward
                         : OpKind::kAttentionForward;
}

bool IsCommunication(const OpShape& shape) {
  return Describe(shape.kind).profile == ProfileTable::kCommunication;
}

OpShape ShapeOf(const Layout& layout, OpKind kind,
                const OpAttributes& attributes, int32_t ranks_per_host) {
  const auto bytes = [&] {
    return static_cast<int64_t>(WorkOf(layout, kind, attributes).bytes);
  };
  switch (Describe(kind).profile) {
    case ProfileTable::kGemms: {
      const auto& a = std::get<GemmAttributes>(attributes);
      return {kind, {a.m, a.n, a.k, a.trans_a, a.trans_b}};
    }
    case ProfileTable::kAttention: {
      const AttentionAttributes a =
          AsWholeSequences(std::get<AttentionAttributes>(attributes));
      return {kind,
              {a.num_sequences, a.sequence_length, a.num_heads, a.num_kv_heads,
               a.head_dim, a.window}};
    }
    case ProfileTable::kCrossEntropy: {
      const auto& a = std::get<VocabAttributes>(attributes);
      return {kind, {a.num_tokens, a.hidden, a.vocab_rows}};
    }
    case ProfileTable::kCommunication: {
      if (IsTransfer(kind)) {
        return TransferShape(layout, bytes(),
                             HostsOfSlowestTransfer(layout, ranks_per_host),
                             ranks_per_host);
      }
      const auto& a = std::get<CollectiveAttributes>(attributes);
      return {kind,
              {GroupSize(layout, a.group), bytes(),
               HostsOf(layout, a.group, ranks_per_host), 1}};
    }
    case ProfileTable::kBandwidth:
      break;
  }
  return {kind, {bytes()}};
}

OpShape TransferShape(const Layout& layout, int64_t bytes, int64_t hosts,
                      int32_t ranks_per_host) {
  return {OpKind::kSend,
          {2, bytes, hosts,
           hosts > 1 ? PairsBetweenHosts(layout, ranks_per_host) : 1}};
}

size_t NumFigures(const OpShape& shape) {
  switch (Describe(shape.kind).profile) {
    case ProfileTable::kAttention:
      return shape.figures[5] != 0 ? 6 : 5;
    case ProfileTable::kGemms:
      return 5;
    case ProfileTable::kCrossEntropy:
      return 3;
    case ProfileTable::kCommunication:
      return shape.figures[3] > 1 ? 4 : shape.figures[2] > 1 ? 3 : 2;
    case ProfileTable::kBandwidth:
      break;
  }
  return 1;
}

std::string KindText(const OpShape& shape) {
  const auto& f = shape.figures;
  const OpDescriptor& op = Describe(shape.kind);
  if (op.profile == ProfileTable::kGemms) {
    return absl::StrCat(op.name, f[3] != 0 ? " trans_a" : "",
                        f[4] != 0 ? " trans_b" : "");
  }
  if (IsCommunication(shape)) {
    return absl::StrCat(op.name, " of ", f[0], OnHosts(f[2], f[3]));
  }
  return op.name;
}

std::string ShapeText(const OpShape& shape) {
  const auto& f = shape.figures;
  const OpDescriptor& op = Describe(shape.kind);
  switch (op.profile) {
    case ProfileTable::kGemms:
      return absl::StrCat(op.name, " m ", f[0], " n ", f[1], " k ", f[2],
                          f[3] != 0 ? " trans_a" : "",
                          f[4] != 0 ? " trans_b" : "");
    case ProfileTable::kAttention:
      return absl::StrCat(op.name, " num_sequences ", f[0], " sequence_length ",
                          f[1], " num_heads ", f[2], " num_kv_heads ", f[3],
                          " head_dim ", f[4],
                          f[5] != 0 ? absl::StrCat(" window ", f[5]) : "");
    case ProfileTable::kCrossEntropy:
      return absl::StrCat(op.name, " num_tokens ", f[0], " hidden ", f[1],
                          " vocab_rows ", f[2]);
    case ProfileTable::kCommunication:
      return absl::StrCat(op.name, " of ", f[0], OnHosts(f[2], f[3]), ", ",
                          f[1], " bytes");
    case ProfileTable::kBandwidth:
      break;
  }
  return absl::StrCat(op.name, " ", f[0], " bytes");
}

double* FindSeconds(const OpShape& shape, HardwareProfile* profile) {
  double* found = nullptr;
  VisitRows(*profile, [&](const OpShape& row, double& seconds) {
    if (found == nullptr && row == shape) found = &seconds;
  });
  return found;
}

void AddRow(const OpShape& shape, double seconds, HardwareProfile* profile) {
  const auto& f = shape.figures;
  switch (Describe(shape.kind).profile) {
    case ProfileTable::kGemms:
      profile->gemms.push_back(
          {.m = f[0],
           .n = f[1],
           .k = f[2],
           .trans_a = f[3] != 0,
           .trans_b = f[4] != 0,
           .is_float8 = shape.kind == OpKind::kFloat8Gemm,
           .is_float8_blocks = shape.kind == OpKind::kFloat8BlockGemm,
           .seconds = seconds});
      return;
    case ProfileTable::kAttention:
      profile->attention.push_back(
          {.backward = shape.kind == OpKind::kAttentionBackward,
           .num_sequences = f[0],
           .sequence_length = f[1],
           .num_heads = f[2],
           .num_kv_heads = f[3],
           .head_dim = f[4],
           .window = f[5],
           .is_float8 = shape.kind == OpKind::kFloat8AttentionForward,
           .seconds = seconds});
      return;
    case ProfileTable::kCrossEntropy:
      profile->cross_entropy.push_back({.kind = shape.kind,
                                        .num_tokens = f[0],
                                        .hidden = f[1],
                                        .vocab_rows = f[2],
                                        .seconds = seconds});
      return;
    case ProfileTable::kCommunication:
      profile->communication.push_back(
          {.kind = shape.kind,
           .group_size = static_cast<int32_t>(f[0]),
           .hosts = f[2],
           .pairs = f[3],
           .bytes = f[1],
           .seconds = seconds});
      return;
    case ProfileTable::kBandwidth:
      profile->bandwidth.push_back(
          {.kind = shape.kind, .bytes = f[0], .seconds = seconds});
      return;
  }
}

}  // namespace millrace
