"""What the sandboxed interpreter child runs: a candidate module under Triton's interpreter, on CPU tensors that are mapped files.

Candidate Python runs here and can do to this process what it likes, so nothing it says is believed: the parent makes the inputs,
checks every byte that comes back and judges it elsewhere. What this process adds are messages a person or a model can act on:
addresses are watched (`watched_memory`), and memory that torch leaves undefined is filled (NaN, largest integer, True), so that
an element nobody wrote is seen. The server must start with TRITON_INTERPRET=1, because Triton's own library functions decide at
import whether they are interpreted.
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
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterError

from evo.evaluation.inputs import differentiable_places
from evo.evaluation.watched_memory import OutOfBounds, watch_memory
from evo.tracing.facade import CLAIMED_OF_REAL, CudaFacade, fake_cuda
from evo.tracing.recorder import Recording, Refused, Untraceable
from evo.tracing.targets import TARGETS
from evo.tracing.trace_child import SOURCE_NAME, differentiable, entry_of, load_module, tensors_in


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

    claimed = CLAIMED_OF_REAL


def describe(error: BaseException) -> dict[str, str]:
    """A failure record in JSON form for an exception of candidate code, with the candidate's line."""
    line = _candidate_line(error)
    root = error
    while isinstance(root, InterpreterError) and root.__cause__ is not None:
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
