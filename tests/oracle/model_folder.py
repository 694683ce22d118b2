"""Writes and reads folders of weights as Hugging Face keeps them, apart from Millrace and
from the safetensors library: what the tests beside this file compare with.

    model_folder.py FOLDER [TYPE [SHARDS]]     a tiny Llama of random weights
"""

import json
import pathlib
import sys

import numpy
import torch

import llama

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BYTES = {"F32": 4, "F16": 2, "BF16": 2}
TINY = {"vocab_size": 288, "hidden": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 8, "ffn_hidden": 64, "sequence_length": 32, "rope_theta": 10000.0,
        "norm_epsilon": 1e-5, "init_std": 0.05}


def raw_bytes(tensor):
    """The elements as they lie; numpy has no bfloat16."""
    flat = tensor.detach().contiguous().flatten()
    return (flat.view(torch.int16) if flat.element_size() == 2 else flat).numpy().tobytes()


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = raw_bytes(tensor.to(DTYPES[dtype]))
        header[name] = {"dtype": dtype, "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    assert header.pop("__metadata__", {}).get("format") == "pt", path
    tensors, end = {}, 0
    for name, entry in header.items():
        begin, after = entry["data_offsets"]
        assert begin == end, (path, name)
        end = after
        kind = numpy.int16 if BYTES[entry["dtype"]] == 2 else numpy.float32
        tensor = torch.from_numpy(numpy.frombuffer(data[begin:after], dtype=kind).copy())
        tensors[name] = tensor.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    assert end == len(data), path
    return tensors


def read_folder(folder):
    """All tensors of a folder of one file or of several with an index."""
    folder = pathlib.Path(folder)
    if (folder / "model.safetensors").exists():
        return read_safetensors(folder / "model.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        for key, tensor in read_safetensors(folder / name).items():
            assert index["weight_map"][key] == name and key not in tensors, (name, key)
            tensors[key] = tensor
    assert set(tensors) == set(index["weight_map"])
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    assert size == index["metadata"]["total_size"]
    return tensors


def llama_config(m, dtype):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "vocab_size": m["vocab_size"], "hidden_size": m["hidden"],
            "num_hidden_layers": m["num_layers"], "num_attention_heads": m["num_heads"],
            "num_key_value_heads": m["num_kv_heads"], "head_dim": m["head_dim"],
            "intermediate_size": m["ffn_hidden"],
            "max_position_embeddings": m["sequence_length"], "rms_norm_eps": m["norm_epsilon"],
            "rope_theta": m["rope_theta"], "rope_scaling": None, "hidden_act": "silu",
            "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "torch_dtype": str(DTYPES[dtype]).split(".")[1], "use_cache": True,
            "bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.46.0"}


def gemma_config(m, dtype):
    """Gemma 2, or with norms of queries and keys Gemma 3."""
    is_third = m["qk_norm"]
    config = {**llama_config(m, dtype), "hidden_activation": "gelu_pytorch_tanh",
              "architectures": ["Gemma3ForCausalLM" if is_third else "Gemma2ForCausalLM"],
              "model_type": "gemma3_text" if is_third else "gemma2", "tie_word_embeddings": True,
              "sliding_window": m["sliding_window"],
              "query_pre_attn_scalar": m["query_pre_attn_scalar"],
              "attn_logit_softcapping": m["attention_softcap"] or None,
              "final_logit_softcapping": m["logit_softcap"] or None,
              "layer_types": ["sliding_attention" if llama.is_sliding(m, layer) else
                              "full_attention" for layer in range(m["num_layers"])]}
    if is_third:
        config["rope_local_base_freq"] = m["sliding_rope_theta"]
    del config["mlp_bias"]
    return config


def phi4_mini_config(m, dtype):
    """Sequences of the tests are longer than those seen first."""
    return {**phi3_config(m, dtype), "tie_word_embeddings": True,
            "partial_rotary_factor": m["rotary_dim"] / m["head_dim"],
            "original_max_position_embeddings": 16,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * (m["rotary_dim"] // 2),
                             "long_factor": m["rope_factors"]}}


def phi3_config(m, dtype):
    return {**llama_config(m, dtype), "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}


def gpt2_config(m, dtype):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
            "vocab_size": m["vocab_size"], "n_embd": m["hidden"], "n_layer": m["num_layers"],
            "n_head": m["num_heads"], "n_inner": m["ffn_hidden"],
            "n_positions": m["learned_positions"], "n_ctx": m["learned_positions"],
            "layer_norm_epsilon": m["norm_epsilon"], "activation_function": "gelu_new",
            "initializer_range": m["init_std"], "attn_pdrop": 0.0, "embd_pdrop": 0.0,
            "resid_pdrop": 0.0, "scale_attn_weights": True, "reorder_and_upcast_attn": False,
            "torch_dtype": str(DTYPES[dtype]).split(".")[1], "use_cache": True,
            "bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.46.0"}


# How families pack Llama's tensors: theirs, whether it is transposed, ours in order.
FUSED = [("self_attn.qkv_proj.weight", False, [f"self_attn.{x}_proj.weight" for x in "qkv"]),
         ("mlp.gate_up_proj.weight", False, ["mlp.gate_proj.weight", "mlp.up_proj.weight"])]
GPT2 = [("attn.c_attn.weight", True, [f"self_attn.{x}_proj.weight" for x in "qkv"]),
        ("attn.c_attn.bias", False, [f"self_attn.{x}_proj.bias" for x in "qkv"]),
        ("attn.c_proj.weight", True, ["self_attn.o_proj.weight"]),
        ("attn.c_proj.bias", False, ["self_attn.o_proj.bias"]),
        ("mlp.c_fc.weight", True, ["mlp.up_proj.weight"]),
        ("mlp.c_fc.bias", False, ["mlp.up_proj.bias"]),
        ("mlp.c_proj.weight", True, ["mlp.down_proj.weight"]),
        ("mlp.c_proj.bias", False, ["mlp.down_proj.bias"])] + [
    (f"{theirs}.{kind}", False, [f"{ours}.{kind}"]) for kind in ("weight", "bias")
    for theirs, ours in (("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"))]
GPT2_ENDS = {"model.embed_tokens.weight": "transformer.wte.weight",
             "model.embed_positions.weight": "transformer.wpe.weight",
             "model.norm.weight": "transformer.ln_f.weight",
             "model.norm.bias": "transformer.ln_f.bias", "lm_head.weight": "lm_head.weight"}


def pack(state, rows, prefix, ends, num_layers):
    """Llama's tensors as a family's files have them."""
    state, packed = dict(state), {}
    for layer in range(num_layers):
        for theirs, is_transposed, ours in rows:
            parts = [state.pop(f"model.layers.{layer}.{name}") for name in ours]
            whole = torch.cat(parts)
            packed[f"{prefix}{layer}.{theirs}"] = whole.T.contiguous() if is_transposed else whole
    return {**{ends.get(name, name): tensor for name, tensor in state.items()}, **packed}


def to_fused(state, m):
    return pack(state, FUSED, "model.layers.", {}, m["num_layers"])


def to_gpt2(state, m):
    return pack(state, GPT2, "transformer.h.", GPT2_ENDS, m["num_layers"])


def as_llama(tensors, m):
    """A folder's tensors under Llama's names and in its shapes."""
    is_gpt2 = "transformer.wte.weight" in tensors
    is_fused = "model.layers.0.self_attn.qkv_proj.weight" in tensors
    if not is_gpt2 and not is_fused:
        return tensors
    rows, prefix = (GPT2, "transformer.h.") if is_gpt2 else (FUSED, "model.layers.")
    query, kv = (m[n] * m["head_dim"] for n in ("num_heads", "num_kv_heads"))
    ends = {theirs: ours for ours, theirs in GPT2_ENDS.items()} if is_gpt2 else {}
    left, state = dict(tensors), {}
    for layer in range(m["num_layers"]):
        for theirs, is_transposed, ours in rows:
            whole = left.pop(f"{prefix}{layer}.{theirs}")
            whole = whole.T if is_transposed else whole
            sizes = {1: [len(whole)], 2: [m["ffn_hidden"]] * 2, 3: [query, kv, kv]}[len(ours)]
            for name, part in zip(ours, whole.split(sizes)):
                state[f"model.layers.{layer}.{name}"] = part.contiguous()
    return {**{ends.get(name, name): tensor for name, tensor in left.items()}, **state}


def llama_of_folder(folder):
    """The model that a folder of a Llama describes, in double precision: of its own
    config.json and tensors alone."""
    c = json.loads((pathlib.Path(folder) / "config.json").read_text())
    model = llama.Llama({
        "vocab_size": c["vocab_size"], "hidden": c["hidden_size"],
        "num_layers": c["num_hidden_layers"], "num_heads": c["num_attention_heads"],
        "num_kv_heads": c["num_key_value_heads"], "head_dim": c["head_dim"],
        "ffn_hidden": c["intermediate_size"], "rope_theta": c["rope_theta"],
        "norm_epsilon": c["rms_norm_eps"], "ties_embedding": c["tie_word_embeddings"],
        "init_std": c["initializer_range"] if "initializer_range" in c else 0.02}).double()
    model.load_state_dict({k: t.double() for k, t in read_folder(folder).items()}, strict=True)
    return model


def write_folder(folder, config, tensors, dtype, num_shards=1):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    names = list(tensors)
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        write_safetensors(folder / file, part, dtype)
        weight_map.update(dict.fromkeys(part, file))
    size = sum(t.numel() * BYTES[dtype] for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))


def tiny_llama(m=TINY, seed=1):
    """A state dict whose norm weights are not all one."""
    torch.manual_seed(seed)
    state = llama.Llama(m).state_dict()
    return {name: tensor + 0.1 * torch.randn(tensor.shape) if tensor.dim() == 1 else tensor
            for name, tensor in state.items()}


def main():
    folder, dtype, shards = (sys.argv[1:] + ["BF16", "1"])[:3] if len(sys.argv) < 4 else sys.argv[1:4]
    write_folder(folder, llama_config(TINY, dtype), tiny_llama(), dtype, int(shards))


if __name__ == "__main__":
    main()
