// Dimensions of published models, from their papers and configuration files.

#ifndef MILLRACE_TESTS_PLANNER_KNOWN_MODELS_H_
#define MILLRACE_TESTS_PLANNER_KNOWN_MODELS_H_

#include "planner/layout/model.h"

namespace millrace {

inline ModelSpec Llama3_8B() {
  return {.vocab_size = 128256,
          .hidden = 4096,
          .num_layers = 32,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .ffn_hidden = 14336,
          .sequence_length = 8192};
}

inline ModelSpec Llama3_70B() {
  ModelSpec model = Llama3_8B();
  model.hidden = 8192;
  model.num_layers = 80;
  model.num_heads = 64;
  model.ffn_hidden = 28672;
  return model;
}

inline ModelSpec Llama3_405B() {
  ModelSpec model = Llama3_8B();
  model.hidden = 16384;
  model.num_layers = 126;
  model.num_heads = 128;
  model.ffn_hidden = 53248;
  return model;
}

inline ModelSpec Gpt3_175B() {
  return {.vocab_size = 50257,
          .hidden = 12288,
          .num_layers = 96,
          .num_heads = 96,
          .num_kv_heads = 96,
          .head_dim = 128,
          .ffn_hidden = 49152,
          .sequence_length = 2048,
          .feed_forward = FeedForward::kGelu,
          .ties_embedding = true};
}

inline ModelSpec Nemotron4_15B() {
  return {.vocab_size = 256000,
          .hidden = 6144,
          .num_layers = 32,
          .num_heads = 48,
          .num_kv_heads = 8,
          .head_dim = 128,
          .ffn_hidden = 24576,
          .sequence_length = 4096,
          .feed_forward = FeedForward::kSquaredRelu};
}

inline ModelSpec Nemotron4_340B() {
  ModelSpec model = Nemotron4_15B();
  model.hidden = 18432;
  model.num_layers = 96;
  model.num_heads = 96;
  model.head_dim = 192;
  model.ffn_hidden = 73728;
  return model;
}

inline ModelSpec Mixtral8x7B() {
  return {
      .vocab_size = 32000,
      .hidden = 4096,
      .num_layers = 32,
      .num_heads = 32,
      .num_kv_heads = 8,
      .head_dim = 128,
      .sequence_length = 4096,
      .moe = {
          .num_experts = 8, .experts_per_token = 2, .expert_hidden = 14336}};
}

inline ModelSpec Qwen3_30B_A3B() {
  return {
      .vocab_size = 151936,
      .hidden = 2048,
      .num_layers = 48,
      .num_heads = 32,
      .num_kv_heads = 4,
      .head_dim = 128,
      .sequence_length = 4096,
      .moe = {
          .num_experts = 128, .experts_per_token = 8, .expert_hidden = 768}};
}

inline ModelSpec Qwen3_235B_A22B() {
  ModelSpec model = Qwen3_30B_A3B();
  model.hidden = 4096;
  model.num_layers = 94;
  model.num_heads = 64;
  model.moe.expert_hidden = 1536;
  return model;
}

inline ModelSpec DeepSeekV3() {
  return {.vocab_size = 129280,
          .hidden = 7168,
          .num_layers = 61,
          .num_heads = 128,
          .num_kv_heads = 128,
          .head_dim = 192,
          .ffn_hidden = 18432,
          .sequence_length = 4096,
          .moe = {.num_experts = 256,
                  .experts_per_token = 8,
                  .expert_hidden = 2048,
                  .num_shared_experts = 1,
                  .num_dense_layers = 3},
          .mla = {.kv_rank = 512,
                  .query_rank = 1536,
                  .nope_head_dim = 128,
                  .rope_head_dim = 64,
                  .value_head_dim = 128}};
}

// Moonlight-16B-A3B (Moonshot, 2025).
inline ModelSpec Moonlight16B() {
  return {.vocab_size = 163840,
          .hidden = 2048,
          .num_layers = 27,
          .num_heads = 16,
          .num_kv_heads = 16,
          .head_dim = 192,
          .ffn_hidden = 11264,
          .sequence_length = 4096,
          .moe = {.num_experts = 64,
                  .experts_per_token = 6,
                  .expert_hidden = 1408,
                  .num_shared_experts = 2,
                  .num_dense_layers = 1},
          .mla = {.kv_rank = 512,
                  .nope_head_dim = 128,
                  .rope_head_dim = 64,
                  .value_head_dim = 128}};
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_KNOWN_MODELS_H_
