#include "planner/evaluate/framework_rules.h"

#include <vector>

#include "absl/strings/match.h"

namespace millrace {
namespace {

Implementation MegatronCore() {
  Implementation implementation;
  implementation.recomputes_whole_layer = true;
  implementation.keeps_quantized = true;
  implementation.chunks_logits = false;
  implementation.balances_stages = false;
  implementation.pipeline_outermost = true;
  implementation.launches_from_host = true;
  implementation.fuses_experts = false;
  implementation.gradient_bytes = 2;
  return implementation;
}

// Before FlashAttention and sequence parallelism: scores in memory, all-reduces
// in the open, blocking transfers, gradients reduced after the last backward
// pass.
Implementation MegatronOf2021() {
  Implementation implementation = MegatronCore();
  implementation.flash_attention = false;
  implementation.dropout = true;
  implementation.sequence_parallel = false;
  implementation.overlaps_data = false;
  implementation.overlaps_tensor = false;
  implementation.overlaps_transfers = false;
  implementation.gradient_bytes = 4;
  return implementation;
}

Implementation MegatronOf2022() {
  Implementation implementation = MegatronOf2021();
  implementation.selective = {
      .norms = false, .activation = false, .attention = true};
  return implementation;
}

Implementation MegatronDeepSpeed() {
  Implementation implementation = MegatronOf2021();
  implementation.relays_to_ports = false;
  implementation.gradient_bytes = 2;
  return implementation;
}

Implementation VtrainTable() {
  Implementation implementation = MegatronOf2021();
  implementation.adds_tensor_to_launches = true;
  implementation.gradient_bytes = 2;
  implementation.optimizer_bytes = 4;  // Of fp16 weights, without masters.
  return implementation;
}

Implementation Mlperf() {
  Implementation implementation = MegatronCore();
  implementation.balances_stages = true;  // ASYM_PP.
  return implementation;
}

Implementation Torchtitan() {
  Implementation implementation;
  implementation.context_ring = false;  // Its default gathers.
  // PyTorch's FlashAttention-2 beside the kernels that profiles were fitted to.
  implementation.attention_rate = 0.45;
  implementation.selective.every_second_product = true;
  implementation.keeps_gathered = true;
  implementation.slices_are_masters = true;
  implementation.chunks_logits = false;
  // bf16, then in fp32 logits, their log-softmax and its gradient.
  implementation.logit_bytes = 14;
  implementation.launches_from_host = true;
  implementation.overlaps_tensor = false;
  return implementation;
}

// Of PyTorch's allocator under FSDP 2: blocks that are free between others.
// Median over half of torchtitan's runs; 1.04 over the other half.
constexpr double kReservedByFsdp = 1.038;

const std::vector<FrameworkRule>& Rules() {
  static const auto* const rules = new std::vector<FrameworkRule>{
      // The fallback, so the first.
      {"mcore",
       "Megatron-Core: fused and flash attention, sequence parallelism, "
       "overlapped communication, 16-bit gradients, ZeRO 1 (its distributed "
       "optimizer) and no recompute are its defaults in performance recipes",
       MegatronCore(), 1, Recompute::kNone, true},
      {"mlperf",
       "NVIDIA's MLPerf Training code on Megatron-Core, stages balanced; its "
       "logs have the memory of rank 0",
       Mlperf(), 1, Recompute::kNone, true, 51200, true},
      {"dgxc", "NeMo on Megatron-Core, as its performance recipes set it",
       MegatronCore(), 1, Recompute::kNone, true},
      {"nemo", "NeMo on Megatron-Core, as its performance recipes set it",
       MegatronCore(), 1, Recompute::kNone, true},
      {"mbridge",
       "Megatron-Bridge on Megatron-Core, as its performance recipes set it",
       MegatronCore(), 1, Recompute::kNone, true},
      {"torchtitan",
       "torchtitan: PyTorch FSDP 2 with prefetching, tensor parallelism in the "
       "open unless notes say async TP, gradients reduced in fp32; its logs "
       "have the memory that the allocator reserved",
       Torchtitan(), 3, Recompute::kPolicy, false, 51200, false,
       kReservedByFsdp},
      {"sc21",
       "Megatron-LM of 2021: scores in memory, dropout, no sequence "
       "parallelism, nothing overlapped",
       MegatronOf2021(), 0, Recompute::kNone, true},
      {"seqsel",
       "Megatron-LM of 2022: scores in memory, dropout, sequence parallelism "
       "where stated, nothing overlapped",
       MegatronOf2022(), 0, Recompute::kNone, true},
      {"vtrain_single",
       "vTrain's sums of a layer's trace and of collectives: scores in memory, "
       "dropout, no sequence parallelism, nothing overlapped; no recompute, "
       "which its simulator leaves out of a pipeline's last stage and whose "
       "products would be faster than the device; 50,257 tokens, its default",
       VtrainTable(), 0, Recompute::kNone, true, 50257},
      {"vtrain",
       "Megatron-DeepSpeed: scores in memory, dropout, no sequence "
       "parallelism, nothing overlapped, NCCL without relays between ports; "
       "vTrain's configurations of these runs set use_checkpoint, so full "
       "recompute",
       MegatronDeepSpeed(), 0, Recompute::kFull, true},
  };
  return *rules;
}

}  // namespace

FrameworkChoice FrameworkOf(const PublishedRun& run) {
  for (const FrameworkRule& rule : Rules()) {
    if (absl::StartsWith(run.group, rule.group_prefix)) return {&rule, true};
  }
  return {&Rules().front(), false};
}

}  // namespace millrace
