"""Goal: weights that come in from a Hugging Face folder are those that PyTorch reads there,
and a folder that Millrace writes computes in PyTorch what Millrace computes. Method: folders
of random weights are written here, in every type and in shards; oracle_dump trains from
them, and oracle_test's comparison of losses, gradients and weights runs on that. Its last
checkpoint is exported, read here, and trained from again.

    weights_test.py PATH_OF_ORACLE_DUMP PATH_OF_MILLRACE
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

import llama
import model_folder
import oracle_test

MILLRACE = None
# Widths that nothing divides; positions for the case's sequences of 50.
MODEL = {**model_folder.TINY, "vocab_size": 67, "hidden": 24, "num_heads": 3, "num_kv_heads": 3,
         "ffn_hidden": 41, "sequence_length": 64, "init_std": 0.1}
GPT2 = {**MODEL, "feed_forward": "gelu", "norm": "layer", "learned_positions": 64,
        "qkv_bias": True, "linear_bias": True, "ties_embedding": True}
# Fewer heads of keys than of queries.
PHI3 = {**MODEL, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4}
PHI4_MINI = {**MODEL, "num_heads": 3, "ties_embedding": True, "rotary_dim": 6,
             "rope_factors": [1.0, 2.5, 7.0]}
GEMMA2 = {**MODEL, "num_layers": 3, "feed_forward": "geglu", "ties_embedding": True,
          "qk_norm": False, "norm_adds_one": True, "output_norms": True, "scales_embedding": True,
          "sliding_window": 9, "global_layer_period": 2, "query_pre_attn_scalar": 12,
          "attention_softcap": 1.5, "logit_softcap": 2.0}
GEMMA3 = {**GEMMA2, "qk_norm": True, "attention_softcap": 0, "logit_softcap": 0,
          "global_layer_period": 3, "sliding_rope_theta": 50.0}


class WeightsTest(oracle_test.ComparisonTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train_from(self, source, name):
        """Checks ten steps from the folder against PyTorch; returns the dump."""
        dump = oracle_test.Dump("plain", self.folder / name, source)
        weights = model_folder.as_llama(model_folder.read_folder(source), dump.case["model"])
        initial = dump.tensors("initial")
        self.assertEqual(set(weights), set(initial))
        for key, tensor in weights.items():
            self.assertTrue(torch.equal(tensor.double(), initial[key]), key)
        self.check_dump(name, dump)
        return dump

    def export(self, dump, output, *arguments):
        steps = sorted((dump.folder / "checkpoints").glob("step-*"))
        subprocess.run([MILLRACE, "checkpoint", "export", steps[-1], output, "--to",
                        "huggingface", *arguments], check=True, stdout=subprocess.DEVNULL)

    def check_logits(self, dump, final, folder, dtype):
        """Logits of a folder, read by its config.json, against those of the weights as they
        were trained. A matrix whose weights are off by a share u moves what it gives by about
        that share, and a token passes six products a layer beside embedding and head."""
        trained = llama.Llama(dump.case["model"]).double()
        trained.load_state_dict(final, strict=True)
        exported = model_folder.llama_of_folder(folder)
        tokens, _, document_starts = dump.batch(1)
        with torch.no_grad():
            expected = trained.logits(tokens, document_starts)
            logits = exported.logits(tokens, document_starts)
        half_ulp = {"fp32": 0.0, "fp16": 2.0 ** -11, "bf16": 2.0 ** -8}[dtype]
        bound = half_ulp * (6 * MODEL["num_layers"] + 2)
        error = oracle_test.relative_error(logits, expected)
        print(f"logits of the folder in {dtype}: off by {error:.1e}, at most {bound:.1e}")
        self.assertLessEqual(error, bound, dtype)

    def test_reads_what_pytorch_wrote(self):
        for dtype, shards in [("F32", 1), ("F16", 2), ("BF16", 3)]:
            source = self.folder / dtype
            model_folder.write_folder(source, model_folder.llama_config(MODEL, dtype),
                                      model_folder.tiny_llama(MODEL), dtype, shards)
            self.train_from(source, f"from-{dtype}")

    def check_packed(self, m, config, pack):
        """In a family's own names: trains as PyTorch does, comes out under the same names."""
        source, output = self.folder / "source", self.folder / "out"
        packed = pack(model_folder.tiny_llama(m), m)
        model_folder.write_folder(source, config(m, "F32"), packed, "F32", 2)
        dump = self.train_from(source, "first")
        self.export(dump, output, "--dtype", "fp32", "--max-shard-size", "8kB")
        exported = model_folder.read_folder(output)
        self.assertEqual({name: tensor.shape for name, tensor in exported.items()},
                         {name: tensor.shape for name, tensor in packed.items()})
        final = dump.tensors("final")
        for key, tensor in model_folder.as_llama(exported, dump.case["model"]).items():
            self.assertTrue(torch.equal(tensor.double(), final[key]), key)
        self.train_from(output, "again")

    def test_gpt2(self):
        self.check_packed(GPT2, model_folder.gpt2_config, model_folder.to_gpt2)

    def test_phi3(self):
        self.check_packed(PHI3, model_folder.phi3_config, model_folder.to_fused)

    def test_phi4_mini(self):
        self.check_packed(PHI4_MINI, model_folder.phi4_mini_config, model_folder.to_fused)

    def test_gemma2(self):
        self.check_packed(GEMMA2, model_folder.gemma_config, lambda state, m: state)

    def test_gemma3(self):
        self.check_packed(GEMMA3, model_folder.gemma_config, lambda state, m: state)

    def test_reads_the_first_folders_of_gpt2(self):
        """Their names lack a prefix, and they carry masks."""
        packed = {name.removeprefix("transformer."): tensor for name, tensor in
                  model_folder.to_gpt2(model_folder.tiny_llama(GPT2), GPT2).items()}
        for layer in range(GPT2["num_layers"]):
            packed[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        source = self.folder / "source"
        model_folder.write_folder(source, model_folder.gpt2_config(GPT2, "F32"), packed, "F32")
        initial = oracle_test.Dump("plain", self.folder / "dump", source).tensors("initial")
        for key, tensor in model_folder.tiny_llama(GPT2).items():
            self.assertTrue(torch.equal(tensor.double(), initial[key]), key)

    def test_writes_what_pytorch_reads(self):
        source = self.folder / "source"
        model_folder.write_folder(source, model_folder.llama_config(MODEL, "BF16"),
                                  model_folder.tiny_llama(MODEL), "BF16")
        dump = self.train_from(source, "first")
        final = dump.tensors("final")
        for name, dtype in [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]:
            output = self.folder / f"out-{name}"
            self.export(dump, output, "--dtype", name, "--max-shard-size", "8kB")
            config = json.loads((output / "config.json").read_text())
            self.assertEqual(config["torch_dtype"], str(dtype).split(".")[1])
            self.assertEqual(config["model_type"], "llama")
            exported = model_folder.read_folder(output)
            self.assertEqual(set(exported), set(final))
            for key, tensor in final.items():
                expected = tensor.float().to(dtype)
                self.assertTrue(torch.equal(exported[key], expected), (name, key))
            self.assertGreater(len(list(output.glob("*.safetensors"))), 2)
            self.check_logits(dump, final, output, name)
        # The default is bf16 in one file, from which training goes on.
        self.export(dump, self.folder / "out")
        self.assertTrue((self.folder / "out" / "model.safetensors").exists())
        self.train_from(self.folder / "out", "again")


if __name__ == "__main__":
    oracle_test.ORACLE_DUMP, MILLRACE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
