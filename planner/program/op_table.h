// The op table: one row for each op kind, with everything that follows from the
// kind alone. Graphs, Program checks, prices, profiles, op comparison and tests
// read it. Backends bind their kernels to its kinds
// (worker/train/op_binders.h).
//
// To add a kind: a name in planner/program/ops.h, a row here, a binder for each
// backend that the row names, and an op that planner/graph writes. A kind that
// can be planned but not executed has no operands, no lane and no backend.

#ifndef MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_
#define MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "planner/layout/backends.h"
#include "planner/layout/recompute.h"
#include "planner/program/operand_spec.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

// The rule that decides the lane; LaneOf() (program.h) finds it.
enum class LaneRule : uint8_t {
  kCompute,
  kHost,
  kOfGroup,  // Collectives.
  kToPeer,   // Sends and receives, by direction.
  kFromPeer,
};

// The table of a hardware profile whose rows price the op, and with it the
// figures that one row is known by (planner/profile/op_shape.h).
enum class ProfileTable : uint8_t {
  kGemms,
  kAttention,
  kCrossEntropy,
  kBandwidth,  // By the bytes moved alone.
  kCommunication,
};

class PhaseSet {
 public:
  constexpr PhaseSet(std::initializer_list<Phase> phases) {
    for (const Phase phase : phases) bits_ |= 1u << static_cast<int>(phase);
  }
  constexpr bool Has(Phase phase) const {
    return (bits_ >> static_cast<int>(phase) & 1u) != 0;
  }

 private:
  unsigned bits_ = 0;
};

// The index of attributes A among the alternatives of OpAttributes.
template <typename A>
inline constexpr size_t kAttributesIndex = OpAttributes(A{}).index();

struct OpDescriptor {
  OpKind kind;
  const char* name;   // "rms_norm_forward": in Programs and profiles.
  size_t attributes;  // kAttributesIndex of the type that the kind takes.
  PhaseSet phases;    // The phases of a step that have the kind.
  LaneRule lane = LaneRule::kCompute;
  // The backends that have a binder for the kind. None: ops of the kind can be
  // planned, but not run.
  BackendSet backends = kAllBackends;
  // The ops that the backward pass may recompute with it
  // (planner/layout/recompute.h).
  Recompute recompute = Recompute::kNone;
  ProfileTable profile = ProfileTable::kBandwidth;
  // Its kernel uses the whole device, so that communication beside it is
  // slower: products and attention.
  bool fills_device = false;
  OperandList<7> inputs = {};
  OperandList<6> outputs = {};
  SizeExpr flops = 0;
  SizeExpr bytes = 0;  // Moved or sent, where the row has no operands.
};
const OpDescriptor& Describe(OpKind kind);

// Whether no backend runs the kind. Such a kind has no lane.
bool IsPlanOnly(OpKind kind);

// How many outputs come before the first workspace: the op's results.
size_t NumResults(OpKind kind);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_
