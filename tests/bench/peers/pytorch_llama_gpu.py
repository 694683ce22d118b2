"""PyTorch on GPUs as the peer of a Millrace job: FSDP2, torch.compile a layer, SDPA,
fused AdamW, bf16 with fp32 master weights. For the ratio on the machine at hand:

    python3 pytorch_llama_gpu.py configs/bench/llama3-1b-1gpu.yaml
    torchrun --nproc-per-node 4 pytorch_llama_gpu.py configs/bench/llama3-8b-4gpu.yaml
    torchrun --nproc-per-node 4 pytorch_llama_gpu.py configs/bench/llama3-70b-10-layers-4gpu.yaml

Dims and recipe are the job's; tokens are random. The last line is a JSON object of
tokens/s/GPU, utilisation and memory. With the weights and batches that
training_inputs writes for a job it trains as the job would, and writes
the losses, for loss_curve.py to lay beside Millrace's:

    training_inputs JOB.yaml FOLDER
    python3 pytorch_llama_gpu.py JOB.yaml --steps 600 --inputs FOLDER --losses OUT.jsonl

Needs PyTorch 2.11 and PyYAML.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

import fsdp_llama
import job_dims

PEAK_FLOPS = 989e12  # bf16, dense, of H100 and H200 SXM.


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="a Millrace job file")
    parser.add_argument("--micro-batch", type=int,
                        help="sequences of a micro-batch (default: the job's, else a replica's "
                             "share of the global batch)")
    parser.add_argument("--micro-batches", type=int, default=1,
                        help="per step and replica, their gradients added up")
    parser.add_argument("--tensor", type=int,
                        help="GPUs that share each layer (default: the job's, else 1)")
    parser.add_argument("--steps", type=int, default=10, help="timed, after the warm-up")
    parser.add_argument("--warmup", type=int, default=3, help="steps that compile and settle")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--inputs", type=pathlib.Path,
                        help="folder of training_inputs: weights and batches in place of random ones; "
                             "then --steps counts from the first step")
    parser.add_argument("--losses", type=pathlib.Path, help="write the loss of every step here")
    return parser.parse_args()


class Batches:
    """Micro-batches of this replica: random, or those of a Millrace job."""

    def __init__(self, job, arguments, replica, num_replicas):
        self.m, self.replica = job["model"], replica
        self.micro_batch, self.micro_batches = arguments.micro_batch, arguments.micro_batches
        self.file = None
        if not arguments.inputs:
            torch.manual_seed(replica + 1)
            return
        needed = self.micro_batch * self.micro_batches * num_replicas
        if needed != job["global_batch"]:
            raise SystemExit(f"micro-batches of {needed} sequences in all, but the job's "
                             f"global_batch is {job['global_batch']}")
        path = arguments.inputs / "batches.i32"
        values = torch.from_file(str(path), shared=False, dtype=torch.int32,
                                 size=path.stat().st_size // 4)
        self.file = values.view(-1, 3, job["global_batch"], self.m["sequence_length"])

    def get(self, step, index):
        """Tokens, targets, attention mask (None: causal) of micro-batch `index`."""
        if self.file is None:
            data = torch.randint(self.m["vocab_size"],
                                 (self.micro_batch, self.m["sequence_length"] + 1), device="cuda")
            return data[:, :-1], data[:, 1:], None
        first = (self.replica * self.micro_batches + index) * self.micro_batch
        part = self.file[step - 1, :, first:first + self.micro_batch]
        tokens, targets, starts = part.to("cuda", torch.int64)
        return tokens, targets, fsdp_llama.document_mask(starts)


def make_optimizer(model, o):
    """AdamW as Millrace means it: norm weights do not decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": o["weight_decay"]},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]),
                             eps=o["epsilon"], fused=True)


@torch.compile
def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


class Peer:
    def __init__(self, job, arguments):
        self.job, self.arguments = job, arguments
        world = dist.get_world_size()
        mesh = init_device_mesh("cuda", (world // arguments.tensor, arguments.tensor),
                                mesh_dim_names=("data", "tensor"))
        self.tensor_parallel = arguments.tensor > 1
        self.attention, repeat_kv = "masked", True
        if not arguments.inputs and arguments.precision == "bf16":
            self.attention, repeat_kv = fsdp_llama.fastest_attention(
                job["model"], arguments.micro_batch, arguments.tensor)
        torch.manual_seed(job["seed"])
        with torch.device("cuda"):
            self.model = fsdp_llama.Llama(job["model"], repeat_kv)
        if arguments.inputs:
            from safetensors.torch import load_file
            weights = load_file(arguments.inputs / "initial.safetensors")
            self.model.load_state_dict(weights, strict=True)
        fsdp_llama.compile_and_shard(self.model, mesh, arguments.precision)
        self.optimizer = make_optimizer(self.model, job["optimizer"])
        self.batches = Batches(job, arguments, mesh["data"].get_local_rank(), mesh["data"].size())

    def step(self, step):
        """Returns loss of this replica and gradient norm, on the GPU."""
        for group in self.optimizer.param_groups:
            group["lr"] = job_dims.learning_rate_at(self.job, step)
        loss_sum = torch.zeros((), device="cuda")
        last = self.arguments.micro_batches - 1
        for index in range(last + 1):
            self.model.set_requires_gradient_sync(index == last)
            tokens, targets, mask = self.batches.get(step, index)
            with loss_parallel() if self.tensor_parallel else contextlib.nullcontext():
                loss = token_loss(self.model(tokens, mask), targets) / (last + 1)
                loss.backward()
            loss = loss.detach()
            loss_sum += loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(),
                                              self.job["gradient_clip_norm"] or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss_sum, norm

    def train(self):
        """Trains all steps; returns the seconds of each timed one."""
        arguments = self.arguments
        num_steps = arguments.steps + (0 if arguments.inputs else arguments.warmup)
        warmup = min(arguments.warmup, num_steps - 1)
        losses, norms, ends = [], [], []
        for step in range(1, num_steps + 1):
            loss, norm = self.step(step)
            losses.append(loss)
            norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
            if step == warmup:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        if arguments.losses:
            self.write_losses(torch.stack(losses), torch.stack(norms))
        timed = ends[max(0, warmup - 1):]
        return [a.elapsed_time(b) / 1e3 for a, b in zip(timed, timed[1:])]

    def write_losses(self, losses, norms):
        """Mean over the replicas; every rank of a tensor group has the same."""
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        if dist.get_rank() != 0:
            return
        with open(self.arguments.losses, "w", encoding="utf-8") as file:
            for step, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist()), 1):
                print(json.dumps({"step": step, "loss": loss, "grad_norm": norm}), file=file)


def main():
    arguments = parse_arguments()
    job = job_dims.read_job(arguments.job)
    others = [key for key in ("qkv_bias", "linear_bias", "qk_norm", "ties_embedding",
                              "learned_positions", "sliding_window", "rotary_dim",
                              "norm_adds_one", "output_norms", "scales_embedding",
                              "query_pre_attn_scalar", "attention_softcap",
                              "logit_softcap") if job["model"][key]]
    if others:
        raise SystemExit(f"{arguments.job}: this script trains Llama 3.0's family alone; the job's "
                         f"model has {', '.join(others)}")
    arguments.tensor = arguments.tensor or job["tensor"] or 1
    num_replicas = int(os.environ.get("WORLD_SIZE", "1")) // arguments.tensor
    arguments.micro_batch = (arguments.micro_batch or job["micro_batch"] or
                             max(1, job["global_batch"] // num_replicas))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "29531")):
        os.environ.setdefault(name, value)  # torchrun sets them where there are several.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    start = time.monotonic()
    peer = Peer(job, arguments)
    step_s = statistics.median(peer.train())
    tokens = arguments.micro_batch * arguments.micro_batches * job["model"]["sequence_length"]
    tokens_per_s = tokens / step_s / arguments.tensor
    full, causal = (f * tokens_per_s / PEAK_FLOPS for f in job_dims.flops_per_token(job["model"]))
    result = {"device": torch.cuda.get_device_name(), "num_gpus": dist.get_world_size(),
              "tensor": arguments.tensor, "micro_batch": arguments.micro_batch,
              "micro_batches": arguments.micro_batches, "precision": arguments.precision,
              "torch": torch.__version__, "attention": peer.attention, "step_time_s": step_s,
              "tokens_per_s_per_gpu": tokens_per_s, "mfu_full": full, "mfu_causal": causal,
              "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
              "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
              "total_s": time.monotonic() - start}
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
