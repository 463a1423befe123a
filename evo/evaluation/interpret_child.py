"""What the sandboxed interpreter child runs: a candidate module under Triton's interpreter, on CPU tensors that are mapped files.

Candidate Python runs here and can do to this process what it likes, so nothing it says is believed: the parent makes the inputs,
checks every byte that comes back and judges it elsewhere. What this process adds are messages a person or a model can act on:
every masked-in address of a load, store or atomic must lie inside a tensor that the launch was given, and memory that torch
leaves undefined is filled (NaN, largest integer, True), so that an element nobody wrote is seen. The server must start with
TRITON_INTERPRET=1, because Triton's own library functions decide at import whether they are interpreted.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from evo.evaluation.as_compiled import AsCompiled
from evo.evaluation.inputs import differentiable_places
from evo.tracing.facade import CudaFacade, fake_cuda
from evo.tracing.recorder import Recording, Refused, Untraceable
from evo.tracing.targets import TARGETS
from evo.tracing.trace_child import SOURCE_NAME, differentiable, entry_of, load_module, tensors_in


class OutOfBounds(Exception):
    """A kernel touched memory outside of the tensors it was given."""


class WrongStructure(Exception):
    """The entry returned something that is no plain tensor, or no gradient reaches an output."""


def interpret(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one variant on one case.

    Args:
        request: ``source``, ``entry``, ``form``, ``configuration``, ``init_arguments``, ``backward``, ``target``; ``reversed`` (whether
            programs run from the last to the first); ``arguments`` and
            ``parameters`` with tensors as ``{"file", "dtype", "shape", "strides", "offset", "elements", "requires_grad"}``;
            ``output_gradients`` likewise, each with its ``place`` among the flattened outputs.

    Returns:
        ``{"outputs": …, "gradients": […]}`` with tensors as ``{"tensor": {"file", "dtype", "shape", "strides"}}``, or
        ``{"failure": {"status", "stage", "message", "signature"}}``. Mutated arguments are found in their files.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills undefined memory
    target = TARGETS[request["target"]]
    try:
        with warnings.catch_warnings(), fake_cuda(Recording(target.key, triton.__version__, 0), target):
            warnings.simplefilter("ignore")
            watch_memory(backwards=request.get("reversed", False))
            Autotuner.run = _chosen_run(request["configuration"])
            with _Facade(host_allowed=True):
                module = load_module(request["source"], request["configuration"])
                outputs, gradients = _run(module, request)
        writer = _OutputWriter()
        return {"outputs": writer.encode(outputs), "gradients": [writer.encode(item) for item in gradients]}
    except BaseException as error:  # noqa: BLE001  a module that exits is a bad module too
        return {"failure": describe(error)}


class _Facade(CudaFacade):
    """Tensors here are real CPU tensors; the wrapper sees ``cuda:0`` as it will on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return torch.device("cuda:0")
        return super().__torch_function__(func, types, args, kwargs)


def describe(error: BaseException) -> dict[str, str]:
    """A failure record in JSON form for an exception of candidate code, with the candidate's line."""
    line = _candidate_line(error)
    root = error
    while isinstance(root, interpreter.InterpreterError) and root.__cause__ is not None:
        root = root.__cause__
    text = f"{type(root).__name__}: {str(root).strip()}".removesuffix(": ")
    status = "runtime_error"
    if isinstance(root, OutOfBounds):
        text = str(root)
    elif isinstance(root, Untraceable):
        status, text = "untraceable", f"the wrapper needs a value on the host: {root}"
    elif isinstance(root, Refused):
        status, text = "rejected", str(root)
    elif isinstance(root, WrongStructure):
        status, text = "wrong_structure", str(root)
    elif isinstance(root, NotImplementedError):
        text += " (Triton's interpreter lacks this; without a GPU only what it supports can be checked)"
    signature = f"{status}:gate:{type(root).__name__}:" + re.sub(r"[\d'\"`]+|0x[0-9a-f]+", "#", text.splitlines()[0])[:100]
    message = f"{text}\n  at line {line}" if line else text
    return {"status": status, "stage": "gate", "message": message[:8000], "signature": signature}


def _candidate_line(error: BaseException | None) -> str:
    found = ""
    while error is not None:  # the innermost cause knows the line inside the kernel
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.endswith(SOURCE_NAME):
                found = f"{frame.lineno}: {linecache.getline(frame.filename, frame.lineno or 0).strip()}"
        error = error.__cause__
    return found


def _run(module: Any, request: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    entry = getattr(module, request["entry"], None)
    if entry is None:
        raise Refused(f"the module does not define {request['entry']}")
    arguments = [_mapped_tensor(item) if isinstance(item, dict) else item for item in request["arguments"]]
    parameters = {name: _mapped_tensor(spec) for name, spec in request["parameters"].items()}
    call = entry_of(entry, request, parameters)
    wanted = differentiable(call, request, parameters, arguments)
    with torch.set_grad_enabled(bool(request["backward"])):
        result = call(*arguments)
    if not request["backward"]:
        return result, []
    seeds = [_mapped_tensor(item) for item in request["output_gradients"]]
    tensors = tensors_in(result)
    found = [(place, tuple(tensors[place].shape)) for place in differentiable_places(tensors)]
    asked = [(item["place"], tuple(item["shape"])) for item in request["output_gradients"]]
    if found != asked:
        raise WrongStructure(f"outputs (by position, with shapes) that a gradient flows back through: {found}; expected {asked}")
    gradients = torch.autograd.grad([tensors[place] for place, _ in found], wanted, seeds, allow_unused=True)
    return result, [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, wanted, strict=True)]


def _mapped_tensor(spec: Mapping[str, Any]) -> torch.Tensor:
    # Shared, so that the parent finds in the file what the kernel did to it.
    dtype = getattr(torch, spec["dtype"])
    if spec["elements"] == 0:
        return torch.empty_strided(spec["shape"], spec["strides"], dtype=dtype).requires_grad_(spec["requires_grad"])
    storage = torch.from_file(spec["file"], shared=True, size=spec["elements"], dtype=dtype)
    return storage.as_strided(spec["shape"], spec["strides"], spec["offset"]).requires_grad_(spec["requires_grad"])


class _OutputWriter:
    """Writes tensors as raw bytes of their span in the storage; nested containers become tagged lists."""

    def __init__(self) -> None:
        self._count = 0

    def encode(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if value is None:
            return None
        if isinstance(value, tuple | list):
            return {"tuple" if isinstance(value, tuple) else "list": [self.encode(item) for item in value]}
        if isinstance(value, Mapping):
            return {"dict": [[str(key), self.encode(item)] for key, item in value.items()]}
        raise WrongStructure(
            f"an output of type {type(value).__name__}; allowed: tensors, None, and tuples, lists, dicts of them"
        )

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        if type(tensor) is not torch.Tensor:
            raise WrongStructure(f"an output is a {type(tensor).__name__}; expected a plain tensor")
        tensor = tensor.detach()
        shape, strides = list(tensor.shape), list(tensor.stride())
        span = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1 if tensor.numel() else 0
        file = f"output-{self._count}.bin"
        self._count += 1
        flat = tensor.as_strided((span,), (1,), tensor.storage_offset())
        flat.view(torch.uint8).numpy().tofile(file)
        return {"file": file, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape, "strides": strides}


def _chosen_run(configuration: Mapping[str, Any]) -> Any:
    """Autotuned kernels take the configuration's choice; benchmarking an interpreter says nothing."""

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        pruned = self.prune_configs(kwargs)
        config = pruned[int(configuration.get(f"autotune:{self.base_fn.__name__}", 0)) % len(pruned)]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    return run


def watch_memory(*, backwards: bool = False) -> None:
    """Makes the interpreter check addresses before it follows them, and round what a GPU would; lasts until this process ends."""
    builder = interpreter.interpreter_builder
    _WatchedBuilder.backwards = backwards
    if isinstance(builder, _WatchedBuilder):
        return
    builder.__class__ = _WatchedBuilder
    builder.ranges = []
    make_arguments = interpreter.GridExecutor._init_args_hst

    def noted_arguments(self: Any, args: Any, kwargs: Any) -> Any:
        host = make_arguments(self, args, kwargs)
        named = [*zip(self.arg_names, host[0], strict=False), *host[1].items()]
        builder.ranges = sorted(found for name, item in named for found in _ranges(name, item))
        return host

    interpreter.GridExecutor._init_args_hst = noted_arguments
    interpreter.FunctionRewriter.ast_transformer = AsCompiled(interpreter.FunctionRewriter.ast_transformer)
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # Triton 3.6 converts arrays of one element with int(), which numpy refuses from 2.4 on.
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index


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
    """Triton's interpreter with bounds: (first byte, end, parameter name) of every storage of the present launch."""

    ranges: list[tuple[int, int, str]]
    backwards = False

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
        starts = np.array([start for start, _, _ in self.ranges], dtype=np.int64)
        ends = np.array([end for _, end, _ in self.ranges], dtype=np.int64)
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


def _to_tf32(handle: Any) -> Any:
    """An operand with the ten bits of mantissa that tensor cores keep of float32, rounded to nearest."""
    if handle.data.dtype != np.float32:
        return handle
    bits = handle.data.view(np.uint32) + np.uint32(0x1000)
    rounded = np.where(np.isfinite(handle.data), (bits & np.uint32(0xFFFFE000)).view(np.float32), handle.data)
    return interpreter.TensorHandle(rounded, handle.dtype)


_WARM_UP = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    total = tl.sum(tl.exp(row - tl.max(row, axis=0)), axis=0)
    square = tl.dot(row[:, None] * tl.trans(row[:, None]), row[:, None] * tl.trans(row[:, None]))
    for start in range(0, n, BLOCK):
        tl.store(y + at, tl.where(at < n, total + tl.sum(square, axis=1), 0.0).to(y.dtype.element_ty), mask=at < n)

def entry(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y.view(-1), x.numel(), BLOCK=16, num_warps=1)
    return y
"""


def warm_up() -> None:
    """Interprets a small module in the fork server, so that what torch and Triton import or build lazily is there for every child."""
    torch.set_num_threads(1)
    data = np.zeros(32, dtype=np.float32)
    data.tofile("warm.bin")
    spec = {"file": "warm.bin", "dtype": "float32", "shape": [32], "strides": [1], "offset": 0, "elements": 32}
    request = {
        "source": _WARM_UP,
        "entry": "entry",
        "form": "function",
        "configuration": {},
        "init_arguments": [],
        "parameters": {},
    }
    answer = interpret({**request, "arguments": [{**spec, "requires_grad": False}], "backward": False, "target": "cuda:90"})
    if "outputs" not in answer:
        raise RuntimeError(f"the interpreter cannot run a plain kernel: {answer}")
    for name in ("warm.bin", "output-0.bin", SOURCE_NAME):
        Path(name).unlink()


if os.environ.get("TRITON_EVOLVE_ROLE") == "interpret":
    warm_up()
