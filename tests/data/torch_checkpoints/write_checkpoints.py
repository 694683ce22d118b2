"""Writes the checkpoints in torch-2.11.tar.gz, with PyTorch 2.11.

    write_checkpoints.py FOLDER
"""

import os
import sys

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

HIDDEN, FFN, VOCAB = 8, 12, 20
MATRICES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (4, HIDDEN),
            "self_attn.v_proj": (4, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN)}
SHAPES = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
          "model.layers.0.input_layernorm.weight": (HIDDEN,),
          "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
          **{f"model.layers.0.{name}.weight": shape for name, shape in MATRICES.items()},
          "lm_head.weight": (VOCAB, HIDDEN)}


def value(name, dtype):
    count = torch.Size(SHAPES[name]).numel()
    flat = (torch.arange(count) * 7 + sum(name.encode())) % 251 / 16 - 8
    return flat.reshape(SHAPES[name]).to(dtype)


def write(rank, folder, kind, num_ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=num_ranks)
    mesh = init_device_mesh("cpu", (2, 2) if kind == "2d" else (num_ranks,))

    def sharded(name, tensor):
        if kind == "one":
            return tensor
        if kind == "fsdp":
            return distribute_tensor(tensor, mesh, [Shard(0)])
        by_columns = "o_proj" in name or "down" in name
        over_tensor = Shard(1) if by_columns else Replicate() if tensor.dim() < 2 else Shard(0)
        return distribute_tensor(tensor, mesh, [Shard(0), over_tensor])

    dtype = torch.float32 if kind == "fsdp" else torch.bfloat16
    state = {name: sharded(name, value(name, dtype)) for name in SHAPES}
    if kind == "2d":
        moments = {f"{name}.exp_avg": sharded(name, value(name, torch.float32))
                   for name in list(SHAPES)[:2]}
        state = {"model": state, "optimizer": {"state": moments, "step": torch.tensor(3.0)},
                 "train_state": {"step": 3}}
    torch.distributed.checkpoint.save(state, checkpoint_id=f"{folder}/{kind}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for kind, num_ranks in [("2d", 4), ("fsdp", 4), ("one", 1)]:
        torch.multiprocessing.spawn(write, (sys.argv[1], kind, num_ranks), nprocs=num_ranks)
