"""The values of a job file that the peers need, with the names of ModelSpec and OptimizerSpec."""

import math

import yaml


def read_job(path):
    """The dims and the recipe of a job file; docs/job.md has the defaults."""
    with open(path, encoding="utf-8") as file:
        job = yaml.safe_load(file)
    m, t = job["model"], job["training"]
    o = t["optimizer"]
    return {
        "model": {"vocab_size": m["vocab_size"], "hidden": m["hidden"],
                  "num_layers": m["layers"], "num_heads": m["heads"],
                  "num_kv_heads": m.get("kv_heads", m["heads"]),
                  "head_dim": m.get("head_dim", m["hidden"] // m["heads"]),
                  "ffn_hidden": m["ffn_hidden"], "sequence_length": m["sequence_length"],
                  "rope_theta": float(m.get("rope_theta", 1e4)),
                  "rope_scaling": _rope_scaling(m.get("rope_scaling") or {}),
                  "qkv_bias": m.get("qkv_bias", False), "qk_norm": m.get("qk_norm", False),
                  "linear_bias": m.get("linear_bias", False), "norm": m.get("norm", "rms"),
                  "feed_forward": m.get("feed_forward", "swiglu"),
                  "learned_positions": m.get("learned_positions", 0),
                  "ties_embedding": m.get("ties_embedding", False),
                  "sliding_window": m.get("sliding_window", 0),
                  "global_layer_period": m.get("global_layer_period", 0),
                  "sliding_rope_theta": float(m.get("sliding_rope_theta", 0)),
                  "rotary_dim": m.get("rotary_dim", 0),
                  "rope_factors": [float(x) for x in m.get("rope_factors", [])],
                  "norm_adds_one": m.get("norm_adds_one", False),
                  "output_norms": m.get("output_norms", False),
                  "scales_embedding": m.get("scales_embedding", False),
                  "query_pre_attn_scalar": float(m.get("query_pre_attn_scalar", 0)),
                  "attention_softcap": float(m.get("attention_softcap", 0)),
                  "logit_softcap": float(m.get("logit_softcap", 0)),
                  "norm_epsilon": float(m.get("norm_epsilon", 1e-5)),
                  "init_std": float(m.get("init_std", 0.02))},
        # YAML 1.1 takes 2e-3 for a text.
        "optimizer": {"learning_rate": float(o["learning_rate"]),
                      "min_learning_rate": float(o.get("min_learning_rate", 0)),
                      "warmup_steps": o.get("warmup_steps", 0),
                      "decay": o.get("decay", "cosine"),
                      "beta1": float(o.get("beta1", 0.9)), "beta2": float(o.get("beta2", 0.95)),
                      "epsilon": float(o.get("epsilon", 1e-8)),
                      "weight_decay": float(o.get("weight_decay", 0.1))},
        "num_steps": t["steps"], "global_batch": t["global_batch"], "seed": t.get("seed", 0),
        "gradient_clip_norm": float(t.get("gradient_clip_norm", 1.0)),
        "micro_batch": _number((job.get("layout") or {}), "micro_batch"),
        "tensor": _number((job.get("layout") or {}), "tensor"),
        "devices": _number((job.get("resources") or {}), "devices_per_agent")}


def _rope_scaling(section):
    floats = {key: float(section.get(key, 0))
              for key in ("factor", "low_freq_factor", "high_freq_factor",
                          "attention_factor")}
    return {"kind": section.get("kind", "none"), **floats,
            "original_max_position_embeddings":
                section.get("original_max_position_embeddings", 0)}


def _number(section, key):
    """The value of a key; None if the section or the key is auto."""
    value = section.get(key, "auto") if isinstance(section, dict) else "auto"
    return None if value == "auto" else value


def learning_rate_at(job, step):
    """As LearningRateAt() of planner/job/job.h; the first step is 1."""
    o = job["optimizer"]
    if step < o["warmup_steps"]:
        return o["learning_rate"] * step / o["warmup_steps"]
    decay_steps = job["num_steps"] - o["warmup_steps"]
    if o["decay"] == "none" or decay_steps <= 0:
        return o["learning_rate"]
    progress = min(1, (step - o["warmup_steps"]) / decay_steps)
    left = 1 - progress if o["decay"] == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return o["min_learning_rate"] + (o["learning_rate"] - o["min_learning_rate"]) * left


def num_head_and_layer_parameters(m):
    """All parameters but the input embedding's: each is multiplied once a token."""
    query, kv = m["num_heads"] * m["head_dim"], m["num_kv_heads"] * m["head_dim"]
    layer = m["hidden"] * (2 * query + 2 * kv + 3 * m["ffn_hidden"] + 2)
    return m["num_layers"] * layer + m["hidden"] + m["vocab_size"] * m["hidden"]


def flops_per_token(m):
    """(attention counted in full, counted as a causal kernel must do it)."""
    linear = 6.0 * num_head_and_layer_parameters(m)
    attention = 12.0 * m["num_layers"] * m["num_heads"] * m["head_dim"] * m["sequence_length"]
    return linear + attention, linear + attention / 2
