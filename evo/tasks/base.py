"""The Task contract: what is computed, on which cases, how exact a kernel must be, and where a search starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evo.records import KnobValue
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation

if TYPE_CHECKING:
    from evo.tasks.random_tests import Statistic  # imports torch, for which no name is to wait

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

Distribution = Literal["normal", "uniform", "integers", "zeros", "ones", "permutation", "partition", "float8_e4m3fn"]

JUDGED_DTYPES = (*DTYPE_BYTES, "complex64", "complex128")
"""Dtypes of outputs that can be judged. The 8-bit floats round so coarsely that a share of their error says nothing, and torch
computes too little with wide unsigned integers: a task returns such bits as uint8, or what they were before the last cast."""

DEFAULT_OPERATORS = frozenset(
    {
        # allocation
        "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided",
        "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.ones", "aten.ones_like", "aten.new_ones",
        "aten.full", "aten.full_like", "aten.new_full",
        # views
        "aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten.as_strided", "aten.expand",
        "aten.permute", "aten.transpose", "aten.t", "aten.slice", "aten.select", "aten.squeeze", "aten.unsqueeze",
        "aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind", "aten.narrow", "aten.alias", "aten.detach",
        "aten.view_as_real", "aten.view_as_complex", "aten.unflatten", "aten.flatten", "aten.diagonal", "aten.movedim",
        # fills, copies and casts (all timed)
        "aten.fill_", "aten.zero_", "aten.copy_", "aten.clone", "aten._to_copy", "aten.contiguous", "aten.lift_fresh",
    }
)  # fmt: skip
"""Torch operators a kernel module may use on any task: allocation, views, fills, copies and casts (overload names left out)."""


@dataclass(frozen=True)
class TensorSpec:
    """How to make one input tensor.

    Attributes:
        shape: Sizes.
        dtype: A key of `DTYPE_BYTES`.
        distribution: ``normal`` (mean 0, deviation `scale`), ``uniform`` or ``integers`` in [low, high), ``zeros``, ``ones``;
            ``permutation``: integers of [low, high) in random order, each once at most (orders, block tables); ``partition``: a vector of
            ascending integers from low to high, some perhaps equal (where groups of rows begin, and the end of the last);
            ``float8_e4m3fn``: normal numbers as the bits of 8-bit floats, in uint8, within their range and never NaN.
        scale, low, high: Parameters of the distribution.
        strides: Element strides, None for contiguous.
        offset: Elements between the start of the storage and the first element.
        requires_grad: The gradient with respect to it is an output of the backward phase.
    """

    shape: tuple[int, ...]
    dtype: str
    distribution: Distribution = "normal"
    scale: float = 1.0
    low: float = 0.0
    high: float = 1.0
    strides: tuple[int, ...] | None = None
    offset: int = 0
    requires_grad: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
        if any(size < 0 for size in self.shape) or self.offset < 0:
            raise ValueError(f"shape {self.shape} and offset {self.offset} must not be negative")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"strides {self.strides} do not match shape {self.shape}")
        self._check_distribution()

    def _check_distribution(self) -> None:
        if self.distribution == "float8_e4m3fn" and self.dtype != "uint8":
            raise ValueError(f"bits of 8-bit floats are uint8, given {self.dtype}")
        if self.distribution not in ("permutation", "partition"):
            return
        if self.strides is not None or self.offset or self.dtype not in ("int64", "int32"):
            raise ValueError(f"a {self.distribution} is a contiguous tensor of int32 or int64 without an offset")
        if self.distribution == "permutation" and self.numel > int(self.high) - int(self.low):
            raise ValueError(f"a permutation of [{self.low:g}, {self.high:g}) has no {self.numel} elements")
        if self.distribution == "partition" and (len(self.shape) != 1 or self.numel < 2 or self.high < self.low):
            raise ValueError(f"a partition is a vector of at least 2 elements from low to high, given {self.shape}")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements themselves."""
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def element_strides(self) -> tuple[int, ...]:
        """The strides, with None resolved to contiguous ones."""
        if self.strides is not None:
            return self.strides
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        return tuple(reversed(strides))


Argument = TensorSpec | int | float | bool | None
"""One positional argument of reference and entry: a tensor to make, or a plain value."""


@dataclass(frozen=True)
class Case:
    """One set of arguments.

    Attributes:
        name: Short and unique within the task, e.g. ``4096x4096``.
        arguments: Positional arguments of the reference and of the entry.
        bytes: Fewest bytes device memory must move: each input read once, each output written once. 0 where nothing is computed.
        flops: Floating-point operations the computation needs.
    """

    name: str
    arguments: tuple[Argument, ...]
    bytes: int
    flops: int

    def __post_init__(self) -> None:
        if self.bytes < 0 or self.flops < 0:
            raise ValueError(f"case {self.name}: bytes and flops must not be negative")


@dataclass(frozen=True)
class Tolerance:
    """How exact a kernel must be: ‖c − y‖ ≤ max(ratio · ‖r − y‖, floor), as a norm, per row and at the worst element.

    y is the oracle in float64, r the reference in the task's own dtypes, c the candidate. Integer and boolean outputs are exact
    unless `integer_slack` says otherwise. Floors and their sources: `evo.evaluation.tolerance`.

    Attributes:
        ratio: τ, how many times the reference's own error is accepted.
        floor_epsilons: The floor in units of the output dtype's machine epsilon times the magnitude of y.
        products: The lowest precision in which products of float32 inputs may be taken. Sums stay in float32. ``float32``: no
            TF32 and no 16-bit operands, the default. ``tf32`` and ``float16`` have the same ten bits and are told apart by
            the range alone, which ``float16`` is spared (see `evo.tasks.inputs.applicable_variations`).
        integer_slack: Largest accepted difference of an integer output (1 for a rounding boundary), and
        integer_share: the expected share of elements that differ at all.
    """

    ratio: float = 2.0
    floor_epsilons: float = 2.0
    products: Literal["float32", "tf32", "float16", "bfloat16"] = "float32"
    integer_slack: int = 0
    integer_share: float = 0.0


@dataclass(frozen=True)
class Task:
    """One operator to optimise.

    Attributes:
        name: Identifier used in stores, configurations and exports.
        description: What is computed, in plain language, with shapes and dtypes; a model may be given this alone.
        entry: Name of the function (or `nn.Module` subclass) that every kernel module defines.
        reference: PyTorch implementation with the same signature as the entry. It must not modify its arguments unless `mutates`.
        training_cases: What the search scores.
        held_out_cases: What only elite verification and export see.
        small_cases: For the first rung of the gate and for the interpreted tier: few elements, odd sizes.
        starting_kernels: Paths of kernel modules (relative to the task file) or module source text; none where a language model shall
            write the first one.
        tolerance: See `Tolerance`.
        oracle: ``pytorch64``: the reference on float64 inputs. ``reference``: the reference as it is (weaker, shown as such).
            ``stochastic``: the reference gives structure, dtypes and shapes, and `statistic` judges the values.
        statistic: For random outputs: what a call's outputs are tested for, see `evo.tasks.random_tests`.
        variations: How inputs may differ from the declared distribution in checks (PLAIN is always drawn). A task narrows them where
            its computation means nothing, and widens them by HUGE where the reference does not overflow inside.
        allowed_operators: Torch operators a module may use besides `DEFAULT_OPERATORS`, e.g. ``aten.convolution``.
        mutates: Positions of arguments that are updated in place and so are outputs too.
        form: ``function``, or ``module`` for an `nn.Module` whose parameters come from `parameters`.
        init_arguments: Plain arguments of the module's constructor.
        parameters: State of the module (name → spec); the reference is then called with a dict of them as its first argument.
        backward: The gradients of the outputs with respect to parameters and arguments that require them are computed and judged too.
        knobs: Values that tuning may try, of knobs that modules may have: ``{"num_stages": (1, 2)}``. What a module declares itself is
            tried all the same; knobs that are not named here are as the module's `SPACE` says.
        kind: Kernel kind, for statistics per kind: ``reduction``, ``norm``, ``gemm`` …
        path: The file it came from; filled in by the loader.
    """

    name: str
    description: str
    entry: str
    reference: Callable[..., Any]
    training_cases: tuple[Case, ...]
    held_out_cases: tuple[Case, ...]
    small_cases: tuple[Case, ...]
    starting_kernels: tuple[str, ...]
    tolerance: Tolerance = Tolerance()
    oracle: Literal["pytorch64", "reference", "stochastic"] = "pytorch64"
    statistic: Statistic | None = None
    variations: frozenset[Variation] = DEFAULT_VARIATIONS
    allowed_operators: frozenset[str] = frozenset()
    mutates: tuple[int, ...] = ()
    form: Literal["function", "module"] = "function"
    init_arguments: tuple[int | float | bool | str | None, ...] = ()
    parameters: Mapping[str, TensorSpec] = field(default_factory=dict)
    backward: bool = False
    knobs: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    kind: str = "other"
    path: Path | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.entry.isidentifier():
            raise ValueError(f"name {self.name!r} and entry {self.entry!r} must be identifiers")
        if not self.training_cases or not self.small_cases:
            raise ValueError("a task has at least one training case and one small case")
        if (self.oracle == "stochastic") != (self.statistic is not None):
            raise ValueError("a statistic belongs to the stochastic oracle, and the stochastic oracle needs one")
        idle = [case.name for case in self.training_cases + self.held_out_cases if case.bytes == 0]
        if idle:
            raise ValueError(f"only small cases may move 0 bytes, given {', '.join(idle)}")
        empty = [name for name, values in self.knobs.items() if not values]
        if empty:
            raise ValueError(f"knobs[{empty[0]!r}] allows no value: name some, or leave the knob out")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise ValueError(f"case names must differ, given {', '.join(names)}")

    @property
    def cases(self) -> tuple[Case, ...]:
        """Small, training and held-out cases."""
        return self.small_cases + self.training_cases + self.held_out_cases

    def case(self, name: str) -> Case:
        """The case of that name.

        Raises:
            KeyError: No such case.
        """
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)

    def nearest_training_case(self, case: Case) -> Case:
        """The training case of the most similar shapes (sum of |ln| of the ratios of sizes), whose configuration suits `case` best."""
        return case if case in self.training_cases else min(self.training_cases, key=lambda other: _distance(case, other))

    @property
    def operators(self) -> frozenset[str]:
        """All torch operators a module may use."""
        return DEFAULT_OPERATORS | self.allowed_operators


def _distance(a: Case, b: Case) -> float:
    total = 0.0
    for mine, other in zip(a.arguments, b.arguments, strict=False):
        if not isinstance(mine, TensorSpec) or not isinstance(other, TensorSpec):
            continue
        total += float(mine.dtype != other.dtype) + 10.0 * abs(len(mine.shape) - len(other.shape))
        total += sum(abs(math.log(max(m, 1) / max(o, 1))) for m, o in zip(mine.shape, other.shape, strict=False))
    return total
