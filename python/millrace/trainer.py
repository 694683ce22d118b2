"""One rank's training, step by step."""

import array
import ctypes
import dataclasses
import os
import tempfile

from millrace import _dlpack, _native
from millrace._library import Error

# Under which names launchers tell a process its place: rank, number of ranks, and both
# again among the processes of its host.
_LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
]
# Variables that tell one launch from another on a host.
_LAUNCH_NAMES = ["PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"]
_num_opened = 0


@dataclasses.dataclass(frozen=True)
class StepResult:
    step: int  # The first is 1.
    loss: float  # Mean over the trained tokens, in nats.
    gradient_norm: float  # Before clipping.
    learning_rate: float
    step_time_s: float
    finite: bool  # False: loss or gradient is not a number.


@dataclasses.dataclass(frozen=True)
class Info:
    global_batch: int  # Sequences of a step, over all ranks.
    sequence_length: int
    vocab_size: int
    num_steps: int
    completed_steps: int
    arena_bytes: int  # Memory of this rank.
    device: str  # "cpu" or "cuda:0".
    layout: str
    predicted_step_s: float
    warnings: list


class _Handle:
    """Closes the native trainer when neither Trainer nor tensors of its memory are left."""

    def __init__(self, options):
        self.pointer = ctypes.c_void_p()
        _native.call("open", ctypes.byref(options), ctypes.byref(self.pointer))

    def __del__(self):
        if self.pointer:
            _native.library().millrace_trainer_close(self.pointer)


class StatePiece:
    """A run of elements of one tensor, where it lies in the memory of this rank.

    `name` is the tensor's, `shape` its global shape, `rows` and `cols` the ranges of it
    that this rank's box holds, [begin, end) the elements of the box. `torch.from_dlpack`
    and `numpy.from_dlpack` take a piece without copying. Steps change its contents.
    """

    def __init__(self, piece, device, handle):
        self.name = piece.name.decode()
        self.shape = (piece.cols,) if piece.is_vector else (piece.rows, piece.cols)
        self.rows = (piece.row_begin, piece.row_end)
        self.cols = (piece.col_begin, piece.col_end)
        self.begin, self.end = piece.begin, piece.end
        self._data, self._device, self._handle = piece.data, device, handle

    @property
    def is_whole(self):
        """Whether it is all of the tensor, so that a tensor made of it has its shape."""
        size = 1
        for extent in self.shape:
            size *= extent
        return self.end - self.begin == size

    def __dlpack__(self, stream=None, **_):
        # All that wrote the memory is done: the native call waited.
        shape = self.shape if self.is_whole else (self.end - self.begin,)
        return _dlpack.make_capsule(self._data, shape, *self._device, self._handle)

    def __dlpack_device__(self):
        return self._device

    def __repr__(self):
        return f"StatePiece({self.name}, {self.shape}, elements {self.begin} to {self.end})"


def _place():
    for names in _LAUNCHERS:
        if all(name in os.environ for name in names):
            return [int(os.environ[name]) for name in names]
    return [0, 1, 0, 1]


def _default_rendezvous():
    for name in _LAUNCH_NAMES:
        if name in os.environ:
            launch = "".join(c if c.isalnum() else "-" for c in os.environ[name])
            return os.path.join(tempfile.gettempdir(),
                                f"millrace-{os.getuid()}-{launch}-{_num_opened}")
    raise Error("several ranks need a folder to find each other in: give rendezvous=, empty and "
                "seen by all of them", code=3)


def _flat(name, values, count):
    """The address of `count` int32 numbers, and what keeps them alive."""
    if hasattr(values, "detach"):  # PyTorch.
        values = values.detach().to("cpu").numpy()
    if hasattr(values, "astype"):  # NumPy.
        if values.size != count:
            raise Error(f"{name}: expected {count} numbers, found {values.size}", code=3)
        if values.dtype.kind not in "iu":
            raise Error(f"{name}: expected integers, found {values.dtype}", code=3)
        # Wider integers must not wrap into the vocabulary.
        if values.itemsize >= 4 and (values.min() < -2**31 or values.max() >= 2**31):
            raise Error(f"{name}: expected integers of 32 bits, found {values.min()} to "
                        f"{values.max()}", code=3)
        values = values.astype("int32", order="C", copy=False)
        return values.ctypes.data, values
    rows = values if values and not isinstance(values[0], int) else [values]
    try:
        numbers = array.array("i", (number for row in rows for number in row))
    except (TypeError, OverflowError) as error:
        raise Error(f"{name}: expected integers of 32 bits: {error}", code=3) from error
    if len(numbers) != count:
        raise Error(f"{name}: expected {count} numbers, found {len(numbers)}", code=3)
    return numbers.buffer_info()[0], numbers


class Trainer:
    """One rank of a job: planned, prepared, ready for its first step.

    Alone, a process is the whole job on one device. Started by mpirun or torchrun, each
    process is one rank, and all make the same calls. `rendezvous` is a folder, empty and
    seen by all ranks, through which they find each other; ranks of one host have one by
    default. `host_address` is how ranks on CPUs of other hosts reach this one.
    """

    def __init__(self, job, rendezvous=None, host_address=None):
        global _num_opened
        rank, num_ranks, local_rank, num_local_ranks = _place()
        if num_ranks > 1 and rendezvous is None:
            rendezvous = _default_rendezvous()
        _num_opened += 1
        self.rank, self.num_ranks = rank, num_ranks
        encode = lambda text: None if text is None else os.fsencode(text)
        self._handle = _Handle(_native.Options(
            encode(job), rank, num_ranks, local_rank, num_local_ranks, encode(rendezvous),
            encode(host_address)))

    @property
    def _pointer(self):
        if self._handle is None:
            raise Error("the trainer is closed", code=9)
        return self._handle.pointer

    def close(self):
        """Gives up the memory, once no tensor uses it any more."""
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def info(self):
        found = _native.Info()
        _native.call("get_info", self._pointer, ctypes.byref(found))
        return Info(
            global_batch=found.global_batch, sequence_length=found.sequence_length,
            vocab_size=found.vocab_size, num_steps=found.num_steps,
            completed_steps=found.completed_steps, arena_bytes=found.arena_bytes,
            device=f"cuda:{found.device_idx}" if found.is_cuda else "cpu",
            layout=found.layout.decode(), predicted_step_s=found.predicted_step_s,
            warnings=found.warnings.decode().splitlines())

    def step(self, batch=None, wait=True):
        """Runs the next step and returns its StepResult.

        `batch` is (tokens, targets) or (tokens, targets, document_starts), or a dict of
        these names: each [global_batch, sequence_length], the same on every rank, as
        PyTorch or NumPy arrays or lists. Without one the step trains on the job's data.
        With wait=False a GPU works on, and the result is that of the step before, or None.
        """
        native, kept = None, []
        if batch is not None:
            names = ["tokens", "targets", "document_starts"]
            given = batch if isinstance(batch, dict) else dict(zip(names, batch))
            unknown = [name for name in given if name not in names]
            if unknown or not isinstance(batch, dict) and len(batch) > len(names):
                raise Error(f"a batch has {', '.join(names)}; found {', '.join(unknown) or len(batch)}",
                            code=3)
            info = self.info
            native = _native.Batch()
            for name, values in given.items():
                if values is None:
                    continue
                address, owner = _flat(name, values, info.global_batch * info.sequence_length)
                setattr(native, name, address)
                kept.append(owner)
            native = ctypes.byref(native)
        result = _native.StepResult()
        _native.call("step", self._pointer, native, int(wait), ctypes.byref(result))
        if result.step == 0:
            return None
        return StepResult(result.step, result.loss, result.gradient_norm, result.learning_rate,
                          result.step_time_s, bool(result.finite))

    def train(self, batches=None, steps=None, callbacks=()):
        """Runs `steps` steps (by default the job's remaining ones, or as many as there are
        batches), and calls each callback with (trainer, result) after each. A callback that
        returns False ends the training; all ranks' callbacks must agree. Returns the last
        result."""
        batches = None if batches is None else iter(batches)
        if steps is None:
            info = self.info
            steps = info.num_steps - info.completed_steps
        result = None
        for _ in range(steps):
            batch = None
            if batches is not None:
                batch = next(batches, None)
                if batch is None:
                    break
            result = self.step(batch)
            # All are called, also behind one that says stop.
            if False in [callback(self, result) for callback in callbacks]:
                break
        return result

    def validate(self, num_batches=1):
        """The mean validation loss over batches of the job's data."""
        loss = ctypes.c_double()
        _native.call("validate", self._pointer, num_batches, ctypes.byref(loss))
        return loss.value

    def state(self):
        """Parameters and moments of this rank as StatePieces, without copies, in fp32: with
        bf16 these are the master weights. Waits for all steps that were started."""
        pieces, count = ctypes.POINTER(_native.StatePiece)(), ctypes.c_int64()
        _native.call("get_state", self._pointer, ctypes.byref(pieces), ctypes.byref(count))
        info = _native.Info()
        _native.call("get_info", self._pointer, ctypes.byref(info))
        device = (_dlpack.CUDA, info.device_idx) if info.is_cuda else (_dlpack.CPU, 0)
        return [StatePiece(pieces[i], device, self._handle) for i in range(count.value)]

    def parameters(self):
        """The parameters among the state. After changing them call take_changes()."""
        return [piece for piece in self.state()
                if not piece.name.endswith((".exp_avg", ".exp_avg_sq"))]

    def take_changes(self):
        """Lets the next step see parameters that were changed in place."""
        _native.call("take_changes", self._pointer)

    def save(self, directory, keep=3):
        """Writes a checkpoint into DIRECTORY/step-N; `millrace run` can go on from it."""
        _native.call("save", self._pointer, os.fsencode(directory), keep)

    def load(self, path):
        """Goes on from a checkpoint, the folder step-N, written under any layout."""
        _native.call("load", self._pointer, os.fsencode(path))
