// An OpShape identifies one row of a profile's tables by op kind and sizes. It
// leaves out what a row does not distinguish: whether a product accumulates,
// and over which mesh axis a collective runs.

#ifndef MILLRACE_PLANNER_PROFILE_OP_SHAPE_H_
#define MILLRACE_PLANNER_PROFILE_OP_SHAPE_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

struct OpShape {
  OpKind kind = OpKind::kGemm;  // The tables have kSend for kReceive, too.
  // The sizes in the order of the kind's table (profile.h), then zeros:
  //   products: m, n, k, trans_a, trans_b;
  //   attention: num_sequences, sequence_length, num_heads, num_kv_heads,
  //     head_dim, window (0: none);
  //   the head with the loss: num_tokens, hidden, vocab_rows;
  //   communication: group_size, bytes, hosts, pairs;
  //   all others: bytes.
  std::array<int64_t, 6> figures{};
  friend auto operator<=>(const OpShape&, const OpShape&) = default;
};

bool IsCommunication(const OpShape& shape);

// Returns the row of an instruction of this layout. That of a transfer is the
// slowest of a pipeline: between hosts, if any leaves one.
OpShape ShapeOf(const Layout& layout, OpKind kind,
                const OpAttributes& attributes, int32_t ranks_per_host);

// Returns the row of a transfer of the layout's pipeline within one host or
// between two.
OpShape TransferShape(const Layout& layout, int64_t bytes, int64_t hosts,
                      int32_t ranks_per_host);

// Returns how many of `figures` the row uses: those of its kind, without a
// window where there is none, and without hosts and pairs where there is one.
size_t NumFigures(const OpShape& shape);

// Names a kind of ops whose errors may have one cause: "gemm trans_b",
// "all_gather of 4", "rope".
std::string KindText(const OpShape& shape);
// Names the row: "gemm m 256 n 704 k 256 trans_b", "all_gather of 4, 65536
// bytes".
std::string ShapeText(const OpShape& shape);

// Returns the seconds of the row of exactly this shape; null if there is none.
// Borrowed until the tables change.
double* FindSeconds(const OpShape& shape, HardwareProfile* profile);
// Appends a row to the table of its kind.
void AddRow(const OpShape& shape, double seconds, HardwareProfile* profile);

// Calls visit(shape, double& seconds) for each row of the tables.
template <typename Visitor>
void VisitRows(HardwareProfile& profile, Visitor visit) {
  for (GemmTime& row : profile.gemms) {
    visit(OpShape{KindOf(row), {row.m, row.n, row.k, row.trans_a, row.trans_b}},
          row.seconds);
  }
  for (AttentionTime& row : profile.attention) {
    visit(OpShape{KindOf(row),
                  {row.num_sequences, row.sequence_length, row.num_heads,
                   row.num_kv_heads, row.head_dim, row.window}},
          row.seconds);
  }
  for (CrossEntropyTime& row : profile.cross_entropy) {
    visit(OpShape{row.kind, {row.num_tokens, row.hidden, row.vocab_rows}},
          row.seconds);
  }
  for (BandwidthTime& row : profile.bandwidth) {
    visit(OpShape{row.kind, {row.bytes}}, row.seconds);
  }
  for (CommunicationTime& row : profile.communication) {
    visit(OpShape{row.kind, {row.group_size, row.bytes, row.hosts, row.pairs}},
          row.seconds);
  }
}

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_OP_SHAPE_H_
