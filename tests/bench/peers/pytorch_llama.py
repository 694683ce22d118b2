"""PyTorch eager as step_bench's peer: the oracle's model in fp32, torch.optim.AdamW
and clipping, on random tokens. Same protocol: see tests/bench/step_bench.cc.

    pytorch_llama.py JOB THREADS

JOB is what step_bench prints as "job" when it is ready.
"""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "oracle"))

import torch

import llama


def fast_blas():
    """The BLAS that PyTorch has loaded, refused if it is Debian's plain reference:
    that is ten times slower, and a race against it would flatter Millrace."""
    loaded = [line.split()[-1] for line in open("/proc/self/maps")]
    for path in loaded:
        if any(name in path for name in ("openblas", "mkl_", "blis")):
            return pathlib.Path(path).name
    sys.exit("pytorch_llama.py: PyTorch would multiply with the reference BLAS; "
             "install libopenblas0-pthread")


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    torch.manual_seed(1)
    m = job["model"]
    model = llama.Llama(m)
    optimizer = llama.adamw(model, job["optimizer"])
    shape = (job["global_batch"], m["sequence_length"])

    def step():
        data = torch.randint(m["vocab_size"], (shape[0], shape[1] + 1))
        document_starts = torch.zeros(shape, dtype=torch.int64)
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(data[:, :-1], data[:, 1:], document_starts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["gradient_clip_norm"])
        optimizer.step()
        return loss.item()

    print(json.dumps({"tokens_per_step": shape[0] * shape[1],
                      "layout": f"PyTorch {torch.__version__} eager, {fast_blas()}"}), flush=True)
    for line in sys.stdin:
        start, start_cpu = time.monotonic(), time.process_time()
        for _ in range(int(line)):
            loss = step()
        print(json.dumps({"seconds": time.monotonic() - start,
                          "cpu_seconds": time.process_time() - start_cpu,
                          "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
