"""Finds which sizes of an example may vary, runs the reference on smaller ones, and so makes a task's cases."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from evo.errors import InputError
from evo.initialising.reading import Given, line_of
from evo.tasks.base import Argument, TensorSpec

SMALL = ((5, 33, 7, 17, 9, 3), (3, 65, 5, 9, 7, 11), (1, 130, 3, 5, 11, 7))
"""Odd sizes of the small cases, for what may vary in the order in which it first stands in a shape; and a size of one."""
MAX_TRIED = 1 << 28
MAX_BYTES = 1 << 31
"""Cases that are run with data need less."""
KINDS = (
    ("convolution", ("convolution",)),
    ("attention", ("scaled_dot_product",)),
    ("gemm", ("mm", "bmm", "addmm", "baddbmm")),
    ("scan", ("cumsum", "cumprod", "logcumsumexp")),
    ("norm", ("native_layer_norm", "native_group_norm", "native_batch_norm")),
    (
        "reduction",
        ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "_softmax", "_log_softmax", "var", "std", "norm"),
    ),
)


@dataclass(frozen=True)
class Sized:
    """Arguments with the bytes they and the outputs move, and the operations needed."""

    sizes: tuple[int, ...]
    arguments: tuple[Argument, ...]
    bytes: int
    flops: int


@dataclass(frozen=True)
class Derived:
    """The cases of a task.

    Attributes:
        varying: Sizes of the example that may vary.
        training, small, held_out: Cases, with a size for each of `varying`.
        mutates: Positions of inputs that are updated in place.
        kind: Of the task.
        products: Whether matrices are multiplied.
        guesses: What a person should check.
    """

    varying: tuple[int, ...]
    training: Sized
    small: tuple[Sized, ...]
    held_out: tuple[Sized, ...]
    mutates: tuple[int, ...]
    kind: str
    products: bool
    guesses: tuple[str, ...]


class Reference:
    """A reference that can be run, with its state, on inputs of any size."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def measured(self, arguments: Sequence[Argument]) -> tuple[int, int, frozenset[str]]:
        """Bytes of inputs, state and outputs, operations, and the operators used, from a run without data.

        Raises:
            InputError: It fails on these inputs.
        """
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            state = {name: mode.from_tensor(item.detach()) for name, item in self._given.state.items()}
            made = [_empty(item) if isinstance(item, TensorSpec) else item for item in arguments]
            with FlopCounterMode(display=False) as counter, _Names() as names:
                outputs = list(flat(self._call(state, made), self.where))
        specs = [item for item in arguments if isinstance(item, TensorSpec)]
        moved = sum(spec.nbytes for spec in specs) + sum(
            item.numel() * item.element_size() for item in [*outputs, *state.values()]
        )
        return moved, max(int(counter.get_total_flops()), sum(spec.numel for spec in specs)), frozenset(names.found)

    def run(self, arguments: Sequence[Argument], seed: int) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """Outputs on drawn inputs, and the positions of inputs that were changed.

        Raises:
            InputError: It fails, or returns what is no tensor.
        """
        generator = torch.Generator().manual_seed(seed)
        made = [_drawn(item, generator) if isinstance(item, TensorSpec) else item for item in arguments]
        before = [item.clone() if isinstance(item, torch.Tensor) else item for item in made]
        with torch.no_grad():
            state = {name: item.detach().clone() for name, item in self._given.state.items()}
            outputs = list(flat(self._call(state, made), self.where))
        changed = tuple(
            place
            for place, (old, new) in enumerate(zip(before, made, strict=True))
            if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and not torch.equal(old, new)
        )
        return outputs, changed

    def _call(self, state: Mapping[str, torch.Tensor], made: Sequence[Any]) -> Any:
        try:
            if self._given.is_module:
                return torch.func.functional_call(self._given.function, dict(state), tuple(made))
            return self._given.function(*made)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            given, allowed = (
                "results that depend on values in form or number",
                "tensors whose shapes follow from those of the inputs",
            )
            raise InputError(self.where, given=f"{given} ({error.func})", allowed=allowed) from error
        except (Exception, SystemExit) as error:
            raise InputError(self.where, given=line_of(error), action="the reference must run on these inputs") from error

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self._given.path}: {self._given.name}"


def derive(given: Given, arguments: tuple[Argument, ...]) -> Derived:
    """Makes cases of an example.

    Raises:
        InputError: The reference fails on the example, or on every smaller one.
    """
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it tells of each size that is tried in vain
    reference = Reference(given)
    arguments = _ranged(reference, arguments)
    _, _, operators = reference.measured(arguments)
    guesses: list[str] = []
    varying = tuple(size for size in _sizes(arguments) if _varies(reference, arguments, size))
    for place, item in enumerate(arguments):
        if isinstance(item, TensorSpec) and item.distribution == "integers" and item.dtype != "bool":
            guesses.append(f"integers of input {place} are drawn from {int(item.low)} to {int(item.high) - 1}")
    training = _sized(reference, arguments, varying, varying)
    small = _cases(reference, arguments, varying, [row[: len(varying)] for row in SMALL])
    if not small:
        small = [training]
        guesses.append("no size of the example could be made smaller: give small cases of few elements, or checks take long")
    outputs, mutates = _runs(reference, small[0])
    if not outputs and not mutates:
        raise InputError(f"{given.path}: {given.name}", given="no output", allowed="a tensor, a tuple, list or dict of tensors")
    wanted = [[(size // 2) | 1 for size in varying], [(size * 3 // 4) | 1 for size in varying]]
    known = {training.sizes, *(item.sizes for item in small)}
    held_out = [
        item for item in _cases(reference, arguments, varying, wanted) if item.sizes not in known and item is not training
    ]
    if small == [training]:
        small = [dataclasses.replace(training)]
    kind = next((kind for kind, names in KINDS if any(name in operators for name in names)), "pointwise")
    products = bool(operators & {"mm", "bmm", "addmm", "baddbmm", "convolution"})
    return Derived(varying, training, tuple(small), tuple(held_out), mutates, kind, products, tuple(guesses))


def _ranged(reference: Reference, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Integers of which nothing is known get the largest size as their range that the reference takes, as they may be indices."""
    for place, item in enumerate(arguments):
        unknown = (
            isinstance(item, TensorSpec)
            and item.distribution == "integers"
            and item.high == 2
            and item.dtype in ("int32", "int64")
        )
        if not unknown or sum(spec.nbytes for spec in arguments if isinstance(spec, TensorSpec)) > MAX_TRIED:
            continue
        assert isinstance(item, TensorSpec)
        for size in sorted(_sizes(arguments), reverse=True):
            tried = (*arguments[:place], dataclasses.replace(item, high=size), *arguments[place + 1 :])
            try:
                reference.run(tried, 0)
            except InputError:
                continue
            arguments = tried
            break
    return arguments


def _sizes(arguments: Sequence[Argument]) -> tuple[int, ...]:
    specs = [item for item in arguments if isinstance(item, TensorSpec)]
    return tuple(dict.fromkeys(size for spec in specs for size in spec.shape if size > 1))


def _varies(reference: Reference, arguments: Sequence[Argument], size: int) -> bool:
    try:
        for other in (size + 1, max(size // 2 | 1, 3)):
            reference.measured(resized(arguments, {size: other}))
    except InputError:
        return False
    return True


def resized(arguments: Sequence[Argument], sizes: Mapping[int, int]) -> tuple[Argument, ...]:
    """The arguments with other sizes in place of some, wherever those stand in a shape."""
    found: list[Argument] = []
    for item in arguments:
        if isinstance(item, TensorSpec):
            shape = tuple(sizes.get(size, size) for size in item.shape)
            ranged = item.distribution == "integers" and item.high > 2
            high = sizes.get(int(item.high), item.high) if ranged else item.high
            item = dataclasses.replace(
                item, shape=shape, high=high, strides=item.strides if shape == item.shape else _like(item, shape)
            )
        found.append(item)
    return tuple(found)


def _like(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the same order for another shape."""
    if spec.strides is None:
        return None
    order = sorted(range(len(shape)), key=lambda dim: spec.element_strides[dim])
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _cases(
    reference: Reference, arguments: Sequence[Argument], varying: Sequence[int], rows: Sequence[Sequence[int]]
) -> list[Sized]:
    """Those on which the reference runs with data."""
    found: list[Sized] = []
    for row in rows if varying else ():
        sizes = tuple(row) + tuple(3 + 2 * place for place in range(len(varying) - len(row)))
        try:
            case = _sized(reference, arguments, varying, sizes)
            if case.bytes <= MAX_BYTES:
                reference.run(case.arguments, 0)
        except InputError:
            continue
        if case.sizes not in {item.sizes for item in found}:
            found.append(case)
    return found


def _sized(reference: Reference, arguments: Sequence[Argument], varying: Sequence[int], sizes: Sequence[int]) -> Sized:
    made = resized(arguments, dict(zip(varying, sizes, strict=True)))
    moved, flops, _ = reference.measured(made)
    return Sized(tuple(sizes), made, moved, flops)


def _runs(reference: Reference, case: Sized) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    with torch.random.fork_rng(devices=[]):
        outputs, mutates = reference.run(case.arguments, 0)
        torch.manual_seed(1)  # what the reference draws by itself is drawn otherwise
        repeated, _ = reference.run(case.arguments, 0)
    if not all(map(same_bits, outputs, repeated)):
        action = "what is drawn at random must be an input; a dropout needs evaluation mode, or p = 0"
        raise InputError(reference.where, given="other results on equal inputs", action=action)
    _, again = reference.run(case.arguments, 1)
    return outputs, tuple(sorted({*mutates, *again}))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """So that NaN equals NaN."""
    return torch.equal(*(item.contiguous().view(-1).view(torch.uint8) for item in (one, other)))


def flat(value: Any, where: str) -> Iterator[torch.Tensor]:
    """The tensors of a result.

    Raises:
        InputError: It holds something else.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat(item, where)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item, where)
    elif value is not None:
        raise InputError(
            where, given=f"an output of type {type(value).__name__}", allowed="tensors, or tuples, lists, dicts of them"
        )


def _empty(spec: TensorSpec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.element_strides, dtype=getattr(torch, spec.dtype))


def _drawn(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    made = _empty(spec)
    if spec.distribution == "integers":
        values = torch.randint(int(spec.low), max(int(spec.high), int(spec.low) + 1), spec.shape, generator=generator)
    elif spec.distribution == "uniform":
        values = torch.rand(spec.shape, generator=generator) * (spec.high - spec.low) + spec.low
    elif spec.distribution == "normal":
        values = torch.randn(spec.shape, generator=generator) * spec.scale
    else:
        values = torch.full(spec.shape, float(spec.distribution == "ones"))
    return made.copy_(values)


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
