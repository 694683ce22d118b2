// The rows of attention in 8 bits. Internal to planner/program/op_table.cc.

#ifndef MILLRACE_PLANNER_PROGRAM_FLOAT8_ATTENTION_ROWS_H_
#define MILLRACE_PLANNER_PROGRAM_FLOAT8_ATTENTION_ROWS_H_

#include "planner/program/op_row_words.h"

namespace millrace::op_rows {

// Copies of query, key and value; qkv itself stays for the backward pass.
// Queries and keys are multiplied by one orthogonal matrix, which changes no
// score and spreads outliers. Values lie as the kernel reads them, with zeros
// up to the end of the last block (kernels/attention/attention_fp8.h).
inline constexpr OpDescriptor kQuantizeAttentionRow = {
    .kind = OpKind::kQuantizeAttention,
    .name = "quantize_attention",
    .attributes = kAttributesIndex<AttentionAttributes>,
    .phases = {Phase::kForward, Phase::kRecompute},
    .recompute = Recompute::kAttention,
    .inputs = {Activation("qkv", {T, kQkvCols}).JustWritten()},
    .outputs = {Float8("q", {T, N* D}), Float8("k", {T, K* D}),
                Float8("v", {B * K, kFloat8KeyBlock* Kb, D}),
                Float32("q_units", {B, N, Qb}).NotCounted(),
                Float32("k_units", {B, K, Kb}).NotCounted(),
                Float32("v_units", {B, K, Kb}).NotCounted()}};

inline constexpr OpDescriptor kFloat8AttentionForwardRow = {
    .kind = OpKind::kFloat8AttentionForward,
    .name = "float8_attention_forward",
    .attributes = kAttributesIndex<AttentionAttributes>,
    .phases = {Phase::kForward, Phase::kRecompute},
    .recompute = Recompute::kAttention,
    .profile = ProfileTable::kAttention,
    .fills_device = true,
    .inputs = {Float8("q", {T, N* D}).JustWritten(),
               Float8("k", {T, K* D}).JustWritten(),
               Float8("v", {B * K, kFloat8KeyBlock* Kb, D}).JustWritten(),
               Float32("q_units", {B, N, Qb}).NotCounted(),
               Float32("k_units", {B, K, Kb}).NotCounted(),
               Float32("v_units", {B, K, Kb}).NotCounted(),
               Int32("document_starts", {T}).NotCounted()},
    .outputs = {Activation("o", {T, N* D}),
                Float32("lse", {N, T}).NotCounted()},
    .flops = 2 * B * N * L * kKeyTokens * D};

}  // namespace millrace::op_rows

#endif  // MILLRACE_PLANNER_PROGRAM_FLOAT8_ATTENTION_ROWS_H_
