// Defines the CpuLoops named by MILLRACE_LOOPS from the loops as this source is
// compiled. Included by loops_<level>.cc alone.
//
// Everything included here lies in anonymous namespaces and calls no inline
// function of the standard library that could be shared between sources:
// otherwise the linker might keep the copy with the newest instructions for
// all, and the program would die on an older processor.

#ifndef MILLRACE_KERNELS_CPU_LOOPS_TABLE_H_
#define MILLRACE_KERNELS_CPU_LOOPS_TABLE_H_

#include "kernels/cpu/attention_backward_loops.h"
#include "kernels/cpu/attention_forward_loops.h"
#include "kernels/cpu/cast_loops.h"
#include "kernels/cpu/gemm_loops.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/norm_loops.h"
#include "kernels/cpu/optimizer_loops.h"
#include "kernels/cpu/token_loops.h"
#include "kernels/cpu/vector_math.h"

namespace millrace {

extern const CpuLoops MILLRACE_LOOPS;
const CpuLoops MILLRACE_LOOPS = {
    .name = kLevelName,
    .gemm = GemmLoop,
    .rms_norm_forward = RmsNormForwardLoop,
    .residual_rms_norm_forward = ResidualRmsNormForwardLoop,
    .rms_norm_input_gradient = RmsNormInputGradientLoop,
    .rms_norm_weight_gradient = RmsNormWeightGradientLoop,
    .layer_norm_forward = LayerNormForwardLoop,
    .layer_norm_input_gradient = LayerNormInputGradientLoop,
    .layer_norm_weight_gradients = LayerNormWeightGradientsLoop,
    .rope = RopeLoop,
    .swiglu_forward = SwigluForwardLoop,
    .swiglu_backward = SwigluBackwardLoop,
    .gelu_forward = GeluForwardLoop,
    .gelu_backward = GeluBackwardLoop,
    .embedding_backward = EmbeddingBackwardLoop,
    .attention_forward_tile = AttentionForwardTile,
    .attention_backward_head = AttentionBackwardHead,
    .maximum = MaximumLoop,
    .exponentials = ExponentialsLoop,
    .scale = ScaleLoop,
    .sum_exponentials = SumExponentialsLoop,
    .cap = CapLoop,
    .capped_gradient = CappedGradientLoop,
    .adamw = AdamWLoop,
    .add = AddLoop,
    .squared_norm = SquaredNormLoop,
    .encode_float8 = EncodeFloat8Loop,
    .largest_magnitude = LargestMagnitudeLoop,
    .exp = ExpLoop,
    .exp2_flushed = Exp2FlushedLoop,
    .tanh = TanhLoop,
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_LOOPS_TABLE_H_
