"""Runs a candidate module on fake tensors and records what it would launch; lives in the sandboxed tracer child.

Tensors are torch's FakeTensors on the CPU (shapes without memory; reading a value raises) that claim to be on ``cuda:0``. A
stand-in `triton.runtime.driver` and a replaced `triton.compiler.compile` turn each launch into a step; a TorchDispatchMode records
torch operators by what they do to storages. Candidate code runs in this process and could damage it: everything that leaves it
is validated (`evo.tracing.validation`), and only what the plan launches is ever judged or measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import TensorWrapper

from evo.tracing.plan import EMPTY_OPERATORS, Allocate, Copy, Fill, Kernel, Launch, LaunchPlan, Operator, Source, Step, Value

ALIGNMENT = 512
"""Storages start at multiples of this, as torch's CUDA allocator and replay both place them."""

_CONSTANT = {"aten.zeros": 0, "aten.zeros_like": 0, "aten.new_zeros": 0, "aten.ones": 1, "aten.ones_like": 1, "aten.new_ones": 1}
_FULL = {"aten.full": 1, "aten.full_like": 1, "aten.new_full": 2}
_COPYING = {"aten.clone", "aten._to_copy"}


class Refused(Exception):
    """The module does something a replayed kernel may not; becomes status REJECTED."""


class Untraceable(Exception):
    """The module needs values on the host; becomes status UNTRACEABLE."""


@dataclass
class Recording:
    """The plan under construction. One per traced call sequence."""

    target: str
    triton: str
    address_seed: int
    storages: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    steps: dict[str, list[Step]] = field(default_factory=lambda: {"prepare": [], "forward": [], "backward": []})
    choices: dict[str, int] = field(default_factory=dict)
    phase: str = "prepare"
    _storage_of: dict[int, int] = field(default_factory=dict)
    _value_of: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _kernel_of: dict[str, int] = field(default_factory=dict)
    _alive: list[torch.Tensor] = field(default_factory=list)
    _constants: dict[int, tuple[torch.Tensor, int | float | bool]] = field(default_factory=dict)

    def know(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is already part of the plan."""
        return tensor.untyped_storage()._cdata in self._storage_of

    def storage(self, tensor: torch.Tensor) -> int:
        """The storage's index, registering a new one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storage_of:
            self._storage_of[key] = len(self.storages)
            self.storages.append(storage.nbytes())
            self._alive.append(tensor)  # keeps the storage, so that its address is never used again
        return self._storage_of[key]

    def lift(self, tensor: torch.Tensor) -> None:
        """Notes a tensor of one number that torch made of a Python number, as for ``y[:, 0] = 0`` or ``torch.tensor(2.0, device=…)``."""
        constant = getattr(tensor, "constant", None)
        if constant is not None and constant.numel() == 1 and not constant.is_complex():
            with no_dispatch():
                self._constants[tensor.untyped_storage()._cdata] = (tensor, constant.item())

    def lifted(self, tensor: Any) -> int | float | bool | None:
        """The number of such a tensor, None of any other and once it is part of the plan."""
        if not self._constants or not isinstance(tensor, torch.Tensor) or self.know(tensor):
            return None
        found = self._constants.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def place(self, tensor: Any) -> None:
        """Makes such a tensor part of the plan: it lies on the device and is filled there."""
        scalar = self.lifted(tensor)
        if scalar is not None:
            whole, _ = self._constants[tensor.untyped_storage()._cdata]
            self.step(Allocate(self.storage(whole)))
            self.step(Fill(self.value(whole), scalar))

    def value(self, tensor: torch.Tensor) -> int:
        """The index of a tensor of a known storage."""
        self.place(tensor)
        if not self.know(tensor):
            raise Refused("a tensor is used that this call neither received nor allocated on the device")
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        key = (self.storage(tensor), dtype, shape, strides, int(tensor.storage_offset()))
        if key not in self._value_of:
            self._value_of[key] = len(self.values)
            self.values.append(Value(*key))
        return self._value_of[key]

    def supply(self, kind: str, key: int | str, tensor: torch.Tensor) -> None:
        """Declares a tensor that replay makes."""
        self.storage(tensor)
        self.sources.append(Source(kind, key, self.value(tensor)))

    def step(self, step: Step) -> None:
        """Appends to the present phase."""
        self.steps[self.phase].append(step)

    def address(self, tensor: torch.Tensor) -> int:
        """A made-up device address, aligned as the real one will be; it differs between the two traces of a variant."""
        self.place(tensor)
        storage = self.storage(tensor)
        base = (1 << 44) + ((storage + 1) << 37) + (self.address_seed % 4096) * (ALIGNMENT << 4)
        return base + int(tensor.storage_offset()) * tensor.element_size()

    def kernel(self, kernel: Kernel) -> int:
        """The kernel's index, each distinct one once."""
        key = kernel.kernel_hash
        if key not in self._kernel_of:
            self._kernel_of[key] = len(self.kernels)
            self.kernels.append(kernel)
        return self._kernel_of[key]

    def launch(self, kernel: Kernel, grid: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        """Appends a launch with the arguments as the user passed them."""
        sizes = [int(size) for size in grid] + [1] * (3 - len(grid))
        if len(sizes) != 3 or min(sizes) < 0:
            raise Refused(f"grid {grid}: one to three sizes that are not negative")
        encoded = [self._argument(kind, item) for (_, kind), item in zip(kernel.signature, arguments, strict=True)]
        self.step(Launch(self.kernel(kernel), (sizes[0], sizes[1], sizes[2]), tuple(encoded)))

    def _argument(self, kind: Any, argument: Any) -> Any:
        if kind == "constexpr":
            return None
        if isinstance(kind, tuple):
            return [self._argument(inner, item) for inner, item in zip(kind, argument, strict=True)]
        if isinstance(argument, TensorWrapper):  # triton.reinterpret: the signature says what the bytes are taken for
            argument = argument.base
        if isinstance(argument, torch.Tensor):
            return {"value": self.value(argument)}
        if kind.startswith("tensordesc"):
            return {
                "descriptor": {
                    "value": self.value(argument.base),
                    "shape": [int(size) for size in argument.shape],
                    "strides": [int(step) for step in argument.strides],
                    "block": [int(size) for size in argument.block_shape],
                    "padding": str(argument.padding),
                    "tf32": bool(getattr(argument, "round_f32_to_tf32", False)),
                }
            }
        if isinstance(argument, bool | int | float):
            return argument
        raise Refused(f"a kernel argument of type {type(argument).__name__} for {kind}")

    def encode(self, result: Any) -> Any:
        """What the entry returned, as nested JSON: tensors as ``{"value": n}``, tuples as lists, lists as ``{"list": […]}``."""
        if isinstance(result, torch.Tensor):
            return {"value": self.value(result)}
        if isinstance(result, list):
            return {"list": [self.encode(item) for item in result]}
        if isinstance(result, tuple):
            return [self.encode(item) for item in result]
        if isinstance(result, Mapping):
            return {str(key): self.encode(item) for key, item in result.items()}
        if result is None or isinstance(result, bool | int | float | str):
            return result
        raise Refused(
            f"the entry returned a {type(result).__name__}; return tensors, plain numbers, tuples, lists or dicts of them"
        )

    def plan(self, outputs: Any, gradients: tuple[int | None, ...]) -> LaunchPlan:
        """The finished plan."""
        steps = {phase: tuple(items) for phase, items in self.steps.items()}
        return LaunchPlan(
            self.triton, self.target, tuple(self.storages), tuple(self.values), tuple(self.sources), tuple(self.kernels),
            steps, outputs, gradients, dict(self.choices),
        )  # fmt: skip


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what each torch operator does to storages: allocation, fill, copy, view (nothing) or a computation."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator on fake tensors and appends its step."""
        keywords = dict(kwargs or {})
        name = f"{func.namespace}.{func._opname}"
        result = func(*args, **keywords)
        if func.namespace == "prim":  # questions about a tensor, not work
            return result
        record, tensors = self._recording, _tensors(result)
        if name == "aten.lift_fresh" and not record.know(args[0]):
            record.lift(result)
            return result
        if name in ("aten.copy_", "aten.fill_") and (scalar := record.lifted(args[1])) is not None:
            record.step(Fill(record.value(args[0]), scalar))
            return result
        for item in args:
            record.place(item)  # before a view of it passes for a computation
        if name in EMPTY_OPERATORS:
            self._allocate(result)
        elif name in _CONSTANT:
            self._allocate(result, _CONSTANT[name])
        elif name in _FULL:
            self._allocate(result, _scalar(args[_FULL[name]] if len(args) > _FULL[name] else keywords["fill_value"]))
        elif name in _COPYING and not record.know(result):
            self._allocate(result)
            record.step(Copy(record.value(result), record.value(args[0])))
        elif name == "aten.copy_":
            record.step(Copy(record.value(args[0]), record.value(args[1])))
        elif name == "aten.zero_":
            record.step(Fill(record.value(args[0]), 0))
        elif name == "aten.fill_" and not isinstance(args[1], torch.Tensor):
            record.step(Fill(record.value(args[0]), _scalar(args[1])))
        elif func._schema.is_mutable or not tensors or not all(record.know(tensor) for tensor in tensors):
            self._compute(name, func._overloadname or "default", args, keywords, result)
        return result

    def _allocate(self, tensor: torch.Tensor, scalar: int | float | bool | None = None) -> None:
        record = self._recording
        index = record.storage(tensor)
        record.step(Allocate(index))
        if scalar is not None:
            record.step(Fill(record.value(tensor), scalar))

    def _compute(self, name: str, overload: str, args: Any, keywords: dict[str, Any], result: Any) -> None:
        record = self._recording
        arguments = [self._encode(item) for item in args]
        named = {key: self._encode(item) for key, item in keywords.items()}
        results: list[int | None] = []
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                record.storage(item)
                results.append(record.value(item))
            else:
                results.append(None)
        record.step(Operator(name, overload, tuple(arguments), named, tuple(results)))

    def _encode(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return {"value": self._recording.value(item)}
        if isinstance(item, torch.dtype):
            return {"dtype": str(item).removeprefix("torch.")}
        if isinstance(item, torch.device):
            return {"device": True}
        if isinstance(item, torch.layout | torch.memory_format):
            return {"constant": str(item).removeprefix("torch.")}
        if isinstance(item, tuple | list):
            return [self._encode(inner) for inner in item]
        if item is None or isinstance(item, bool | int | float | str):
            return item
        raise Refused(f"a torch operator argument of type {type(item).__name__}")


def fake_tensor(spec: Mapping[str, Any], mode: FakeTensorMode) -> torch.Tensor:
    """A tensor without memory as a `TensorSpec` (in JSON form) describes it."""
    dtype = getattr(torch, spec["dtype"])
    shape, strides, offset = list(spec["shape"]), list(spec["strides"]), int(spec["offset"])
    extent = offset + (0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)))
    with mode:
        flat = torch.empty(extent, dtype=dtype, device="cpu")
        tensor = torch.as_strided(flat, shape, strides, offset)
    assert isinstance(tensor, FakeTensor)
    return tensor.requires_grad_(True) if spec.get("requires_grad") else tensor


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, tuple | list) else (result,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _scalar(item: Any) -> int | float | bool:
    if isinstance(item, bool | int | float):
        return item
    raise Refused(f"a fill with {type(item).__name__}; use a plain number")
