"""LaunchPlan: plain, versioned data that says what tracing one variant on one case launches.

A plan is a little program over *storages* (flat byte buffers) and *values* (typed, strided views into them):

* phases ``prepare`` (once; may read parameters only), ``forward`` and ``backward`` are lists of steps;
* a step allocates a storage (undefined bytes), fills or copies a value, runs another torch operator that the task allows, or
  launches a kernel: post-pass TTIR, options, grid and arguments;
* arguments of the entry, parameters and output gradients are storages that replay makes; outputs name values.

Plans come from sandboxes, so `LaunchPlan.from_json` validates every field and raises PlanError. `plan_hash` is the identity under
which equal kernels are measured once: kernel names and source locations do not enter it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from evo.errors import PlanError
from evo.records import Record, content_id
from evo.tasks.base import DTYPE_BYTES

PLAN_VERSION = 1
MAX_STEPS = 4096
MAX_KERNELS = 64
MAX_VALUES = 16384
MAX_TTIR_BYTES = 4 << 20
MAX_STORAGE_BYTES = 64 << 30
MAX_TOTAL_BYTES = 96 << 30
MAX_GRID = (2**31 - 1, 65535, 65535)
PHASES = ("prepare", "forward", "backward")
FLOAT8 = {"float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}
VALUE_DTYPES: Mapping[str, int] = {
    **DTYPE_BYTES, **FLOAT8, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

OPTION_TYPES: Mapping[str, tuple[type, ...]] = {
    "num_warps": (int,), "num_ctas": (int,), "num_stages": (int,), "maxnreg": (int, type(None)), "enable_fp_fusion": (bool,),
    "enable_reflect_ftz": (bool,), "launch_cooperative_grid": (bool,), "launch_pdl": (bool,), "debug": (bool,),
    "sanitize_overflow": (bool,), "default_dot_input_precision": (str,), "max_num_imprecise_acc_default": (int, type(None)),
    "warp_size": (int,), "clc": (bool,), "sched4reg": (bool,), "waves_per_eu": (int,), "matrix_instr_nonkdim": (int,),
    "kpack": (int,), "schedule_hint": (str,), "allow_flush_denorm": (bool,),
}  # fmt: skip
"""Compile options a plan may carry. Options that name files or pass raw compiler flags are not among them."""

EMPTY_OPERATORS = frozenset({"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided"})
"""They make undefined bytes, which a plan says by `Allocate` alone, so that replay can poison them."""


@dataclass(frozen=True)
class Value(Record):
    """A typed, strided view into a storage. `offset` and `strides` are in elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def extent(self) -> int:
        """Bytes from the start of the storage to the end of the view."""
        if 0 in self.shape:
            return 0
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * VALUE_DTYPES[self.dtype]


@dataclass(frozen=True)
class Source(Record):
    """What replay puts into a storage before a phase: kind ``argument`` (by position), ``parameter`` (by name), ``gradient`` (by
    position among the flattened tensors of the outputs, for each that asks for one: `evo.tasks.inputs.differentiable_places`)."""

    kind: str
    key: int | str
    value: int


@dataclass(frozen=True)
class Kernel(Record):
    """One compiled unit: post-pass TTIR without locations, and all that is needed to compile and launch it.

    Attributes:
        name: Function name in the TTIR.
        ttir: Module text.
        signature: Parameter name → type as Triton spells it (``*fp16``, ``i32``, ``constexpr``, ``tensordesc<…>``; tuples nested).
        options: See `OPTION_TYPES`.
        origin: For tracing it back: the name of the source's ``function`` and the ``constants`` it was compiled with, by parameter: plain
            values, ``{"dtype": name}``, ``{"function": name}``, ``{"tuple": […]}``; others are left out. No part of its identity.
    """

    name: str
    ttir: str
    signature: tuple[tuple[str, Any], ...]
    options: Mapping[str, Any]
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anonymous_ttir(self) -> str:
        """The TTIR with functions named by order of appearance: what they are called does not matter."""
        return _SYMBOL_OR_STRING.sub(_Renamer(), self.ttir)

    @property
    def kernel_hash(self) -> str:
        """Identity of the code: the name of the function and of private helper functions do not matter."""
        return content_id(
            self.anonymous_ttir,
            json.dumps(_listed([kind for _, kind in self.signature])),
            json.dumps(dict(self.options), sort_keys=True),
        )


@dataclass(frozen=True)
class Allocate(Record):
    """Makes a storage; its bytes are undefined."""

    storage: int


@dataclass(frozen=True)
class Fill(Record):
    """Sets every element of a value to a scalar."""

    value: int
    scalar: int | float | bool


@dataclass(frozen=True)
class Copy(Record):
    """Copies (and casts) one value to another of the same shape (or that the source broadcasts to)."""

    target: int
    source: int


@dataclass(frozen=True)
class Operator(Record):
    """Any other torch operator the task allows; its tensor results own the storages of `results` (None for a non-tensor result).

    Arguments are JSON values with tensors as ``{"value": n}``, dtypes as ``{"dtype": name}``, the device as ``{"device": true}``.
    """

    name: str
    overload: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[int | None, ...]


@dataclass(frozen=True)
class Launch(Record):
    """Launches a kernel. Arguments follow the signature: ``{"value": n}``, numbers, None, lists (tuples) and descriptors
    ``{"descriptor": {"value", "shape", "strides", "block", "padding", "tf32"}}``; a constexpr position holds None."""

    kernel: int
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


Step = Allocate | Fill | Copy | Operator | Launch
_STEP_TYPES: Mapping[str, type[Step]] = {"allocate": Allocate, "fill": Fill, "copy": Copy, "operator": Operator, "launch": Launch}
_STEP_NAMES = {kind: name for name, kind in _STEP_TYPES.items()}


@dataclass(frozen=True)
class LaunchPlan:
    """See the module's docstring.

    Attributes:
        triton: Version that made the TTIR; only the same version may compile it.
        target: ``backend:arch``, e.g. ``cuda:90``.
        storages: Bytes of each.
        sources: What replay supplies.
        steps: Phase → steps.
        outputs: What the entry returned: tensors as ``{"value": n}``, tuples as lists, lists as ``{"list": […]}``, dicts, plain scalars.
        gradients: Value per tensor whose gradient is asked for (None where none flows to it): parameters in the task's order, then
            arguments, as in `evo.tasks.inputs.Inputs.differentiable`.
        choices: Autotuned kernels met: name → number of configurations, of which the plan has one.
    """

    triton: str
    target: str
    storages: tuple[int, ...]
    values: tuple[Value, ...]
    sources: tuple[Source, ...]
    kernels: tuple[Kernel, ...]
    steps: Mapping[str, tuple[Step, ...]]
    outputs: Any
    gradients: tuple[int | None, ...]
    choices: Mapping[str, int]

    @property
    def plan_hash(self) -> str:
        """Content hash of everything but kernel names."""
        data = self.to_json()
        data["kernels"] = [kernel.kernel_hash for kernel in self.kernels]
        del data["choices"]
        return content_id(json.dumps(data, sort_keys=True))

    @property
    def gradient_places(self) -> tuple[int, ...]:
        """Positions, among the flattened tensors of the outputs, of those that a gradient is supplied for."""
        return tuple(sorted(int(source.key) for source in self.sources if source.kind == "gradient"))

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches of the forward and backward phases."""
        return tuple(step for phase in PHASES[1:] for step in self.steps.get(phase, ()) if isinstance(step, Launch))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all storages that are not supplied by replay: outputs and scratch."""
        supplied = {self.values[source.value].storage for source in self.sources}
        return sum(size for index, size in enumerate(self.storages) if index not in supplied)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": PLAN_VERSION,
            "triton": self.triton,
            "target": self.target,
            "storages": list(self.storages),
            "values": [value.to_json() for value in self.values],
            "sources": [source.to_json() for source in self.sources],
            "kernels": [{**kernel.to_json(), "signature": _listed(kernel.signature)} for kernel in self.kernels],
            "steps": {phase: [_step_json(step) for step in steps] for phase, steps in self.steps.items()},
            "outputs": self.outputs,
            "gradients": list(self.gradients),
            "choices": dict(self.choices),
        }

    @classmethod
    def from_json(cls, data: Any) -> LaunchPlan:
        """Validates data of a hostile process.

        Raises:
            PlanError: With the first thing that is wrong.
        """
        from evo.tracing.validation import parse_plan

        return parse_plan(data)


def step_from_json(data: Mapping[str, Any]) -> Step:
    """One step from its JSON form; fields are checked by `evo.tracing.validation`.

    Raises:
        PlanError: Unknown kind or fields.
    """
    kind = _STEP_TYPES.get(str(data.get("step")))
    if kind is None:
        raise PlanError(f"unknown step {data.get('step')!r}; known: {', '.join(_STEP_TYPES)}")
    fields = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items() if key != "step"}
    try:
        return cast(Step, cast(Any, kind)(**fields))
    except TypeError as error:
        raise PlanError(f"step {data.get('step')}: {error}") from error


def _step_json(step: Step) -> dict[str, Any]:
    return {"step": _STEP_NAMES[type(step)], **step.to_json()}


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple | list) else value


_SYMBOL_OR_STRING = re.compile(r"@(\"[^\"]*\"|[\w$.]+)|\"[^\"]*\"")
"""Strings are found too, to be left alone: in inline assembly, ``@p`` is a predicate. TTIR spells a quote in a string ``\\22``."""


class _Renamer:
    """Replaces each distinct symbol by its order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group(0)
        return self._names.setdefault(match.group(1), f"@f{len(self._names)}")
