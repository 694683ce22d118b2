"""Goal: folders that Millrace writes open in Hugging Face's own libraries, as the same tensors
and the same model; folders that Transformers writes train here. Method: Transformers makes a
small random model of each family and saves it; oracle_dump trains from it for ten steps; the
export is opened by Transformers, and its logits are compared with llama.py's.

    transformers_test.py PATH_OF_ORACLE_DUMP PATH_OF_MILLRACE

Needs torch, transformers and safetensors, so it runs on machines that have them, not in CI.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GPT2Config,
                          LlamaConfig, Phi3Config, Qwen2Config, Qwen3Config)

import llama
import model_folder
import oracle_test

MILLRACE = None
# fp32 sums in another order.
TOLERANCE = 1e-5
SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, initializer_range=0.1, attention_dropout=0.0)
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48, "rope_theta": 10000.0}
# The dump's sequences of 50 tokens, and the logits' of 40, are longer than those seen first.
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0],
            "long_factor": [1.0, 2.5, 7.0]}
GEMMA = {**SIZES, "num_hidden_layers": 3, "head_dim": 8, "query_pre_attn_scalar": 12,
         "sliding_window": 9}
FAMILIES = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama3": LlamaConfig(**SIZES, rope_scaling=ROPE, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False),
    "phi3": Phi3Config(**SIZES, tie_word_embeddings=False, pad_token_id=None),
    "phi4_mini": Phi3Config(**SIZES, tie_word_embeddings=True, pad_token_id=None,
                            partial_rotary_factor=0.75, original_max_position_embeddings=32,
                            rope_scaling=LONGROPE),
    "gemma2": Gemma2Config(**GEMMA, attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma3": Gemma3TextConfig(**GEMMA, layer_types=["sliding_attention", "sliding_attention",
                                                     "full_attention"]),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                       initializer_range=0.1, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
}


class TransformersTest(oracle_test.ComparisonTest):
    def check_family(self, name):
        with tempfile.TemporaryDirectory() as root:
            root = pathlib.Path(root)
            source, output = root / "source", root / "out"
            torch.manual_seed(3)
            theirs = AutoModelForCausalLM.from_config(FAMILIES[name],
                                                      attn_implementation="eager")
            theirs.to(torch.bfloat16).save_pretrained(source)
            dump = oracle_test.Dump("plain", root / "dump", source)
            self.check_dump(name, dump)
            steps = sorted((root / "dump" / "checkpoints").glob("step-*"))
            subprocess.run([MILLRACE, "checkpoint", "export", steps[-1], output, "--to",
                            "huggingface", "--max-shard-size", "20kB"], check=True)
            weights = model_folder.read_folder(output)
            for path in output.glob("*.safetensors"):
                for key, tensor in load_file(path).items():
                    self.assertTrue(torch.equal(tensor, weights[key]), key)
            opened = AutoModelForCausalLM.from_pretrained(
                output, attn_implementation="eager").float()
            self.assertEqual(type(opened), type(theirs))
            ours = llama.Llama(dump.case["model"])
            weights = model_folder.as_llama(weights, dump.case["model"])
            ours.load_state_dict({k: t.float() for k, t in weights.items()}, strict=True)
            tokens = torch.randint(0, SIZES["vocab_size"], (2, 40))
            starts = torch.zeros_like(tokens)
            targets = torch.roll(tokens, -1, 1)
            loss = ours.loss(tokens, targets, starts)
            logits = opened(input_ids=tokens).logits
            expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.assertLess(abs(loss.item() / expected.item() - 1), TOLERANCE)


def add_tests():
    for name in FAMILIES:
        setattr(TransformersTest, f"test_{name}", lambda self, name=name: self.check_family(name))


if __name__ == "__main__":
    oracle_test.ORACLE_DUMP, MILLRACE = sys.argv.pop(1), sys.argv.pop(1)
    add_tests()
    unittest.main()
