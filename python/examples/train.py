"""Trains a job from Python, with batches of its own and a look at the weights.

    PYTHONPATH=python python3 python/examples/train.py JOB.yaml [STEPS]
    PYTHONPATH=python mpirun -n 2 python3 python/examples/train.py JOB.yaml
"""

import random
import sys

import millrace


def batches(info):
    """Counting modulo the vocabulary: what follows is easy to learn."""
    numbers = random.Random(1)
    while True:
        rows = [[(first + i) % info.vocab_size for i in range(info.sequence_length + 1)]
                for first in numbers.choices(range(info.vocab_size), k=info.global_batch)]
        yield [row[:-1] for row in rows], [row[1:] for row in rows]


def report(trainer, result):
    if trainer.rank == 0:
        print(f"step {result.step}: loss {result.loss:.4f}, {result.step_time_s * 1e3:.1f} ms")


with millrace.Trainer(sys.argv[1]) as trainer:
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else None
    trainer.train(batches(trainer.info), steps, callbacks=[report])
    for piece in trainer.parameters()[:3]:
        print(f"rank {trainer.rank} holds {piece}")
