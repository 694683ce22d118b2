// The values of a job that tests/oracle/llama.py needs, as JSON with the names
// of ModelSpec and OptimizerSpec.

#ifndef MILLRACE_TESTS_ORACLE_DESCRIBE_JOB_H_
#define MILLRACE_TESTS_ORACLE_DESCRIBE_JOB_H_

#include <nlohmann/json.hpp>

#include "planner/job/job.h"

namespace millrace {

inline nlohmann::json DescribeJob(const JobSpec& job) {
  const ModelSpec& m = job.model;
  const OptimizerSpec& o = job.training.optimizer;
  const char* decay = o.decay == LearningRateDecay::kLinear   ? "linear"
                      : o.decay == LearningRateDecay::kCosine ? "cosine"
                                                              : "none";
  return {{"model",
           {{"vocab_size", m.vocab_size},
            {"hidden", m.hidden},
            {"num_layers", m.num_layers},
            {"num_heads", m.num_heads},
            {"num_kv_heads", m.num_kv_heads},
            {"head_dim", m.head_dim},
            {"ffn_hidden", m.ffn_hidden},
            {"sequence_length", m.sequence_length},
            {"rope_theta", m.rope_theta},
            {"rope_scaling",
             {{"kind", RopeScalingName(m.rope_scaling.kind)},
              {"factor", m.rope_scaling.factor},
              {"low_freq_factor", m.rope_scaling.low_freq_factor},
              {"high_freq_factor", m.rope_scaling.high_freq_factor},
              {"original_max_position_embeddings",
               m.rope_scaling.original_max_position_embeddings},
              {"attention_factor", m.rope_scaling.attention_factor}}},
            {"rope_factors", m.rope_factors},
            {"rotary_dim", m.rotary_dim},
            {"global_layer_period", m.global_layer_period},
            {"sliding_rope_theta", m.sliding_rope_theta},
            {"norm_adds_one", m.norm_adds_one},
            {"output_norms", m.output_norms},
            {"scales_embedding", m.scales_embedding},
            {"query_pre_attn_scalar", m.query_pre_attn_scalar},
            {"attention_softcap", m.attention_softcap},
            {"logit_softcap", m.logit_softcap},
            {"feed_forward", FeedForwardName(m.feed_forward)},
            {"norm", NormKindName(m.norm)},
            {"learned_positions", m.learned_positions},
            {"qkv_bias", m.qkv_bias},
            {"linear_bias", m.linear_bias},
            {"qk_norm", m.qk_norm},
            {"ties_embedding", m.ties_embedding},
            {"sliding_window", m.sliding_window},
            {"norm_epsilon", m.norm_epsilon},
            {"init_std", m.init_std}}},
          {"optimizer",
           {{"learning_rate", o.learning_rate},
            {"min_learning_rate", o.min_learning_rate},
            {"warmup_steps", o.warmup_steps},
            {"decay", decay},
            {"beta1", o.beta1},
            {"beta2", o.beta2},
            {"epsilon", o.epsilon},
            {"weight_decay", o.weight_decay}}},
          {"num_steps", job.training.num_steps},
          {"global_batch", job.training.global_batch},
          {"gradient_clip_norm", job.training.gradient_clip_norm}};
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_ORACLE_DESCRIBE_JOB_H_
