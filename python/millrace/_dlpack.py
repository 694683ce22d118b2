"""DLPack capsules of memory that Millrace owns, so that PyTorch, NumPy, CuPy or JAX can
use it without copies (https://dmlc.github.io/dlpack)."""

import ctypes

CPU, CUDA = 1, 2
_FLOAT = 2


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32),
                ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_ManagedTensor._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p),
                           ("deleter", _Deleter)]

# The objects that each managed tensor needs until it is deleted, by its address.
_alive = {}


@_Deleter
def _delete(address):
    _alive.pop(address, None)


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Deleter]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_NAME = b"dltensor"


@_Deleter
def _capsule_destroyed(capsule):
    # Whoever took the tensor renamed the capsule, and deletes the tensor.
    if _capsule_is(capsule, _NAME):
        _delete(_capsule_pointer(capsule, _NAME))


def make_capsule(data, shape, device_type, device_idx, owner):
    """A capsule of fp32 memory at address `data`, row-major; `owner` lives as long as the
    tensor that is made of it."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))()
    stride = 1
    for i in reversed(range(len(shape))):
        strides[i] = stride
        stride *= shape[i]
    managed = _ManagedTensor(
        _Tensor(data, _Device(device_type, device_idx), len(shape), _DataType(_FLOAT, 32, 1),
                sizes, strides, 0), None, _delete)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, sizes, strides, owner)
    return _capsule_new(address, _NAME, _capsule_destroyed)
