// The inner loops of every kernel family, compiled once for each level of the
// x86-64 instruction set and chosen when the program starts, so that one binary
// is fast on the machine it was built on and still runs elsewhere.
//
// Loops take the family's Args and a range. kernels/cpu/<family>.cc checks the
// arguments and deals the ranges to threads.

#ifndef MILLRACE_KERNELS_CPU_LOOPS_H_
#define MILLRACE_KERNELS_CPU_LOOPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/gemm_range.h"
#include "kernels/norm/layernorm.h"
#include "kernels/norm/rmsnorm.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/pointwise/cast.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/gelu.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/swiglu.h"
#include "kernels/vocabulary/embedding.h"

namespace millrace {

struct CpuLoops {
  const char* name;  // "x86-64-v4", "x86-64-v3" or "baseline".

  void (*gemm)(const GemmRange&);

  // Tokens [begin, end).
  void (*rms_norm_forward)(const RmsNormForwardArgs&, int64_t begin,
                           int64_t end);
  void (*residual_rms_norm_forward)(const ResidualRmsNormForwardArgs&,
                                    int64_t begin, int64_t end);
  void (*rms_norm_input_gradient)(const RmsNormBackwardArgs&, int64_t begin,
                                  int64_t end);
  // Columns [begin, end) of d_weight.
  void (*rms_norm_weight_gradient)(const RmsNormBackwardArgs&, int64_t begin,
                                   int64_t end);
  void (*layer_norm_forward)(const LayerNormForwardArgs&, int64_t begin,
                             int64_t end);
  void (*layer_norm_input_gradient)(const LayerNormBackwardArgs&, int64_t begin,
                                    int64_t end);
  // Columns [begin, end) of d_weight and d_bias.
  void (*layer_norm_weight_gradients)(const LayerNormBackwardArgs&,
                                      int64_t begin, int64_t end);
  // Tokens [begin, end).
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end);
  void (*swiglu_forward)(const SwigluForwardArgs&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluBackwardArgs&, int64_t begin,
                          int64_t end);
  // Elements [begin, end).
  void (*gelu_forward)(const GeluForwardArgs&, int64_t begin, int64_t end);
  void (*gelu_backward)(const GeluBackwardArgs&, int64_t begin, int64_t end);
  // Columns [begin, end) of every row.
  void (*embedding_backward)(const EmbeddingBackwardArgs&, int64_t begin,
                             int64_t end);

  // One tile of kAttentionTile queries of one head; one key-value head of one
  // sequence.
  void (*attention_forward_tile)(const AttentionForwardArgs&, int64_t sequence,
                                 int64_t head, int64_t first_query);
  void (*attention_backward_head)(const AttentionBackwardArgs&,
                                  int64_t sequence, int64_t kv_head);

  float (*maximum)(const float* x, int64_t num_elements);
  // logits[v] = exp(logits[v] - maximum), returning the sum.
  float (*exponentials)(float* logits, int64_t num_logits, float maximum);
  void (*scale)(float* x, int64_t num_elements, float factor);
  // The same sum, and the logits stay.
  float (*sum_exponentials)(const float* logits, int64_t num_logits,
                            float maximum);
  // x = cap tanh(x / cap).
  void (*cap)(float* x, int64_t num_elements, float cap);
  // Replaces capped logits by exp(logit - maximum) factor (1 - (logit /
  // cap)^2).
  void (*capped_gradient)(float* logits, int64_t num_logits, float maximum,
                          float factor, float cap);

  // Elements [begin, end).
  void (*adamw)(const AdamWArgs&, int64_t begin, int64_t end);
  void (*add)(const AddArgs&, int64_t begin, int64_t end);
  double (*squared_norm)(const float* x, int64_t num_elements);

  // y = x * scale in the format.
  void (*encode_float8)(uint8_t* y, const float* x, int64_t num_elements,
                        float scale, Float8Format format);
  // The bits of the largest |x|, NaN counting as larger than all; zero of none.
  uint32_t (*largest_magnitude)(const float* x, int64_t num_elements);

  // The functions of numbers that the others are built on, for their tests.
  void (*exp)(const float* x, float* y, int64_t num_elements);
  void (*exp2_flushed)(const float* x, float* y, int64_t num_elements);
  void (*tanh)(const float* x, float* y, int64_t num_elements);
};

inline constexpr int64_t kAttentionTile = 64;

// The best for this processor, unless MILLRACE_CPU_LEVEL names a lower level or
// a test chose one.
const CpuLoops& Loops();

// InvalidArgument if MILLRACE_CPU_LEVEL names no level of this processor.
// Loops() then ends the program, so whoever plans kernels asks this first.
absl::Status CheckCpuLevel();

// How many levels this processor runs, and the level-th of them, best first.
int NumCpuLevels();
const CpuLoops& LoopsOfLevel(int level);

// Makes Loops() return LoopsOfLevel(level). Not while a kernel runs.
void UseCpuLevelForTesting(int level);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_CPU_LOOPS_H_
