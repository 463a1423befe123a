"""Executes a launch plan on a GPU from compiled binaries; lives in trusted processes and runs no candidate Python.

Kernels are loaded and launched by Triton's own loader and launcher for the installed version, from the binary and the metadata that
the compiler child made, so scratch memory, tensor descriptors and clusters behave as in a usual launch.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.driver import driver

from evo.errors import PlanError
from evo.tracing.compiler import Binary
from evo.tracing.plan import Allocate, Copy, Fill, Kernel, Launch, LaunchPlan, Operator, Step

_CONSTANTS = {
    "strided": torch.strided,
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
}


class Memory(Protocol):
    """Where storages come from."""

    def allocate(self, nbytes: int, index: int) -> tuple[torch.UntypedStorage, int]:
        """A storage of at least `nbytes` for the plan's storage `index`, and the byte offset of its usable part (a multiple of 512)."""


class PlainMemory:
    """Torch's allocator; bytes are whatever was there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int, index: int) -> tuple[torch.UntypedStorage, int]:
        """See `Memory`."""
        return torch.empty(max(nbytes, 1), dtype=torch.uint8, device=self._device).untyped_storage(), 0


class LoadedKernel:
    """One kernel in the device's memory; it leaves it when nothing refers to it any more (a plan, an execution, a graph)."""

    def __init__(self, kernel: Kernel, binary: Binary, device: int) -> None:
        described, self._packed, self._launch = _launcher(kernel, binary)
        loaded = driver.active.utils.load_binary(described.name, binary.data, described.shared, device)
        self._module, self._function = loaded[0], loaded[1]
        # Triton keeps every module for the life of the process: a long search would fill the device with code.
        finalizer = weakref.finalize(self, _unload, self._module)
        finalizer.atexit = False

    def launch(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Launches on the current stream."""
        if 0 in grid:
            return
        stream = driver.active.get_current_stream(driver.active.get_current_device())
        self._launch(*grid, stream, self._function, self._packed, None, None, None, *arguments)


def build_launcher(kernel: Kernel, binary: Binary) -> None:
    """Makes the host code that launches kernels of this signature, where the installed Triton compiles some. It ends up in Triton's cache
    on disk, so a process without a device can do this ahead of the one that launches."""
    _launcher(kernel, binary)


def _launcher(kernel: Kernel, binary: Binary) -> tuple[Any, Any, Any]:
    metadata = dict(binary.metadata)
    target = metadata["target"]
    metadata["target"] = GPUTarget(target["backend"], target["arch"], target["warp_size"])
    metadata["cluster_dims"] = tuple(metadata.get("cluster_dims") or (1, 1, 1))
    described: Any = namedtuple("KernelMetadata", sorted(metadata))(**metadata)
    constants = {(index,): None for index, (_, kind) in enumerate(kernel.signature) if kind == "constexpr"}
    source = SimpleNamespace(signature=dict(kernel.signature), constants=constants)
    launch = driver.active.launcher_cls(source, described)
    return described, make_backend(metadata["target"]).pack_metadata(described), launch


def _unload(module: int) -> None:
    # A module of another vendor's driver stays loaded; there the process is replaced often enough.
    if torch.version.hip is None:
        _cuda().cuModuleUnload(ctypes.c_void_p(module))


@functools.cache
def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@dataclass
class Execution:
    """One binding of a plan: its storages, ready to run phase by phase.

    Attributes:
        plan: What runs.
        kernels: Loaded, in the plan's order.
        memory: For storages the plan allocates.
        device: Where.
        reuses: Whether storages that were made once are used again, with whatever is in them, when a phase runs again.
        storages: Index → (storage, byte offset of its usable part).
    """

    plan: LaunchPlan
    kernels: Sequence[LoadedKernel]
    memory: Memory
    device: torch.device
    reuses: bool = False
    storages: dict[int, tuple[torch.UntypedStorage, int]] = field(default_factory=dict)
    _values: dict[int, torch.Tensor] = field(default_factory=dict)

    def supply(self, kind: str, items: Mapping[Any, torch.Tensor]) -> None:
        """Makes the storages of all sources of a kind and copies tensors into their views, with what lies between strided elements."""
        for source in self.plan.sources:
            if source.kind == kind:
                self._make(self.plan.values[source.value].storage)
                copy_span(self.value(source.value), items[source.key])

    def value(self, index: int) -> torch.Tensor:
        """The tensor of a value."""
        if index not in self._values:
            value = self.plan.values[index]
            storage, start = self.storages[value.storage]
            dtype = getattr(torch, value.dtype)
            tensor = torch.empty(0, dtype=dtype, device=self.device)
            self._values[index] = tensor.set_(storage, start // dtype.itemsize + value.offset, value.shape, value.strides)
        return self._values[index]

    def bytes_of(self, index: int) -> torch.Tensor:
        """The usable bytes of a storage."""
        storage, start = self.storages[index]
        tensor = torch.empty(0, dtype=torch.uint8, device=self.device)
        return tensor.set_(storage, start, (self.plan.storages[index],), (1,))

    def run(self, phase: str) -> None:
        """Runs the steps of a phase on the current stream. Storages it makes are made anew each time, unless it `reuses` them."""
        for step in self.plan.steps[phase]:
            self._run(step)

    def outputs(self) -> Any:
        """What the entry returned: nested tuples, lists and dicts of tensors and plain values."""
        return self._returned(self.plan.outputs)

    def gradients(self) -> list[torch.Tensor | None]:
        """After the backward phase: one per tensor whose gradient is asked for; see `LaunchPlan.gradients`."""
        return [None if index is None else self.value(index) for index in self.plan.gradients]

    def _returned(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            if set(item) == {"value"}:
                return self.value(item["value"])
            if set(item) == {"list"}:
                return [self._returned(inner) for inner in item["list"]]
            return {key: self._returned(inner) for key, inner in item.items()}
        return tuple(self._returned(inner) for inner in item) if isinstance(item, list | tuple) else item

    def _make(self, index: int) -> None:
        if self.reuses and index in self.storages:
            return
        self.storages[index] = self.memory.allocate(self.plan.storages[index], index)
        for value in [key for key in self._values if self.plan.values[key].storage == index]:
            del self._values[value]

    def _run(self, step: Step) -> None:
        if isinstance(step, Allocate):
            self._make(step.storage)
        elif isinstance(step, Fill):
            self.value(step.value).fill_(step.scalar)
        elif isinstance(step, Copy):
            self.value(step.target).copy_(self.value(step.source))
        elif isinstance(step, Launch):
            self.kernels[step.kernel].launch(step.grid, [self._argument(item) for item in step.arguments])
        else:
            self._compute(step)

    def _argument(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            if "value" in item:
                return self.value(item["value"])
            described = item["descriptor"]
            more = {"round_f32_to_tf32": True} if described["tf32"] else {}
            return triton.tools.tensor_descriptor.TensorDescriptor(
                self.value(described["value"]),
                described["shape"],
                described["strides"],
                described["block"],
                described["padding"],
                **more,
            )
        return tuple(self._argument(inner) for inner in item) if isinstance(item, list | tuple) else item

    def _compute(self, step: Operator) -> None:
        namespace, name = step.name.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), name), step.overload)
        result = function(*self._decode(list(step.arguments)), **self._decode(dict(step.keywords)))
        results = result if isinstance(result, tuple | list) else (result,)
        for item, index in zip(results, step.results, strict=True):
            if index is None:
                continue
            value = self.plan.values[index]
            if tuple(item.shape) != value.shape or item.stride() != value.strides or str(item.dtype) != f"torch.{value.dtype}":
                raise PlanError(
                    f"{step.name} made {tuple(item.shape)} {item.stride()}, the trace expected {value.shape} {value.strides}"
                )
            if value.storage not in self.storages or self.value(index).data_ptr() != item.data_ptr():
                start = (item.storage_offset() - value.offset) * item.element_size()
                if start < 0 or item.untyped_storage().nbytes() - start < self.plan.storages[value.storage]:
                    raise PlanError(f"{step.name} made a smaller storage than the plan declares")
                self.storages[value.storage] = (item.untyped_storage(), start)
                self._values = {key: kept for key, kept in self._values.items() if self.plan.values[key].storage != value.storage}

    def _decode(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            if set(item) == {"value"}:
                return self.value(item["value"])
            if set(item) == {"dtype"}:
                return getattr(torch, item["dtype"])
            if set(item) == {"device"}:
                return self.device
            if set(item) == {"constant"}:
                return _CONSTANTS[item["constant"]]
            return {key: self._decode(inner) for key, inner in item.items()}
        return [self._decode(inner) for inner in item] if isinstance(item, list | tuple) else item


def copy_span(target: torch.Tensor, given: torch.Tensor) -> None:
    """Copies a tensor with what lies between its strided elements."""
    if target.stride() == given.stride() and target.numel():
        # All memory from the first element to the last: torch refuses to copy into views whose elements overlap (expanded inputs).
        span = 1 + sum((size - 1) * step for size, step in zip(given.shape, given.stride(), strict=True))
        target, given = target.as_strided((span,), (1,)), given.as_strided((span,), (1,))
    target.copy_(given)


def check_plan(plan: LaunchPlan, binaries: Sequence[Binary]) -> None:
    """Whether these binaries are this plan's and of this Triton.

    Raises:
        PlanError: The plan was traced with another Triton version, or binaries do not belong to it.
    """
    if plan.triton != triton.__version__:
        raise PlanError(f"the plan was traced with triton {plan.triton}, this process has {triton.__version__}")
    if [binary.kernel_hash for binary in binaries] != [kernel.kernel_hash for kernel in plan.kernels]:
        raise PlanError("these binaries are not of this plan")


def load_plan(plan: LaunchPlan, binaries: Sequence[Binary], device: torch.device) -> list[LoadedKernel]:
    """Loads all kernels of a plan.

    Raises:
        PlanError: See `check_plan`.
    """
    check_plan(plan, binaries)
    index = device.index or 0
    return [LoadedKernel(kernel, binary, index) for kernel, binary in zip(plan.kernels, binaries, strict=True)]


def set_scratch_allocator(device: torch.device) -> None:
    """Gives Triton global scratch memory on that device, for kernels that make tensor descriptors."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
