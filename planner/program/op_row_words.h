// The words that rows of the op table are written in. Internal to
// planner/program/op_table.cc.

#ifndef MILLRACE_PLANNER_PROGRAM_OP_ROW_WORDS_H_
#define MILLRACE_PLANNER_PROGRAM_OP_ROW_WORDS_H_

#include <cstdint>
#include <initializer_list>

#include "planner/program/op_table.h"

namespace millrace::op_rows {

using enum SizeLetter;
constexpr SizeExpr B = kSequences, L = kSequenceLength, T = kTokens,
                   H = kHidden, N = kQueryHeads, K = kKeyValueHeads,
                   D = kHeadDim, R = kRows, F = kCols, W = kPasses,
                   V = kVocabRows, C = kChunkTokens, J = kHeadProducts,
                   m = kGemmRows, n = kGemmCols, k = kGemmInner, E = kElements,
                   S = kShare, P = kParameters, G = kGradients, U = kRounded,
                   Z = kReduced, X = kTensorRanks, Uw = kUpdated, Wt = kWeights,
                   A = kAmaxes, As = kGatheredAmaxes, Q = kProducts,
                   Rb = kRowBlocks, Fb = kColBlocks, kb = kInnerBlocks,
                   Ub = kUnitRows, Vb = kUnitCols, Dv = kValueHeadDim,
                   Qb = kQueryBlocks, Kb = kKeyBlocks;
constexpr SizeExpr kQkvCols = (N + 2 * K) * D;
constexpr SizeExpr kQkCols = (N + K) * D;
// Query-key pairs over all sequences and heads.
constexpr SizeExpr kPairs = B * N * kQueryTokens * kKeyTokens;

using Dims = std::initializer_list<SizeExpr>;
constexpr OperandSpec Activation(const char* name, Dims dims) {
  return {ElementRole::kActivation, name, dims};
}
constexpr OperandSpec Float32(const char* name, Dims dims) {
  return {ElementRole::kFloat32, name, dims};
}
constexpr OperandSpec Int32(const char* name, Dims dims) {
  return {ElementRole::kInt32, name, dims};
}
constexpr OperandSpec Bfloat16(const char* name, Dims dims) {
  return {ElementRole::kBfloat16, name, dims};
}
constexpr OperandSpec Float8(const char* name, Dims dims) {
  return {ElementRole::kFloat8, name, dims};
}
constexpr OperandSpec FirstMoment(const char* name, Dims dims) {
  return {ElementRole::kFirstMoment, name, dims};
}
constexpr OperandSpec SecondMoment(const char* name, Dims dims) {
  return {ElementRole::kSecondMoment, name, dims};
}
constexpr OperandSpec OfAttributes(const char* name, Dims dims) {
  return {ElementRole::kOfAttributes, name, dims};
}
constexpr OperandSpec Workspace(const char* name, Dims dims) {
  return OperandSpec(ElementRole::kWorkspace, name, dims).NotCounted();
}
// The tensor of a step's scalars, indexed by StepScalar.
constexpr OperandSpec Scalars() {
  return {ElementRole::kFloat64, "scalars", {kStepScalars}};
}
constexpr OperandSpec PreferenceScalars() {
  return {ElementRole::kFloat64, "scalars", {int64_t{kNumPreferenceScalars}}};
}
// The largest magnitude of the op's main output; the last operand.
constexpr OperandSpec AmaxOfOutput() {
  return Float32("amax", {1}).NotCounted().If(Presence::kWithAmax);
}
// Gradients of parameters add up over micro-batches.
constexpr OperandSpec Gradient(const char* name, Dims dims) {
  return Float32(name, dims).Added(Addition::kWhereAttributesSay);
}

}  // namespace millrace::op_rows

#endif  // MILLRACE_PLANNER_PROGRAM_OP_ROW_WORDS_H_
