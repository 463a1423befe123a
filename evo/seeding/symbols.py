"""Groups the cases of a task into forms that one compilation can serve, and gives sizes that differ in a form a symbol each.

Inductor would specialise its code to the sizes of one case. A module serves all cases of a task, held-out ones included, so a size
that is the same in all cases of a form is a constant, sizes that are equal in each of its cases share a symbol, and others are
symbols of their own. Cases of one form have the same dtypes, dimensions, layouts and plain values. What the compiler assumes of
symbols besides are guards (that two are equal, as one would be broadcast otherwise): cases that violate one get a form of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from evo.tasks.base import Argument, Case, Task, TensorSpec

Place = tuple[int, int]
"""Position of an argument, and a dimension of it; parameters come after the arguments."""


def arguments_of(task: Task, case: Case) -> tuple[Argument, ...]:
    """The arguments of a case and then the module's parameters."""
    return (*case.arguments, *task.parameters.values())


def kind_of(task: Task, case: Case) -> tuple[object, ...]:
    """Equal for cases that may share a form."""
    return tuple(_kind(item) for item in arguments_of(task, case))


def _kind(item: Argument) -> object:
    if not isinstance(item, TensorSpec):
        return (type(item).__name__, item)
    order = dense_order(item)
    # A layout with gaps is a form of its own: its strides are no function of its sizes.
    layout: object = order if order is not None else (item.shape, item.element_strides)
    return (item.dtype, len(item.shape), layout)


def dense_order(spec: TensorSpec) -> tuple[int, ...] | None:
    """Dimensions from the outermost to the innermost in memory, None where elements do not lie side by side."""
    strides = spec.element_strides
    order = sorted(range(len(spec.shape)), key=lambda dim: (-strides[dim], dim))
    step = 1
    for dim in reversed(order):
        if spec.shape[dim] > 1 and strides[dim] != step:
            return None
        step *= max(spec.shape[dim], 1)
    return tuple(order)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a form.

    Attributes:
        symbols: Name → where it is read, the first place of those that share it.
        hints: Name → the size by which Inductor chooses between kinds of code, 2 or more: it takes 0 and 1 for constants.
        values: Place → a number or the name of a symbol.
    """

    symbols: Mapping[str, Place]
    hints: Mapping[str, int]
    values: Mapping[Place, int | str]

    def of(self, case_arguments: Sequence[Argument]) -> dict[str, int]:
        """Values of the symbols in a case."""
        found = {}
        for name, (position, dim) in self.symbols.items():
            spec = case_arguments[position]
            assert isinstance(spec, TensorSpec)
            found[name] = spec.shape[dim]
        return found


def sizes_of(task: Task, cases: Sequence[Case]) -> Sizes:
    """Symbols for the sizes that differ between cases of one kind."""
    rows = [arguments_of(task, case) for case in cases]
    symbols: dict[str, Place] = {}
    hints: dict[str, int] = {}
    by_values: dict[tuple[int, ...], str] = {}
    values: dict[Place, int | str] = {}
    for place in _places(rows[0]):
        column = tuple(_size(row, place) for row in rows)
        if len(set(column)) == 1:
            values[place] = column[0]
            continue
        if column not in by_values:
            by_values[column] = f"n{len(symbols)}"
            symbols[by_values[column]] = place
            hints[by_values[column]] = next((size for size in column if size > 1), 2)
        values[place] = by_values[column]
    return Sizes(symbols, hints, values)


def _places(arguments: Sequence[Argument]) -> Iterator[Place]:
    for position, item in enumerate(arguments):
        if isinstance(item, TensorSpec):
            yield from ((position, dim) for dim in range(len(item.shape)))


def _size(arguments: Sequence[Argument], place: Place) -> int:
    spec = arguments[place[0]]
    assert isinstance(spec, TensorSpec)
    return spec.shape[place[1]]


class FakeArguments:
    """The arguments of a form as tensors without data on a CUDA device that need not exist.

    Args:
        task: Whose parameters follow the arguments.
        leader: The case that plain values and layouts are of.
        sizes: Its symbols.

    Attributes:
        mode: What they belong to.
        env: Collects guards.
        values: Tensors and plain values, in the order of `arguments_of`.
        names: torch's name of a symbol → ours.
    """

    def __init__(self, task: Task, leader: Case, sizes: Sizes) -> None:
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.names: dict[str, str] = {}
        self._sizes = sizes
        arguments = arguments_of(task, leader)
        known: dict[str, Any] = {}
        for name, hint in sizes.hints.items():
            known[name] = self._symbol(name, hint)
        with self.mode:
            self.values = [self._make(position, item, known) for position, item in enumerate(arguments)]

    def _symbol(self, name: str, hint: int) -> Any:
        """A size that torch knows by a symbol: that of a tensor made for it alone."""
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
        fake = self.mode.from_tensor(torch.empty(hint, device="meta"), source=ConstantSource(name), symbolic_context=context)
        size = fake.shape[0]
        self.names[str(size)] = name
        return size

    def _make(self, position: int, item: Argument, known: Mapping[str, Any]) -> Any:
        if not isinstance(item, TensorSpec):
            return item
        shape = [known.get(str(value), value) for dim in range(len(item.shape)) for value in [self._sizes.values[position, dim]]]
        order = dense_order(item)
        strides: list[Any] = list(item.element_strides)
        if order is not None:
            step: Any = 1
            for dim in reversed(order):
                strides[dim] = step
                step = step * shape[dim]
        return torch.empty_strided(shape, strides, dtype=getattr(torch, item.dtype), device="cuda")

    def on_host(self) -> list[torch.Tensor]:
        """The tensors alone, as such of the CPU."""
        return [self._on(item, "cpu") for item in self.values if isinstance(item, torch.Tensor)]

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as one of the device."""
        return self._on(tensor, "cuda")

    def _on(self, tensor: torch.Tensor, device: str) -> torch.Tensor:
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    def guards(self) -> list[str]:
        """What was assumed of the symbols, as conditions in our names.

        A symbol that was found to equal an expression is a condition too.
        """
        renamed = {symbol: type(symbol)(name, integer=True, positive=True) for symbol, name in self._torch_symbols()}
        found = [_condition(guard.expr.xreplace(renamed)) for guard in self.env.guards]
        for symbol, other in self.env.replacements.items():
            if str(symbol) in self.names:
                found.append(f"{self.names[str(symbol)]} == {_text(other.xreplace(renamed))}")
        return [item for item in dict.fromkeys(found) if item != "True"]

    def _torch_symbols(self) -> list[tuple[Any, str]]:
        symbols = {str(symbol): symbol for symbol in self.env.var_to_range}
        return [(symbols[theirs], ours) for theirs, ours in self.names.items() if theirs in symbols]


def _condition(expression: Any) -> str:
    if getattr(expression, "is_Relational", False):
        return f"{_text(expression.lhs)} {expression.rel_op} {_text(expression.rhs)}"
    return _text(expression)


def _text(expression: Any) -> str:
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(expression))
