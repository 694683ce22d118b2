"""Goal: checkpoints of torch.distributed.checkpoint become Hugging Face folders with equal
bits. Method: `millrace import --weights` of checkpoints that PyTorch 2.11 wrote
(tests/data/torch_checkpoints), and of one whose archives are written here by this machine's
torch.save and whose .metadata by Python's own pickle; folders are read by model_folder.

    torch_checkpoint_test.py PATH_OF_MILLRACE
"""

import collections
import json
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest

import torch

import model_folder

MILLRACE = None
ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = {**model_folder.TINY, "vocab_size": 20, "hidden": 8, "num_layers": 1, "num_heads": 2,
        "num_kv_heads": 1, "head_dim": 4, "ffn_hidden": 12}
METADATA = "torch.distributed.checkpoint.metadata"


def stand_in(module, name):
    """A class that pickles under the name of one that this PyTorch may lack."""
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
    made = type(name, (), {"__init__": lambda self, **state: self.__dict__.update(state)})
    made.__module__ = module
    setattr(sys.modules[module], name, made)
    return made


class Properties:
    """Pickles as PyTorch's TensorProperties do: its state is a tuple."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __getstate__(self):
        return (self.dtype, torch.strided, False, 0, False)


def write_checkpoint(folder, tensors, splits):
    """Each tensor cut along a dim into parts, one file each, as FSDP and tensor axes do."""
    folder.mkdir()
    Tensor, Chunk = stand_in(METADATA, "TensorStorageMetadata"), stand_in(METADATA, "ChunkStorageMetadata")
    Index, Metadata = stand_in(METADATA, "MetadataIndex"), stand_in(METADATA, "Metadata")
    Storage = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
    Properties.__module__, Properties.__qualname__ = METADATA, "TensorProperties"
    Properties.__name__ = "TensorProperties"
    sys.modules[METADATA].TensorProperties = Properties
    files, described, stored = collections.defaultdict(bytes), {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        item = pathlib.Path(scratch) / "item"
        for name, tensor in tensors.items():
            dim, count = splits(name, tensor)
            chunks, begin = [], 0
            for rank, part in enumerate(torch.chunk(tensor, count, dim)):
                torch.save(part.clone(), item)
                offsets = [0] * tensor.dim()
                offsets[dim] = begin
                begin += part.shape[dim]
                file = f"__{rank}_0.distcp"
                chunks.append(Chunk(offsets=torch.Size(offsets), sizes=part.shape))
                stored[Index(fqn=name, offset=torch.Size(offsets), index=rank)] = Storage(
                    relative_path=file, offset=len(files[file]), length=item.stat().st_size)
                files[file] += item.read_bytes()
            described[name] = Tensor(properties=Properties(tensor.dtype), size=tensor.shape,
                                     chunks=chunks)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    metadata = Metadata(state_dict_metadata=described, planner_data=None, storage_data=stored)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


class TorchCheckpointTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def model(self, m, dtype):
        folder = self.folder / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model_folder.llama_config(m, dtype)))
        (folder / "tokenizer.json").write_text("{}")
        return folder

    def import_weights(self, source, model):
        output = self.folder / f"out-{source.name}"
        return output, subprocess.run(
            [MILLRACE, "import", "--weights", source, "--model", model, "--output", output],
            capture_output=True, text=True)

    def check_equal(self, output, expected):
        read = model_folder.read_folder(output)
        self.assertEqual(set(read), set(expected))
        for name, tensor in expected.items():
            self.assertEqual(read[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(read[name], tensor), name)
        dtype = str(expected["model.embed_tokens.weight"].dtype).split(".")[1]
        self.assertEqual(json.loads((output / "config.json").read_text())["torch_dtype"], dtype)
        self.assertTrue((output / "tokenizer.json").exists())

    def test_reads_what_pytorch_wrote(self):
        with tarfile.open(ROOT / "tests/data/torch_checkpoints/torch-2.11.tar.gz") as archive:
            archive.extractall(self.folder)
        shapes = {name: tensor.shape for name, tensor in model_folder.tiny_llama(TINY).items()}
        for kind, dtype in [("one", torch.bfloat16), ("fsdp", torch.float32), ("2d", torch.bfloat16)]:
            expected = {}
            for name, shape in shapes.items():
                flat = (torch.arange(shape.numel()) * 7 + sum(name.encode())) % 251 / 16 - 8
                expected[name] = flat.reshape(shape).to(dtype)
            output, result = self.import_weights(self.folder / kind, self.model(TINY, "F32"))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("training state" in result.stdout, kind == "2d", result.stdout)
            self.check_equal(output, expected)

    def test_reads_what_this_torch_saves(self):
        m = model_folder.TINY
        columns = ("o_proj.weight", "down_proj.weight")
        for dtype in ["F32", "F16", "BF16"]:
            tensors = {name: tensor.to(model_folder.DTYPES[dtype])
                       for name, tensor in model_folder.tiny_llama(m).items()}
            source = self.folder / dtype
            write_checkpoint(source, tensors,
                             lambda name, _: (1 if name.endswith(columns) else 0, 4))
            output, result = self.import_weights(source, self.model(m, "F32"))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.check_equal(output, tensors)

    def test_executes_nothing(self):
        witness = self.folder / "witness"

        class Attack:
            def __reduce__(self):
                return (pathlib.Path.touch, (pathlib.Path(str(witness)),))

        source = self.folder / "attack"
        source.mkdir()
        (source / ".metadata").write_bytes(pickle.dumps(Attack()))
        output, result = self.import_weights(source, self.model(TINY, "F32"))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, r"attack/\.metadata: byte \d+: the name ")
        self.assertFalse(witness.exists() or output.exists())


if __name__ == "__main__":
    MILLRACE = sys.argv.pop(1)
    unittest.main()
