// How a framework computes a layer, where frameworks differ for the same model
// and layout. StepModel takes it as an argument. The defaults are how our own
// workers compute. Other frameworks are described by data: each field has a key
// of the same name (planner/evaluate/behaviour_keys.h, docs/evaluate.md).

#ifndef MILLRACE_PLANNER_GRAPH_STYLE_H_
#define MILLRACE_PLANNER_GRAPH_STYLE_H_

#include <cstdint>

namespace millrace {

// The ops that selective recompute (Recompute::kPolicy) recomputes.
struct SelectiveRecompute {
  bool norms = true;
  bool activation = true;  // In the feed-forward block or in the experts.
  // From query, key and value to attention's output (Korthikanti et al., 2022).
  bool attention = false;
  // Latent attention's projections from its latent vectors (DeepSeek-V3, 2024).
  bool latent_projections = false;
  // A layer of experts between its norm and its last product.
  bool experts = false;
  // Torchtitan's per-op policy (Liang et al., 2024): outputs of attention and
  // of every second product are kept, the rest is recomputed. Norms and
  // activation must be set too.
  bool every_second_product = false;
  friend bool operator==(const SelectiveRecompute&,
                         const SelectiveRecompute&) = default;
};

struct Implementation {
  // Attention without the matrix of scores in memory (FlashAttention). False:
  // the scores of all pairs are written, read by softmax and dropout, and kept.
  bool flash_attention = true;
  // Norms, activations and rotary embedding take one pass each.
  bool fused_elementwise = true;
  bool dropout = false;
  // Norms and residuals work on a tensor rank's share of the tokens
  // (Korthikanti et al., 2022). False: on all tokens, with all-reduces instead.
  // Layers of experts always work on the share.
  bool sequence_parallel = true;
  // Keys and values pass round the context axis (Liu et al., 2023). False: they
  // are gathered before attention (Llama 3, 2024).
  bool context_ring = true;
  SelectiveRecompute selective;
  // Full recompute runs a layer to its end. False: it stops before the last
  // product, which the layer's backward pass does not need.
  bool recomputes_whole_layer = false;
  // A norm that is recomputed adds up the residual stream again, which it
  // reads. False: the sum was kept, and is added up again only where the
  // block's output before it is recomputed too.
  bool recomputes_stream = false;
  // Products keep what the tensor axis gathered for their weight gradients
  // (PyTorch's DTensor). False: they keep the rank's share and gather it again.
  bool keeps_gathered = false;
  // With 8-bit products, an op of its own (kQuantizeFloat8) makes the copies of
  // a tensor and of its transpose, and products keep the transposed ones.
  // False: the op before writes the copies, as `keeps_quantized` says. Layers
  // with experts or latent attention are priced as if it were false.
  bool quantizes_by_op = true;
  // With a GemmFormat, products keep the quantized copies of their inputs for
  // their weight gradients (Transformer Engine). False: the inputs themselves.
  bool keeps_quantized = false;
  // A token for several experts of one rank is sent there once (DeepEP).
  bool sends_tokens_once = false;
  // Head and loss work in chunks of tokens. False: on all tokens, which takes
  // `logit_bytes` for each logit.
  bool chunks_logits = true;
  double logit_bytes = 10;
  // Stages with the embedding or the head have fewer layers (StageLayers).
  // False: all stages have equally many, as far as the layers divide.
  bool balances_stages = true;
  // Which communication runs under computation where that is possible:
  // reductions and gathers of the data axis, gathers and scatters of the tensor
  // axis, transfers between stages, exchanges of tokens between experts.
  bool overlaps_data = true;
  bool overlaps_tensor = true;
  bool overlaps_transfers = true;
  bool overlaps_experts = false;
  // Ranks in the order tensor, context, data, pipeline, innermost first (as
  // Megatron's). False: tensor, context, pipeline, data.
  bool pipeline_outermost = false;
  // Data that leaves a node by another device's port goes through that device
  // (PXN; NCCL 2.12, 2022). False: it goes through the host's memory.
  bool relays_to_ports = true;
  // The host launches kernel by kernel, and a layer takes at least as long as
  // that. False: whole layers or steps are CUDA graphs.
  bool launches_from_host = false;
  // Communication of the tensor axis adds to the host's time to launch, as in
  // sums of a layer's trace and of collectives measured by themselves. False:
  // the host launches on meanwhile.
  bool adds_tensor_to_launches = false;
  // The parts of a layer that are CUDA graphs where the host launches the rest:
  // attention with its norm and projections; the router with the preparation of
  // the exchange.
  bool graphs_attention = false;
  bool graphs_router = false;
  // The experts of a rank multiply in one kernel, which applies the activation
  // and makes the copies of a GemmFormat as well. False: each expert has a
  // kernel of its own, and further kernels make the copies.
  bool fuses_experts = true;
  // Experts clamp the values that they gate and add a bias to their outputs
  // (gpt-oss), one PyTorch operator after the other.
  bool adds_expert_biases = false;
  // Shares of the rates that a profile's constants say. FlashAttention-2 on
  // Hopper reaches half the rate of its successors (Shah et al., 2024).
  // Products with a scale for each row are slower than those with a scale for
  // each tensor.
  double attention_rate = 1;
  double low_precision_rate = 1;
  int32_t gradient_bytes = 4;  // Each element, kept and reduced.
  // Each element of the weights that products read. 0: as Layout::precision
  // stores it. Weights kept in 8 bits alone take 1 byte, and 2 on GPUs whose
  // products need them transposed as well (Hopper).
  double weight_bytes = 0;
  // Master weight and both moments of an element.
  double optimizer_bytes = 12;
  // Under ZeRO 3 the slices are fp32 and are the master weights (PyTorch's
  // fully_shard). They are gathered in bf16 layer by layer, embedding and head
  // for the whole pass. With a pipeline, a whole stage stays gathered until the
  // step ends, and its gradients stay whole. Each micro-batch then has buffers
  // of its own for what comes from the neighbours.
  bool slices_are_masters = false;
  friend bool operator==(const Implementation&,
                         const Implementation&) = default;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_GRAPH_STYLE_H_
