"""Memory that a trusted host shares with one candidate process: device memory by CUDA IPC, or a sealed file in memory.

The host makes every block and lends it; nothing that a candidate process makes is ever opened by the host. A block on the device is an
allocation of its own (CUDA IPC lends whole allocations, and torch's allocator keeps several tensors in one). A file in memory is sealed
against changes of its size, so that a candidate cannot take pages away that the host is about to read.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from evo.errors import DeviceError

ALIGNMENT = 512
"""Tensors start at multiples of this, as in torch's CUDA allocator, so that kernels are specialised as in real use."""
GUARD_BYTES = 4096
PATTERN = 0xA5
LAZY_ENABLE_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class SharedBlock:
    """One block of bytes, the host's side.

    Args:
        nbytes: Size.
        by_ipc: On the device, lent by CUDA IPC; else a file in memory, whose tensor is on the CPU.

    Attributes:
        tensor: All bytes, uint8.
        key: Tells blocks of this process apart.
        descriptor: Of the file, to be sent with `handle`; None for device memory.
    """

    _keys = itertools.count()

    def __init__(self, nbytes: int, *, by_ipc: bool) -> None:
        self.key = next(self._keys)
        self.nbytes = max(nbytes, ALIGNMENT)
        self.descriptor: int | None = None
        self._address = 0
        self._handle = b""
        if by_ipc:
            self._address, self._handle = _allocate(self.nbytes)
            self.tensor = _device_tensor(self._address, self.nbytes)
        else:
            self.descriptor = os.memfd_create("inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, self.nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.tensor = torch.frombuffer(mmap.mmap(self.descriptor, self.nbytes), dtype=torch.uint8)

    @property
    def handle(self) -> dict[str, Any]:
        """What `open_block` is given, in JSON."""
        return {"key": self.key, "nbytes": self.nbytes, "ipc": self._handle.hex()}

    def close(self) -> None:
        """Frees the memory; a file's pages go with the last process that maps them. Idempotent."""
        self.tensor = torch.empty(0, dtype=torch.uint8)
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        if self._address:
            torch.cuda.synchronize()
            _checked(_driver().cuMemFree_v2(ctypes.c_uint64(self._address)), "cuMemFree")
            self._address = 0


def open_block(handle: Mapping[str, Any], descriptor: int | None) -> torch.Tensor:
    """The candidate process's side of a block, which the trusted host made; the mapping lasts until the process ends."""
    nbytes = int(handle["nbytes"])
    if descriptor is not None:
        return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
    lent, address = _IpcHandle.from_buffer_copy(bytes.fromhex(handle["ipc"])), ctypes.c_uint64()
    open_handle = _driver().cuIpcOpenMemHandle_v2
    open_handle.argtypes = [ctypes.POINTER(ctypes.c_uint64), _IpcHandle, ctypes.c_uint]
    _checked(open_handle(ctypes.byref(address), lent, LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle")
    return _device_tensor(address.value, nbytes)


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in a block: its storage's first byte and bytes, and how it lies in the storage (strides in elements)."""

    start: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "shape": list(self.shape), "strides": list(self.strides)}

    def view(self, block: torch.Tensor) -> torch.Tensor:
        """The tensor in a block."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        flat = block[self.start : self.start + self.nbytes].view(dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset() + self.offset)


def lay_out(tensors: Sequence[torch.Tensor], start: int = 0) -> tuple[list[Slot], int]:
    """Slots for whole storages of tensors, with guard bands before, between and behind them, and the first byte after all."""
    slots, at = [], start + GUARD_BYTES
    for tensor in tensors:
        nbytes = tensor.untyped_storage().nbytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        slots.append(Slot(at, nbytes, dtype, shape, strides, int(tensor.storage_offset()), tensor.requires_grad))
        at = aligned(at + nbytes) + GUARD_BYTES
    return slots, at


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for none."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _allocate(nbytes: int) -> tuple[int, bytes]:
    torch.empty(1, device="cuda")  # makes torch's context this thread's
    address, lent = ctypes.c_uint64(), _IpcHandle()
    _checked(_driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)), "cuMemAlloc")
    code = _driver().cuIpcGetMemHandle(ctypes.byref(lent), ctypes.c_uint64(address.value))
    if code:
        _driver().cuMemFree_v2(ctypes.c_uint64(address.value))
    _checked(code, "cuIpcGetMemHandle")
    return address.value, bytes(lent)


def _device_tensor(address: int, nbytes: int) -> torch.Tensor:
    described = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=described), device="cuda")


def _checked(code: int, what: str) -> None:
    if code:
        raise DeviceError(f"{what} failed: CUDA driver error {code}")
