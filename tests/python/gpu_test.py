"""python/millrace on a GPU: kernels against PyTorch in fp64, a Trainer against
`millrace run`, weights as CUDA tensors.

    gpu_test.py PATH_OF_MILLRACE FOLDER_OF_LIBRARIES

Needs a GPU, PyTorch, and libmillrace_kernels.so in the same folder or a build folder's.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
MILLRACE = None
# Results are rounded to bf16 once, sums of many terms are fp32.
TOLERANCE = 1e-2

JOB = """name: from-python
model:
  family: llama
  vocab_size: 512
  hidden: 256
  layers: 2
  heads: 4
  kv_heads: 2
  ffn_hidden: 512
  sequence_length: 128
data: {synthetic: true}
training:
  steps: 6
  global_batch: 4
  seed: 5
  precision: bf16
  deterministic: true
  optimizer: {learning_rate: 1e-2, warmup_steps: 1}
resources: {backend: cuda, devices_per_agent: 1}
checkpoint: {at_end: false}
profile: configs/hardware/h200-sxm.yaml
"""


def random(*shape, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    tensor = torch.randn(*shape, device="cuda", generator=generator)
    return tensor.to(torch.bfloat16).requires_grad_()


def exact(tensor):
    return tensor.detach().double().requires_grad_()


class KernelTest(unittest.TestCase):
    def compare(self, ours, expected, name):
        self.assertTrue(torch.isfinite(ours).all(), name)
        error = (ours.double() - expected).norm() / expected.norm()
        self.assertLess(error.item(), TOLERANCE, name)

    def check(self, ours, reference, *inputs):
        """Results and all gradients, under a random gradient of the result."""
        result = ours(*inputs)
        exacts = [exact(tensor) for tensor in inputs]
        expected = reference(*exacts)
        self.compare(result, expected, "result")
        gradient = torch.randn_like(result)
        result.backward(gradient)
        expected.backward(gradient.double())
        for i, (tensor, other) in enumerate(zip(inputs, exacts)):
            self.compare(tensor.grad, other.grad, f"gradient {i}")
            self.assertEqual(tensor.grad.dtype, tensor.dtype)

    def test_rms_norm(self):
        from millrace import kernels
        self.check(lambda x, w: kernels.rms_norm(x, w, 1e-5),
                   lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w,
                   random(3, 100, 768, seed=1), random(768, seed=2))

    def test_attention(self):
        from millrace import kernels
        for head_dim, window, causal in [(64, 0, True), (128, 0, True), (128, 50, True),
                                         (96, 0, False)]:
            def reference(q, k, v):
                k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
                scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / head_dim**0.5
                i = torch.arange(q.shape[1], device="cuda")
                hidden = (i[None, :] > i[:, None]) if causal else (i[None, :] < 0)
                if window:
                    hidden = hidden | (i[:, None] - i[None, :] >= window)
                return torch.einsum("bhqk,bkhd->bqhd",
                                    scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
            with self.subTest(head_dim=head_dim, window=window, causal=causal):
                self.check(lambda q, k, v: kernels.attention(q, k, v, causal, window), reference,
                           random(2, 200, 4, head_dim, seed=3),
                           random(2, 200, 2, head_dim, seed=4),
                           random(2, 200, 2, head_dim, seed=5))

    def test_attention_reads_a_packed_projection_in_place(self):
        from millrace import kernels
        packed = random(2, 128, 8, 64, seed=6)
        q, k, v = packed[:, :, :4], packed[:, :, 4:6], packed[:, :, 6:]
        apart = [t.detach().contiguous() for t in (q, k, v)]
        self.assertTrue(torch.equal(kernels.attention(q, k, v), kernels.attention(*apart)))

    def test_linear_cross_entropy(self):
        from millrace import kernels
        targets = torch.randint(0, 1000, (300,), device="cuda")
        targets[::7] = -1
        targets_or_ignored = torch.where(targets < 0, -100, targets)
        hidden = random(3, 100, 256, seed=7)
        # Logits of about one: kernels round them to bf16, as PyTorch's bf16 does.
        head = (random(1000, 256, seed=8) / 16).detach().requires_grad_()
        self.check(lambda h, w: kernels.linear_cross_entropy(h, w, targets.reshape(3, 100)),
                   lambda h, w: torch.nn.functional.cross_entropy(
                       h.reshape(-1, 256) @ w.T, targets_or_ignored), hidden, head)

    def test_refuses(self):
        from millrace import kernels
        x = torch.zeros(4, 64, device="cuda")
        with self.assertRaisesRegex(millrace.Error, "bfloat16"):
            kernels.rms_norm(x, x[0])
        q = random(1, 16, 2, 80, seed=9)
        with self.assertRaisesRegex(millrace.Error, "80"):
            kernels.attention(q, q, q)


class CudaTrainerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = str(self.folder / "job.yaml")
        pathlib.Path(self.job).write_text(JOB)

    def test_steps_are_those_of_a_run(self):
        with millrace.Trainer(self.job) as trainer:
            self.assertEqual(trainer.info.device, "cuda:0")
            losses = [trainer.step().loss for _ in range(6)]
        with millrace.Trainer(self.job) as trainer:
            late = [trainer.step(wait=False) for _ in range(6)]
            self.assertIsNone(late[0])
            self.assertEqual([r.loss for r in late[1:]], losses[:5])
        subprocess.run([MILLRACE, "run", self.job], check=True, stdout=subprocess.DEVNULL)
        run = max((ROOT / "runs").glob("from-python-2*"))
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(losses, [r["loss"] for r in records if "loss" in r])

    def test_targets_of_minus_one_are_not_trained(self):
        tokens = torch.randint(0, 512, (4, 129))
        given, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        masked = torch.full_like(targets, -1)
        masked[1, 30:90] = targets[1, 30:90]
        results = []
        for t, y in [(given, masked), (given[1:2].repeat(4, 1), masked[1:2].repeat(4, 1))]:
            with millrace.Trainer(self.job) as trainer:
                results.append(trainer.step((t, y)))
        self.assertAlmostEqual(results[0].loss, results[1].loss, places=4)
        self.assertAlmostEqual(results[0].gradient_norm / results[1].gradient_norm, 1, places=2)
        with millrace.Trainer(self.job) as trainer:
            with self.assertRaisesRegex(millrace.Error, "0 trained tokens"):
                trainer.step((given, torch.full_like(targets, -1)))
                trainer.step((given, targets))

    def test_weights_are_cuda_tensors(self):
        tokens = torch.randint(0, 512, (4, 129))
        given = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        with millrace.Trainer(self.job) as trainer:
            pieces = {p.name: torch.from_dlpack(p) for p in trainer.parameters()}
            head = pieces["lm_head.weight"]
            self.assertEqual((head.device.type, tuple(head.shape)), ("cuda", (512, 256)))
            before = head.clone()
            trainer.step(given)
            self.assertFalse(torch.equal(before, head))
            head.zero_()
            torch.cuda.synchronize()
            trainer.take_changes()
            self.assertAlmostEqual(trainer.step(given).loss,
                                   torch.log(torch.tensor(512.0)).item(), places=4)


if __name__ == "__main__":
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    os.environ["MILLRACE_LIBRARY_PATH"] = os.path.abspath(sys.argv.pop(1))
    import millrace
    os.chdir(ROOT)
    unittest.main()
