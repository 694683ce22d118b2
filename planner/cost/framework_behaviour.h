// What frameworks do differently for the same model and layout. The defaults
// are what our own workers do. What other frameworks do is data: each field has
// a key of the same name (planner/evaluate/behaviour_keys.h, docs/evaluate.md).

#ifndef MILLRACE_PLANNER_COST_FRAMEWORK_BEHAVIOUR_H_
#define MILLRACE_PLANNER_COST_FRAMEWORK_BEHAVIOUR_H_

#include <cstdint>

namespace millrace {

// What Recompute::kPolicy computes again: what a framework names selective.
struct SelectiveRecompute {
  bool norms = true;
  bool activation = true;  // Of the feed-forward block or the experts.
  // From query, key and value to attention's output (Korthikanti et al., 2022).
  bool attention = false;
  // Latent attention's projections from its latent vectors (DeepSeek-V3, 2024).
  bool latent_projections = false;
  // All of a layer of experts between its norm and its last product.
  bool experts = false;
  // Torchtitan's per-op policy (Liang et al., 2024): outputs of attention and
  // of every second product are kept, the rest is computed again; norms and
  // activation must be set too.
  bool every_second_product = false;
  friend bool operator==(const SelectiveRecompute&,
                         const SelectiveRecompute&) = default;
};

// How a framework computes, where frameworks differ in what a layer costs. The
// defaults are what workers do.
struct Implementation {
  // Attention without the matrix of scores in memory (FlashAttention). False:
  // the scores of all pairs are written, read by softmax and dropout, and kept.
  bool flash_attention = true;
  // Norms, activations, rotary embedding in one pass each.
  bool fused_elementwise = true;
  bool dropout = false;
  // Norms and residuals on a tensor rank's share of the tokens (Korthikanti et
  // al., 2022); false: on all of them, with all-reduces instead. Layers of
  // experts always work on the share.
  bool sequence_parallel = true;
  // Keys and values pass round the context axis (Liu et al., 2023); false: they
  // are gathered before attention (Llama 3, 2024).
  bool context_ring = true;
  SelectiveRecompute selective;
  // Full recompute runs a layer to its end; false: up to what its backward pass
  // needs, so without the last product.
  bool recomputes_whole_layer = false;
  // What the tensor axis gathers for products is kept for their weight
  // gradients (PyTorch's DTensor); false: the rank's share, gathered again.
  bool keeps_gathered = false;
  // With a GemmFormat, products keep the quantized copies of what they read for
  // their weight gradients (Transformer Engine); false: what they were made of.
  bool keeps_quantized = false;
  // A token for several experts of one rank is sent there once (DeepEP).
  bool sends_tokens_once = false;
  // Head and loss in chunks of tokens; false: this many bytes of each logit.
  bool chunks_logits = true;
  double logit_bytes = 10;
  // Fewer layers beside embedding and head (StageLayers); false: as many
  // everywhere, as far as they divide.
  bool balances_stages = true;
  // What is hidden under computation where that is possible: reductions and
  // gathers of the data axis, gathers and scatters of the tensor axis,
  // transfers between stages, exchanges of tokens between experts.
  bool overlaps_data = true;
  bool overlaps_tensor = true;
  bool overlaps_transfers = true;
  bool overlaps_experts = false;
  // Ranks in the order tensor, context, data, pipeline, innermost first (as
  // Megatron's); false: tensor, context, pipeline, data.
  bool pipeline_outermost = false;
  // What leaves a node for a port that is not the sending device's own is
  // handed on by the device whose port it is (PXN; NCCL 2.12, 2022); false: it
  // goes through the host's memory.
  bool relays_to_ports = true;
  // The host launches kernel by kernel, and a layer takes at least as long as
  // that; false: whole layers or steps are CUDA graphs.
  bool launches_from_host = false;
  // Communication of the tensor axis adds to what the host takes to launch, as
  // in sums of a layer's trace and of collectives measured by themselves;
  // false: the host launches on meanwhile.
  bool adds_tensor_to_launches = false;
  // What of a layer is a CUDA graph where the host launches the rest: attention
  // with its norm and projections; the router with what prepares the exchange.
  bool graphs_attention = false;
  bool graphs_router = false;
  // The experts of a rank multiply in one kernel that applies the activation
  // and makes the copies of a GemmFormat as well; false: in a kernel each, on
  // copies that further kernels make.
  bool fuses_experts = true;
  // Experts clamp what they gate and add a bias to what they return (gpt-oss),
  // one PyTorch operator after the other.
  bool adds_expert_biases = false;
  // Of the rates that a profile's constants say: FlashAttention-2 on Hopper
  // reaches half of what its successors do (Shah et al., 2024), products whose
  // rows each have a scale less than those of whole tensors' scales.
  double attention_rate = 1;
  double low_precision_rate = 1;
  int32_t gradient_bytes = 4;  // Of an element, kept and reduced.
  // Of an element that products read, kept; 0: as Layout::precision stores it.
  // Weights kept in 8 bits alone take 1, and 2 on GPUs whose products need
  // them transposed as well (Hopper).
  double weight_bytes = 0;
  // Master weight and both moments of an element.
  double optimizer_bytes = 12;
  // Under ZeRO-3 the slices are fp32 and are the master weights (PyTorch's
  // fully_shard). They are gathered in bf16 layer by layer, embedding and head
  // for the whole pass; with a pipeline all of a stage stays gathered, and
  // gradients whole, until the step ends, and each micro-batch has buffers of
  // its own for what comes from the neighbours.
  bool slices_are_masters = false;
  friend bool operator==(const Implementation&,
                         const Implementation&) = default;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_FRAMEWORK_BEHAVIOUR_H_
