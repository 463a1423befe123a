"""Triton's interpreter made to check every address before it follows it, and to round what a GPU rounds.

Every masked-in address of a load, store or atomic must lie inside a tensor that the launch was given. What runs here is told a person
or a model as a message; it is no wall, since candidate Python shares the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from evo.evaluation.as_compiled import AsCompiled


class OutOfBounds(Exception):
    """A kernel touched memory outside of the tensors it was given."""


def watch_memory(*, backwards: bool = False) -> None:
    """Makes the interpreter check addresses before it follows them, and round what a GPU would; lasts until this process ends."""
    builder = interpreter.interpreter_builder
    _WatchedBuilder.backwards = backwards
    if isinstance(builder, _WatchedBuilder):
        return
    builder.__class__ = _WatchedBuilder
    builder.watch([])
    make_arguments = interpreter.GridExecutor._init_args_hst

    def noted_arguments(self: Any, args: Any, kwargs: Any) -> Any:
        host = make_arguments(self, args, kwargs)
        named = [*zip(self.arg_names, host[0], strict=False), *host[1].items()]
        builder.watch(sorted(found for name, item in named for found in _ranges(name, item)))
        return host

    interpreter.GridExecutor._init_args_hst = noted_arguments
    interpreter.FunctionRewriter.ast_transformer = AsCompiled(interpreter.FunctionRewriter.ast_transformer)
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # Triton 3.6 converts arrays of one element with int(), which numpy refuses from 2.4 on.
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index
    patch_language = interpreter._patch_lang

    def patch_language_once(function: Any) -> Any:
        # Triton does it at every call of a function by a kernel, which takes longer than most of what they compute.
        if function in builder.patched:
            return interpreter._LangPatchScope()
        builder.patched.add(function)
        return patch_language(function)

    interpreter._patch_lang = patch_language_once


def _ranges(name: str, item: Any) -> list[tuple[int, int, str]]:
    if isinstance(item, tuple):
        return [found for part in item for found in _ranges(name, part)]
    tensor = getattr(item, "base", item)  # a TensorDescriptor's tensor (None for most tensors), or a TensorWrapper's
    tensor = item if tensor is None else tensor
    if not isinstance(tensor, torch.Tensor):
        return []
    storage = tensor.untyped_storage()
    return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)]


class _WatchedBuilder(interpreter.InterpreterBuilder):  # type: ignore[misc]
    """Triton's interpreter with bounds: (first byte, end, parameter name) of every storage of the present launch, and the functions for
    which that launch has put the interpreter's operations in place of the language's."""

    ranges: list[tuple[int, int, str]]
    patched: set[Any]
    backwards = False

    def watch(self, ranges: list[tuple[int, int, str]]) -> None:
        """A launch begins."""
        self.ranges, self.patched = ranges, set()
        self._starts = np.array([start for start, _, _ in ranges], dtype=np.int64)
        self._ends = np.array([end for _, end, _ in ranges], dtype=np.int64)

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        # A GPU promises no order: what only works from the first program to the last works by luck.
        if self.backwards:
            x, y, z = (size - 1 - index for size, index in zip(self.grid_dim, (x, y, z), strict=True))
        super().set_grid_idx(x, y, z)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        # Triton's interpreter cuts bits off where a GPU rounds to nearest, and gets subnormal bfloat16 wrong.
        kinds = (src.dtype.scalar, dst_type.scalar)
        if kinds == (tl.float32, tl.bfloat16):
            return interpreter.TensorHandle(_to_bfloat16(src.data), tl.bfloat16)
        return _widened(src) if kinds == (tl.bfloat16, tl.float32) else super().cast_impl(src, dst_type)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if str(input_precision).rpartition(".")[2] == "TF32":
            a, b = _to_tf32(a), _to_tf32(b)
        a, b = _widened(a), _widened(b)
        if d.data.dtype == np.float32:  # numpy multiplies float16 a hundred times more slowly, to the same sums in float32
            a, b = _single(a), _single(b)
        return super().create_dot(a, b, d, input_precision, *rest)

    def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any) -> Any:
        self._check("load", ptrs, mask)
        return super().create_masked_load(ptrs, mask, *rest)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._check("store", ptrs, mask)
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, kind: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        self._check("atomic", ptr, mask)
        return super().create_atomic_rmw(kind, ptr, val, mask, *rest)

    def create_atomic_cas(self, ptr: Any, *rest: Any) -> Any:
        self._check("atomic", ptr, None)
        return super().create_atomic_cas(ptr, *rest)

    def _check(self, what: str, ptrs: Any, mask: Any) -> None:
        addresses = np.atleast_1d(ptrs.data).astype(np.int64, copy=False)
        if mask is not None:
            addresses = addresses[np.broadcast_to(np.atleast_1d(mask.data), addresses.shape).astype(bool)]
        if addresses.size == 0:
            return
        width = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        starts, ends = self._starts, self._ends
        owner = np.searchsorted(starts, addresses, side="right") - 1
        inside = (
            (owner >= 0) & (addresses + width <= ends[np.maximum(owner, 0)]) if starts.size else np.zeros(addresses.shape, bool)
        )
        if not inside.all():
            raise OutOfBounds(self._out_of_bounds(what, addresses[~inside], addresses.size))

    def _out_of_bounds(self, what: str, outside: Any, count: int) -> str:
        program = tuple(int(index) for index in self.grid_idx)
        text = f"out of bounds: {outside.size} of {count} addresses of a {what} in program {program}"
        if not self.ranges:
            return f"{text}; the kernel was given no tensor"
        first = int(outside.flat[0])
        gap, name = min(
            (start - first if first < start else first - end + 1, name)
            for start, end, name in self.ranges
            if not start <= first < end
        )
        return f"{text} lie outside of every tensor, the first one {gap} bytes from the nearest, {name}; mask it"


def _to_bfloat16(values: Any) -> Any:
    """The bits of float32 numbers rounded to bfloat16, to the nearest and of two equally near ones to the even one."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def _widened(handle: Any) -> Any:
    """A bfloat16 operand as float32, which holds it exactly: Triton's interpreter multiplies the integers that its bits spell."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = np.ascontiguousarray(handle.data).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def _single(handle: Any) -> Any:
    """A float16 operand as float32, which holds it exactly."""
    return interpreter.TensorHandle(handle.data.astype(np.float32), tl.float32) if handle.data.dtype == np.float16 else handle


def _to_tf32(handle: Any) -> Any:
    """An operand with the ten bits of mantissa that tensor cores keep of float32, rounded to nearest."""
    if handle.data.dtype != np.float32:
        return handle
    bits = handle.data.view(np.uint32) + np.uint32(0x1000)
    rounded = np.where(np.isfinite(handle.data), (bits & np.uint32(0xFFFFE000)).view(np.float32), handle.data)
    return interpreter.TensorHandle(rounded, handle.dtype)
