// The rows of the op table about what runs once a step or once a bucket:
// gradients on their way, the optimizer, and the weights that kernels read.
// Internal to planner/program/op_table.cc.

#ifndef MILLRACE_PLANNER_PROGRAM_STEP_ROWS_H_
#define MILLRACE_PLANNER_PROGRAM_STEP_ROWS_H_

#include "planner/program/op_row_words.h"

namespace millrace::op_rows {

constexpr OpDescriptor kStepRows[] = {
    {.kind = OpKind::kZero,
     .name = "zero",
     .attributes = kAttributesIndex<ElementwiseAttributes>,
     .phases = {Phase::kForward, Phase::kWeightGradient},
     .outputs = {OperandSpec(ElementRole::kAny, "x", {R, F})}},

    // Adds a micro-batch's sum to one bucket's slice, under ZeRO-2 and 3, or
    // the gradients of a tied embedding's other copy.
    {.kind = OpKind::kAccumulateGradients,
     .name = "accumulate_gradients",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kGradientReduce, Phase::kOptimizer},
     .inputs = {Float32("sum", {G}).Moves(S),
                Float32("gradients", {G}).Moves(S)},
     .outputs = {Float32("gradients", {G}).Moves(S).SameAs(1)},
     .flops = S},
    // Makes the bf16 copy of a bucket that is reduced, or where data_sharded of
    // the rank's slice.
    {.kind = OpKind::kRoundGradients,
     .name = "round_gradients",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kGradientReduce},
     .inputs = {Float32("gradients", {G}).Moves(S)},
     .outputs = {Bfloat16("rounded", {U}).Moves(S)}},
    // Writes all of the sum, or where data_sharded the rank's slice.
    {.kind = OpKind::kWidenGradients,
     .name = "widen_gradients",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kGradientReduce},
     .inputs = {Bfloat16("rounded", {U}).Moves(S)},
     .outputs = {Float32("gradients", {G}).Moves(S)}},
    {.kind = OpKind::kSquaredNorm,
     .name = "squared_norm",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kOptimizer},
     .inputs = {Float32("gradients", {G}).Moves(S)},
     .outputs = {Scalars().NotCounted().Added(Addition::kAlways)},
     .flops = 2 * S},
    // clip_factor: what gradients are multiplied by. skip: one if the step must
    // change nothing since loss or norm is not a number. The clip norm comes
    // from the job.
    {.kind = OpKind::kClipFactor,
     .name = "clip_factor",
     .attributes = kAttributesIndex<NoAttributes>,
     .phases = {Phase::kOptimizer},
     .inputs = {Scalars()},
     .outputs = {Float32("clip_factor", {1}), Int32("skip", {1})},
     .flops = kStepScalars},
    // Updates one bucket. Master weights take the update, and the parameters
    // are their copy, in bf16 but for norms. Learning rate, betas and step
    // number come from the worker's step inputs.
    {.kind = OpKind::kAdamW,
     .name = "adamw",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kOptimizer},
     .inputs = {Activation("parameters", {P}).MovesInFloat32(S).OrFloat32(),
                Float32("gradients", {G}).Moves(S), FirstMoment("exp_avg", {S}),
                SecondMoment("exp_avg_sq", {S}),
                Float32("clip_factor", {1}).NotCounted(),
                Int32("skip", {1}).NotCounted(),
                Float32("master", {S}).If(Presence::kWithMasterWeights)},
     .outputs =
         {Activation("parameters", {P}).Moves(Uw).OrFloat32().SameAs(0),
          FirstMoment("exp_avg", {S}).SameAs(2),
          SecondMoment("exp_avg_sq", {S}).SameAs(3),
          Float32("master", {S}).If(Presence::kWithMasterWeights).SameAs(6)},
     .flops = 12 * S},
    // Makes that copy without an update.
    {.kind = OpKind::kCastParameters,
     .name = "cast_parameters",
     .attributes = kAttributesIndex<OptimizerAttributes>,
     .phases = {Phase::kOptimizer},
     .inputs = {Float32("master", {S})},
     .outputs = {Bfloat16("parameters", {P}).Moves(S).OrFloat32()}},

    // The largest magnitude of each matrix in this rank's slice of the weights
    // that the optimizer updates; zero for matrices that are not in it, and in
    // the places between the numbers.
    {.kind = OpKind::kWeightAmax,
     .name = "weight_amax",
     .attributes = kAttributesIndex<WeightBucketAttributes>,
     .phases = {Phase::kParameterGather},
     .inputs = {Float32("weights", {Wt}).Moves(S)},
     .outputs = {Float32("amaxes", {A}).NotCounted()}},
    // This rank's slice in 8 bits, and the unit of every matrix of the bucket,
    // kNumberStride apart, with zeros between.
    {.kind = OpKind::kQuantizeWeights,
     .name = "quantize_weights",
     .attributes = kAttributesIndex<WeightBucketAttributes>,
     .phases = {Phase::kParameterGather},
     .inputs = {Float32("weights", {Wt}).Moves(S),
                Float32("all_amaxes", {As}).NotCounted()},
     .outputs = {Float32("units", {kFloat8Matrices * A}).NotCounted(),
                 Float8("parameters", {P}).Moves(S)}},
};

}  // namespace millrace::op_rows

#endif  // MILLRACE_PLANNER_PROGRAM_STEP_ROWS_H_
