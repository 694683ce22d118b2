"""Goal: Millrace computes what the Llama equations and AdamW say. Method:
oracle_dump trains a small model of odd sizes for ten steps and writes weights,
batches, losses and gradients; PyTorch computes the same in double precision from
the initial weights and the batches alone, and the two are compared.

    oracle_test.py PATH_OF_ORACLE_DUMP
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch

import llama

# Relative, norm-wise per tensor. fp32 sums of a few thousand terms differ from
# exact ones by about 1e-6; a wrong term shows at 1e-2 or more. Weights have taken
# ten steps of AdamW, which divides by gradients, small ones too.
TOLERANCES = {"loss": 1e-5, "gradient": 1e-5, "weight": 1e-4}
ORACLE_DUMP = None


def learning_rate(case, step):
    """Linear warmup from zero, then decay to the minimum at the last step."""
    o = case["optimizer"]
    if step <= o["warmup_steps"]:
        return o["learning_rate"] * step / o["warmup_steps"]
    progress = (step - o["warmup_steps"]) / (case["num_steps"] - o["warmup_steps"])
    remaining = 1 - progress if o["decay"] == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return o["min_learning_rate"] + (o["learning_rate"] - o["min_learning_rate"]) * remaining


class Dump:
    """The files that oracle_dump wrote for one case."""

    def __init__(self, name, folder, model_folder=None):
        self.folder = pathlib.Path(folder)
        arguments = [] if model_folder is None else [model_folder]
        subprocess.run([ORACLE_DUMP, name, folder, *arguments], check=True)
        self.case = json.loads((self.folder / "case.json").read_text())

    def tensors(self, kind):
        result = {}
        for parameter in self.case["parameters"]:
            data = numpy.fromfile(self.folder / kind / parameter["name"], dtype="<f4")
            shaped = data.reshape(parameter["shape"]).astype(numpy.float64)
            result[parameter["name"]] = torch.from_numpy(shaped)
        return result

    def batch(self, step):
        data = numpy.fromfile(self.folder / f"step-{step}.batch", dtype="<i4")
        shape = (-1, self.case["global_batch"], self.case["model"]["sequence_length"])
        arrays = data.reshape(shape)
        if len(arrays) == 3:
            return torch.from_numpy(arrays.astype(numpy.int64))
        references = torch.from_numpy(arrays[4].view("<f4").astype(numpy.float64))
        return [*torch.from_numpy(arrays[:4].astype(numpy.int64)), references]


def has_no_gradient(case, name):
    """A bias of keys that are not rotated shifts all scores of a query alike, which
    softmax does not see: rounding alone decides its gradient and where it goes."""
    return case["model"]["learned_positions"] > 0 and name.endswith("k_proj.bias")


def relative_error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


def parameter_named(model, name):
    return dict(model.named_parameters())[name]


class ComparisonTest(unittest.TestCase):
    """The checks, of no case of its own."""

    def check_case(self, name):
        with tempfile.TemporaryDirectory() as folder:
            self.check_dump(name, Dump(name, folder))

    def check_dump(self, name, dump):
        model = llama.Llama(dump.case["model"]).double()
        # strict: the names and shapes of both must be the same set.
        model.load_state_dict(dump.tensors("initial"), strict=True)
        optimizer = llama.adamw(model, dump.case["optimizer"])
        self.worst = {"gradient": 0.0, "weight": 0.0, "loss": 0.0}
        for step, measured in enumerate(dump.case["steps"], 1):
            self.check_step(dump, model, optimizer, step, measured)
        final = dump.tensors("final")
        for key, parameter in model.named_parameters():
            if not has_no_gradient(dump.case, key):
                self.check(relative_error(final[key], parameter.data), "weight", key)
        print(f"{name}: largest relative errors", self.worst)

    def check(self, error, kind, what):
        self.worst[kind] = max(self.worst[kind], error)
        self.assertLess(error, TOLERANCES[kind], f"{kind} of {what}")

    def loss(self, dump, model, step, measured):
        tokens, targets, document_starts = dump.batch(step)
        return model.loss(tokens, targets, document_starts)

    def gradient_factor(self, dump):
        """Of the gradients that Programs compute, before kClipFactor's factor."""
        return 1

    def check_step(self, dump, model, optimizer, step, measured):
        self.assertGreater(int(dump.batch(step)[2].max()), 0)  # Else masks go untested.
        optimizer.zero_grad()
        loss = self.loss(dump, model, step, measured)
        loss.backward()
        self.check(abs(measured["loss"] / loss.item() - 1), "loss", f"step {step}")
        if step == 1:
            gradients = dump.tensors("gradient")
            for key, parameter in model.named_parameters():
                if has_no_gradient(dump.case, key):
                    query = parameter_named(model, key.replace("k_proj", "q_proj"))
                    self.check(float(gradients[key].norm() / query.grad.norm()), "gradient", key)
                    continue
                self.check(relative_error(gradients[key] * self.gradient_factor(dump), parameter.grad),
                           "gradient", key)

        norm = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters()))
        self.check(abs(measured["gradient_norm"] / norm - 1), "gradient", f"norm of step {step}")
        clip = dump.case["gradient_clip_norm"]
        if clip > 0:
            self.assertGreater(norm, clip)  # Else clipping goes untested.
            for parameter in model.parameters():
                parameter.grad *= clip / norm
        rate = learning_rate(dump.case, step)
        self.assertAlmostEqual(measured["learning_rate"], rate, delta=1e-12)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


class OracleTest(ComparisonTest):
    def test_grouped_query_attention_with_clipping(self):
        self.check_case("grouped")

    def test_plain_attention_with_linear_decay(self):
        self.check_case("plain")

    def test_scaled_rotary_positions(self):
        self.check_case("scaled_rope")

    def test_biases_of_query_key_and_value(self):
        self.check_case("biases")

    def test_tied_embedding(self):
        self.check_case("tied")

    def test_gpt2(self):
        self.check_case("gpt2")

    def test_biases_of_all_products(self):
        self.check_case("all_biases")

    def test_norms_of_query_and_key(self):
        self.check_case("qk_norm")

    def test_sliding_window(self):
        self.check_case("sliding_window")

    def test_gemma2(self):
        self.check_case("gemma2")

    def test_gemma3(self):
        self.check_case("gemma3")

    def test_phi4_mini(self):
        self.check_case("phi4_mini")

    def test_gelu_by_erf(self):
        self.check_case("gelu_erf")


class PreferenceTest(ComparisonTest):
    """Direct preference optimization as its paper states it, pair by pair."""

    def test_pairs_with_label_smoothing(self):
        self.check_case("preference")

    def gradient_factor(self, dump):
        return dump.case["model"]["sequence_length"] / 2  # Two pairs a sequence.

    def loss(self, dump, model, step, measured):
        tokens, targets, documents, pairs, references = dump.batch(step)
        beta = dump.case["preference"]["beta"]
        smoothing = dump.case["preference"]["label_smoothing"]
        logs = torch.log_softmax(model.logits(tokens, documents), dim=-1)
        of_targets = logs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        of_targets = torch.where(targets >= 0, of_targets, torch.zeros_like(of_targets))
        losses, rewards = [], []
        for row in range(len(tokens)):
            for begin in sorted(set(pairs[row].tolist()) - {-1}):
                is_chosen = (pairs[row] == begin) & (documents[row] == begin)
                is_rejected = (pairs[row] == begin) & (documents[row] != begin)
                reward = [beta * (of_targets[row][answer].sum() - references[row][answer][0])
                          for answer in (is_chosen, is_rejected)]
                margin = reward[0] - reward[1]
                losses.append(-(1 - smoothing) * torch.nn.functional.logsigmoid(margin)
                              - smoothing * torch.nn.functional.logsigmoid(-margin))
                rewards.append([float(r) for r in reward])
        self.assertEqual(len(losses), 2 * len(tokens))
        expected = numpy.array(rewards)
        self.check(abs(measured["rewards"]["chosen"] - expected[:, 0].mean()), "loss", "chosen")
        self.check(abs(measured["rewards"]["rejected"] - expected[:, 1].mean()), "loss", "rejected")
        accuracy = (expected[:, 0] > expected[:, 1]).mean()
        self.check(abs(measured["rewards"]["accuracy"] - accuracy), "loss", "accuracy")
        return torch.stack(losses).mean()


if __name__ == "__main__":
    ORACLE_DUMP = sys.argv.pop(1)
    unittest.main()
