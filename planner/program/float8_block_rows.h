// The rows of copies in 8 bits with units of blocks, and of their products.
// Internal to planner/program/op_table.cc.

#ifndef MILLRACE_PLANNER_PROGRAM_FLOAT8_BLOCK_ROWS_H_
#define MILLRACE_PLANNER_PROGRAM_FLOAT8_BLOCK_ROWS_H_

#include "planner/program/op_row_words.h"

namespace millrace::op_rows {

inline constexpr PhaseSet kFloat8CopyPhases = {
    Phase::kForward, Phase::kRecompute, Phase::kInputGradient};
inline constexpr Recompute kFloat8CopyRecompute =
    Recompute::kNorm | Recompute::kQkv | Recompute::kAttention |
    Recompute::kOutput | Recompute::kGateUp | Recompute::kActivation;

// Each copy has a unit for every kFloat8Block numbers of its rows. The
// transposed copy's blocks are other numbers than those of the copy as rows, so
// both are rounded from x, which is read once.
inline constexpr OpDescriptor kQuantizeFloat8BlocksRow = {
    .kind = OpKind::kQuantizeFloat8Blocks,
    .name = "quantize_float8_blocks",
    .attributes = kAttributesIndex<QuantizeAttributes>,
    .phases = kFloat8CopyPhases,
    .recompute = kFloat8CopyRecompute,
    .inputs = {Activation("x", {R, F}).JustWritten()},
    .outputs = {
        Float8("rows", {R, F}).If(Presence::kWithRows),
        Float32("row_units", {Fb, R}).If(Presence::kWithRows),
        Float8("transposed", {F, R}).If(Presence::kWithTransposed),
        Float32("column_units", {Rb, F}).If(Presence::kWithTransposed)}};

// Both copies have the same units, one for each square of kFloat8Block rows and
// columns of x.
inline constexpr OpDescriptor kQuantizeFloat8SquaresRow = {
    .kind = OpKind::kQuantizeFloat8Squares,
    .name = "quantize_float8_squares",
    .attributes = kAttributesIndex<QuantizeAttributes>,
    .phases = kFloat8CopyPhases,
    .recompute = kFloat8CopyRecompute,
    .inputs = {Activation("x", {R, F}).JustWritten()},
    .outputs = {Float32("units", {Rb, Fb}).NotCounted(),
                Float8("rows", {R, F}).If(Presence::kWithRows),
                Float8("transposed", {F, R}).If(Presence::kWithTransposed)}};

// c = the sum over blocks along k of a_unit b_unit a b^T, plus the bias in each
// row.
inline constexpr OpDescriptor kFloat8BlockGemmRow = {
    .kind = OpKind::kFloat8BlockGemm,
    .name = "float8_block_gemm",
    .attributes = kAttributesIndex<GemmAttributes>,
    .phases = {Phase::kForward, Phase::kRecompute, Phase::kInputGradient,
               Phase::kWeightGradient},
    .recompute = Recompute::kQkv | Recompute::kGateUp | Recompute::kOutput,
    .profile = ProfileTable::kGemms,
    .fills_device = true,
    .inputs = {Float8("a", {m, k}).JustWritten(), Float8("b", {n, k}),
               Float32("a_units", {kb, m}), Float32("b_units", {Ub, Vb}),
               Activation("bias", {n}).NotCounted().If(Presence::kWithBias)},
    .outputs = {OperandSpec(ElementRole::kGemmOutput, "c", {m, n})
                    .Added(Addition::kWhereAttributesSay)},
    .flops = 2 * m * n * k};

}  // namespace millrace::op_rows

#endif  // MILLRACE_PLANNER_PROGRAM_FLOAT8_BLOCK_ROWS_H_
