#include "planner/profile/op_shape.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

bool IsAttention(OpKind kind) {
  return kind == OpKind::kAttentionForward ||
         kind == OpKind::kAttentionBackward;
}

bool IsHead(OpKind kind) {
  return kind == OpKind::kLinearCrossEntropy ||
         kind == OpKind::kCrossEntropyStats ||
         kind == OpKind::kCrossEntropyGradient;
}

}  // namespace

bool IsCommunication(const OpShape& shape) {
  return IsCollective(shape.kind) || IsTransfer(shape.kind);
}

OpShape ShapeOf(const Layout& layout, OpKind kind,
                const OpAttributes& attributes) {
  if (const auto* gemm = std::get_if<GemmAttributes>(&attributes)) {
    return {kind, {gemm->m, gemm->n, gemm->k, gemm->trans_a, gemm->trans_b}};
  }
  if (IsAttention(kind)) {
    const auto& a = std::get<AttentionAttributes>(attributes);
    return {kind,
            {a.num_sequences, a.sequence_length, a.num_heads, a.num_kv_heads,
             a.head_dim}};
  }
  if (IsHead(kind)) {
    const auto& a = std::get<VocabAttributes>(attributes);
    return {kind, {a.num_tokens, a.hidden, a.vocab_rows}};
  }
  const auto bytes =
      static_cast<int64_t>(WorkOf(layout, kind, attributes).bytes);
  if (const auto* a = std::get_if<CollectiveAttributes>(&attributes)) {
    return {kind, {GroupSize(layout, a->group), bytes}};
  }
  if (IsTransfer(kind)) return {OpKind::kSend, {2, bytes}};
  return {kind, {bytes}};
}

size_t NumFigures(OpKind kind) {
  if (kind == OpKind::kGemm || IsAttention(kind)) return 5;
  if (IsHead(kind)) return 3;
  return IsCollective(kind) || IsTransfer(kind) ? 2 : 1;
}

std::string KindText(const OpShape& shape) {
  const auto& f = shape.figures;
  const char* const name = OpKindName(shape.kind);
  if (shape.kind == OpKind::kGemm) {
    return absl::StrCat(name, f[3] != 0 ? " trans_a" : "",
                        f[4] != 0 ? " trans_b" : "");
  }
  if (IsCommunication(shape)) return absl::StrCat(name, " of ", f[0]);
  return name;
}

std::string ShapeText(const OpShape& shape) {
  const auto& f = shape.figures;
  const char* const name = OpKindName(shape.kind);
  if (shape.kind == OpKind::kGemm) {
    return absl::StrCat(name, " m ", f[0], " n ", f[1], " k ", f[2],
                        f[3] != 0 ? " trans_a" : "",
                        f[4] != 0 ? " trans_b" : "");
  }
  if (IsAttention(shape.kind)) {
    return absl::StrCat(name, " num_sequences ", f[0], " sequence_length ",
                        f[1], " num_heads ", f[2], " num_kv_heads ", f[3],
                        " head_dim ", f[4]);
  }
  if (IsHead(shape.kind)) {
    return absl::StrCat(name, " num_tokens ", f[0], " hidden ", f[1],
                        " vocab_rows ", f[2]);
  }
  if (IsCommunication(shape)) {
    return absl::StrCat(name, " of ", f[0], ", ", f[1], " bytes");
  }
  return absl::StrCat(name, " ", f[0], " bytes");
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
  if (shape.kind == OpKind::kGemm) {
    profile->gemms.push_back({.m = f[0],
                              .n = f[1],
                              .k = f[2],
                              .trans_a = f[3] != 0,
                              .trans_b = f[4] != 0,
                              .seconds = seconds});
  } else if (IsAttention(shape.kind)) {
    profile->attention.push_back(
        {.backward = shape.kind == OpKind::kAttentionBackward,
         .num_sequences = f[0],
         .sequence_length = f[1],
         .num_heads = f[2],
         .num_kv_heads = f[3],
         .head_dim = f[4],
         .seconds = seconds});
  } else if (IsHead(shape.kind)) {
    profile->cross_entropy.push_back({.kind = shape.kind,
                                      .num_tokens = f[0],
                                      .hidden = f[1],
                                      .vocab_rows = f[2],
                                      .seconds = seconds});
  } else if (IsCommunication(shape)) {
    profile->communication.push_back({.kind = shape.kind,
                                      .group_size = static_cast<int32_t>(f[0]),
                                      .bytes = f[1],
                                      .seconds = seconds});
  } else {
    profile->bandwidth.push_back(
        {.kind = shape.kind, .bytes = f[0], .seconds = seconds});
  }
}

}  // namespace millrace
