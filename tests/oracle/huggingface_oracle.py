"""Goal: Millrace computes what Hugging Face's LlamaForCausalLM, MistralForCausalLM,
Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, Phi3ForCausalLM and
GPT2LMHeadModel do. Method: step_dump computes one
step of a small model and writes weights, batch, loss, gradients and what the head
multiplies; transformers loads the weights by their names and computes logits, loss and
gradients in double precision.

    step_dump CASE cuda bf16 FOLDER
    huggingface_oracle.py FOLDER...

In fp32 ours must agree up to rounding. In bf16 ours must be no farther from the
exact values than transformers' own bf16 is, whose every result is as wide as ours.
Exits 1 if anything disagrees. Needs torch, transformers, safetensors.
"""

import json
import pathlib
import sys

import numpy
import torch
from safetensors.torch import load_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
                          GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

import llama
import model_folder

# Relative, norm-wise per tensor. Sums of a few thousand fp32 terms differ from exact
# ones by 1e-6; transformers keeps norms and rotary tables in fp32 even so.
FP32_TOLERANCE = 1e-4
# A factor on the distance of transformers' bf16 from the exact values, tensor by
# tensor: the two round in different places. Ours keeps weight gradients in fp32, so is
# mostly nearer.
BF16_FACTOR = 1.5
BF16_FLOOR = 2e-3  # Rounding a tensor once.


def is_gpt2(m):
    return m["learned_positions"] > 0


def is_gemma(m):
    return m["output_norms"]


def is_phi(m):
    return m["rotary_dim"] > 0


def in_their_names(m, tensors):
    if is_phi(m):
        return model_folder.to_fused(tensors, m)
    return model_folder.to_gpt2(tensors, m) if is_gpt2(m) else dict(tensors)


def layer_types(m):
    return ["sliding_attention" if llama.is_sliding(m, layer) else "full_attention"
            for layer in range(m["num_layers"])]


def make_gpt2(m, dtype):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=m["vocab_size"], n_embd=m["hidden"], n_inner=m["ffn_hidden"],
        n_layer=m["num_layers"], n_head=m["num_heads"], n_positions=m["learned_positions"],
        layer_norm_epsilon=m["norm_epsilon"], resid_pdrop=0.0,
        activation_function="gelu" if m["feed_forward"] == "gelu_erf" else "gelu_new",
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="eager")).to(dtype)


def sizes(m):
    return {"vocab_size": m["vocab_size"], "hidden_size": m["hidden"],
            "intermediate_size": m["ffn_hidden"], "num_hidden_layers": m["num_layers"],
            "num_attention_heads": m["num_heads"], "num_key_value_heads": m["num_kv_heads"],
            "rms_norm_eps": m["norm_epsilon"], "tie_word_embeddings": m["ties_embedding"],
            "use_cache": False, "attn_implementation": "eager"}


def make_gemma(m, dtype):
    options = {"head_dim": m["head_dim"], "max_position_embeddings": m["sequence_length"],
               "query_pre_attn_scalar": int(m["query_pre_attn_scalar"]),
               "sliding_window": m["sliding_window"], "layer_types": layer_types(m),
               "hidden_activation": "gelu_pytorch_tanh",
               "attn_logit_softcapping": m["attention_softcap"] or None,
               "final_logit_softcapping": m["logit_softcap"] or None, **sizes(m)}
    full = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    if not m["qk_norm"]:
        return Gemma2ForCausalLM(Gemma2Config(
            rope_theta=m["rope_theta"], rope_parameters=full, **options)).to(dtype)
    scaling = {"rope_type": "linear", "factor": m["rope_scaling"]["factor"]}
    local = {"rope_type": "default", "rope_theta": m["sliding_rope_theta"]}
    return Gemma3ForCausalLM(Gemma3TextConfig(
        rope_theta=m["rope_theta"], rope_local_base_freq=m["sliding_rope_theta"],
        rope_scaling=scaling,  # Version 4.
        rope_parameters={"full_attention": {**full, **scaling}, "sliding_attention": local},
        **options)).to(dtype)


def make_phi(m, dtype):
    # Sequences are no longer than those seen first: the short list is in use.
    length = m["sequence_length"]
    share = m["rotary_dim"] / m["head_dim"]
    scaling = {"rope_type": "longrope", "short_factor": m["rope_factors"],
               "long_factor": m["rope_factors"],
               "attention_factor": m["rope_scaling"]["attention_factor"]}
    return Phi3ForCausalLM(Phi3Config(
        max_position_embeddings=2 * length, original_max_position_embeddings=length,
        partial_rotary_factor=share, rope_theta=m["rope_theta"], rope_scaling=scaling,
        rope_parameters={**scaling, "rope_theta": m["rope_theta"], "partial_rotary_factor": share,
                         "original_max_position_embeddings": length},
        pad_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0,
        **sizes(m))).to(dtype)


def make_model(m, dtype):
    if is_gpt2(m):
        return make_gpt2(m, dtype)
    if is_gemma(m):
        return make_gemma(m, dtype)
    if is_phi(m):
        return make_phi(m, dtype)
    is_scaled = m["rope_scaling"]["kind"] != "none"
    rope = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    if is_scaled:
        rope.update(m["rope_scaling"], rope_type=m["rope_scaling"]["kind"])
        del rope["kind"]
    options, make_config, make = {"attention_bias": False, "mlp_bias": False}, LlamaConfig, LlamaForCausalLM
    if m["qkv_bias"]:  # Qwen2 always has them.
        options, make_config, make = {}, Qwen2Config, Qwen2ForCausalLM
    elif m["qk_norm"]:
        options, make_config, make = {"attention_bias": False}, Qwen3Config, Qwen3ForCausalLM
    elif m["sliding_window"]:
        options, make_config, make = ({"sliding_window": m["sliding_window"]}, MistralConfig,
                                      MistralForCausalLM)
    config = make_config(
        vocab_size=m["vocab_size"], hidden_size=m["hidden"], intermediate_size=m["ffn_hidden"],
        num_hidden_layers=m["num_layers"], num_attention_heads=m["num_heads"],
        num_key_value_heads=m["num_kv_heads"], head_dim=m["head_dim"],
        max_position_embeddings=m["sequence_length"], rms_norm_eps=m["norm_epsilon"],
        rope_theta=m["rope_theta"], rope_scaling=rope if is_scaled else None,  # Version 4.
        rope_parameters=rope,  # Version 5.
        hidden_act="silu", tie_word_embeddings=m["ties_embedding"],
        use_cache=False, attn_implementation="eager", **options)
    return make(config).to(dtype)


def attention_mask(document_starts, window, dtype):
    """[batch, 1, length, length], added to the scores; window 0: none."""
    positions = torch.arange(document_starts.shape[1])
    distance = positions[:, None] - positions[None, :]
    near = (distance >= 0) & (distance < (window or len(positions)))
    allowed = (near & (positions >= document_starts[:, :, None]))[:, None]
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(
        ~allowed, torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min)


def run(m, weights, batch, dtype):
    """Logits, loss and gradients, all in double precision."""
    model = make_model(m, dtype)
    # strict: the names and shapes of both must be the same set. A tied head is in the
    # model's, and in no file.
    state = {k: v.to(dtype) for k, v in in_their_names(m, weights).items()}
    embedding = "transformer.wte.weight" if is_gpt2(m) else "model.embed_tokens.weight"
    state.setdefault("lm_head.weight", state[embedding])
    model.load_state_dict(state, strict=True)
    tokens, targets, starts = batch
    mask = attention_mask(starts, m["sliding_window"], dtype)
    if is_gemma(m):
        mask = {"full_attention": attention_mask(starts, 0, dtype), "sliding_attention": mask}
    logits = model(input_ids=tokens, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), targets.flatten())
    loss.backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters()}
    return logits.detach().double().flatten(0, 1), loss.item(), gradients


def relative_error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


def check(folder):
    """Prints the largest errors of one dump; returns what is beyond its limit."""
    folder = pathlib.Path(folder)
    case = json.loads((folder / "case.json").read_text())
    m = case["model"]
    weights = load_file(folder / "weights.safetensors")
    data = numpy.fromfile(folder / "batch.i32", dtype="<i4").astype(numpy.int64)
    batch = torch.from_numpy(data.reshape(3, case["global_batch"], m["sequence_length"]))
    if int(batch[2].max()) == 0:
        return [f"{folder}: no document begins inside a sequence; masks go untested"]
    logits, loss, gradients = run(m, weights, batch, torch.float64)

    hidden = load_file(folder / "hidden.safetensors")["hidden"].double()
    gradients_of_ours = load_file(folder / "gradients.safetensors")
    ours = {name: gradient.double() for name, gradient in
            in_their_names(m, gradients_of_ours).items()}
    head = "model.embed_tokens.weight" if m["ties_embedding"] else "lm_head.weight"
    ours["logits"] = llama.softcapped(hidden @ weights[head].double().T,
                                      m.get("logit_softcap", 0))
    ours["loss"] = torch.tensor(case["loss"], dtype=torch.float64)
    exact = {**gradients, "logits": logits, "loss": torch.tensor(loss, dtype=torch.float64)}
    limits = dict.fromkeys(exact, FP32_TOLERANCE)
    theirs = None
    if case["precision"] == "bf16":
        their_logits, their_loss, their_gradients = run(m, weights, batch, torch.bfloat16)
        theirs = {**their_gradients, "logits": their_logits,
                  "loss": torch.tensor(their_loss, dtype=torch.float64)}
        limits = {name: BF16_FLOOR + BF16_FACTOR * relative_error(theirs[name], exact[name])
                  for name in exact}

    errors = {name: relative_error(ours[name], exact[name]) for name in exact}
    worst = max(gradients, key=lambda name: errors[name])
    line = (f"{case['case']} {case['backend']} {case['precision']}: loss {errors['loss']:.1e}, "
            f"logits {errors['logits']:.1e}, gradients at most {errors[worst]:.1e} ({worst})")
    if theirs is not None:
        their_worst = max(relative_error(theirs[name], exact[name]) for name in gradients)
        line += (f"; transformers in bf16: logits "
                 f"{relative_error(theirs['logits'], exact['logits']):.1e}, gradients at most "
                 f"{their_worst:.1e}")
    print(line, flush=True)
    return [f"{folder}: {name} is off by {errors[name]:.2e}, allowed {limits[name]:.2e}"
            for name in exact if not errors[name] <= limits[name]]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wrong = [problem for folder in sys.argv[1:] for problem in check(folder)]
    for problem in wrong:
        print(problem)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
