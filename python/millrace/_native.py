"""The functions and structs of python/native/trainer.h."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p

from millrace._library import Error, open_library

ABI_VERSION = 1


class Options(ctypes.Structure):
    _fields_ = [("job_file", c_char_p), ("rank", c_int32), ("num_ranks", c_int32),
                ("local_rank", c_int32), ("num_local_ranks", c_int32),
                ("rendezvous_folder", c_char_p), ("host_address", c_char_p)]


class Info(ctypes.Structure):
    _fields_ = [("global_batch", c_int64), ("sequence_length", c_int64),
                ("vocab_size", c_int64), ("num_steps", c_int64), ("completed_steps", c_int64),
                ("arena_bytes", c_int64), ("is_cuda", c_int32), ("device_idx", c_int32),
                ("predicted_step_s", c_double), ("layout", c_char_p), ("warnings", c_char_p)]


class Batch(ctypes.Structure):
    _fields_ = [("tokens", c_void_p), ("targets", c_void_p), ("document_starts", c_void_p)]


class StepResult(ctypes.Structure):
    _fields_ = [("step", c_int64), ("loss", c_double), ("gradient_norm", c_double),
                ("learning_rate", c_double), ("step_time_s", c_double), ("finite", c_int32)]


class StatePiece(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("rows", c_int64), ("cols", c_int64),
                ("row_begin", c_int64), ("row_end", c_int64), ("col_begin", c_int64),
                ("col_end", c_int64), ("begin", c_int64), ("end", c_int64),
                ("data", c_void_p), ("is_vector", c_int32)]


_SIGNATURES = {
    "open": [POINTER(Options), POINTER(c_void_p)],
    "get_info": [c_void_p, POINTER(Info)],
    "step": [c_void_p, POINTER(Batch), c_int32, POINTER(StepResult)],
    "validate": [c_void_p, c_int64, POINTER(c_double)],
    "get_state": [c_void_p, POINTER(POINTER(StatePiece)), POINTER(c_int64)],
    "take_changes": [c_void_p],
    "save": [c_void_p, c_char_p, c_int32],
    "load": [c_void_p, c_char_p],
}
_library = None


def library():
    global _library
    if _library is None:
        loaded = open_library("libmillrace_train.so")
        loaded.millrace_trainer_last_error.restype = c_char_p
        found = loaded.millrace_train_abi_version()
        if found != ABI_VERSION:
            raise Error(f"libmillrace_train.so has interface {found}, this package needs "
                        f"{ABI_VERSION}; take both from one build", code=9)
        loaded.millrace_trainer_close.argtypes = [c_void_p]
        loaded.millrace_trainer_close.restype = None
        for name, arguments in _SIGNATURES.items():
            getattr(loaded, "millrace_trainer_" + name).argtypes = arguments
        _library = loaded
    return _library


def call(name, *arguments):
    """Calls millrace_trainer_NAME and raises its error."""
    code = getattr(library(), "millrace_trainer_" + name)(*arguments)
    if code != 0:
        raise Error(library().millrace_trainer_last_error().decode(), code)
