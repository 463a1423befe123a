"""Known ways to look right without being right, each as a forger of outputs; published exploits of judges of kernels are the source.

Nothing here is compiled or launched: a cheat is judged by what it would hand over. Where a task has several outputs, a cheat of one
output hands over the others as they should be, for a judge has to see each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evo.evaluation.inputs import Inputs, applicable_variations
from evo.evaluation.oracle import Outputs
from evo.evaluation.scene import Scene, same_bits, shapes
from evo.evaluation.tolerance import PRODUCT_EPSILON
from evo.tasks.base import TensorSpec
from evo.tasks.draws import Variation

Forge = Callable[[Scene], Outputs | None]
ForgeOne = Callable[[Scene, int], torch.Tensor | None]
TILE = 16
"""Sizes that are multiples of it need no mask in a kernel that was written without."""


@dataclass(frozen=True)
class Cheat:
    """One cheat, ready to be tried on a task.

    Attributes:
        name: What is handed over, e.g. ``zeros for output 0``.
        models: The exploit that it stands for, in a few words.
        cure: What makes a task see it, where nothing nearer to the cause is found.
        forge: The outputs, or None where there is nothing to cheat with (the outputs would be what an honest kernel gives).
        honest_if_exact: Outputs that equal the honest ones bit by bit on varied inputs too are no cheat: the task asks for just that.
        honest_in_part: It is honest in some of the cases on purpose, so that a case which it passes says nothing about the case.
    """

    name: str
    models: str
    cure: str
    forge: Forge
    honest_if_exact: bool = False
    honest_in_part: bool = False


def cheats_for(scene: Scene) -> tuple[Cheat, ...]:
    """Every cheat that can be tried on the task of a scene, whose outputs and arguments tell which there are."""
    found: list[Cheat] = []
    one_answer = scene.task.statistic is None
    for index, place in enumerate(scene.places):
        found += [_of_output(index, place, *row) for row in _OUTPUT_CHEATS + (_ANSWER_CHEATS if one_answer else ())]
        found += _copies(scene, index, place)
    if not one_answer:  # another sample is as good as this one
        return (*found, *_STRUCTURE_CHEATS)
    for key, label in _changeable(scene):
        found += [_ignoring(key, label, value) for value in (0, 1)]
        found.append(_last_left_out(key, label))
    found += [_rounding(dtype) for dtype in _MANTISSA_BITS]
    return (*found, *_STRUCTURE_CHEATS)


# One output forged, the others honest -------------------------------------------------------------------------------------------


def _of_output(index: int, place: str, name: str, models: str, cure: str, forge: ForgeOne) -> Cheat:
    def outputs(scene: Scene) -> Outputs | None:
        if index >= len(scene.honest.tensors) or scene.honest.tensors[index].numel() == 0:
            return None
        tensor = forge(scene, index)
        return None if tensor is None else scene.with_output(index, tensor)

    return Cheat(f"{name} for {place}", models, cure, outputs)


def _zeros(scene: Scene, index: int) -> torch.Tensor:
    return torch.zeros_like(scene.honest.tensors[index])


def _constant(scene: Scene, index: int) -> torch.Tensor:
    honest, learned = scene.honest.tensors[index], scene.learned.tensors[index]
    return _filled(honest, _mean(_wide(learned)))


def _row_constant(scene: Scene, index: int) -> torch.Tensor | None:
    honest = scene.honest.tensors[index]
    if honest.dim() == 0 or honest.shape[-1] < 2:
        return None
    forged = _filled(honest, _wide(honest).nan_to_num().mean(dim=-1, keepdim=True))
    return None if torch.equal(forged, honest) else forged


def _stale(scene: Scene, index: int) -> torch.Tensor | None:
    stale, honest = scene.stale.tensors[index], scene.honest.tensors[index]
    return stale.clone() if stale.shape == honest.shape else None


def _half_then_zero(scene: Scene, index: int) -> torch.Tensor:
    return _half(scene.honest.tensors[index], _zeros(scene, index))


def _half_then_stale(scene: Scene, index: int) -> torch.Tensor | None:
    stale = _stale(scene, index)
    return None if stale is None else _half(scene.honest.tensors[index], stale)


def _half(honest: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    written = (torch.arange(honest.numel(), device=honest.device) < honest.numel() // 2).reshape(honest.shape)
    return _filled(honest, torch.where(written, honest, rest))


def _last_column_unwritten(scene: Scene, index: int) -> torch.Tensor | None:
    honest = scene.honest.tensors[index]
    if honest.dim() == 0:
        return None
    forged = honest.clone()
    forged[..., -1] = _poison(honest.dtype)
    return forged


def _nan(scene: Scene, index: int) -> torch.Tensor:
    honest = scene.honest.tensors[index]
    return _filled(honest, _poison(honest.dtype))


def _saturated(scene: Scene, index: int) -> torch.Tensor | None:
    honest = scene.honest.tensors[index]
    if honest.dtype == torch.bool or honest.is_complex():
        return None
    wide = honest.double()
    limit = float(wide.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) / 2
    forged = _filled(honest, wide.clamp(-limit, limit))
    return None if limit == 0 or torch.equal(forged.nan_to_num(), honest.nan_to_num()) else forged


def _off_by_slack(scene: Scene, index: int) -> torch.Tensor | None:
    honest = scene.honest.tensors[index]
    if honest.dtype.is_floating_point or honest.dtype == torch.bool:
        return None
    step = max(1, scene.task.tolerance.integer_slack)
    return torch.where(honest > torch.iinfo(honest.dtype).max - step, honest - step, honest + step)


def _unchanged(scene: Scene, index: int) -> torch.Tensor | None:
    position = scene.mutated.get(index)
    if position is None:
        return None
    return _filled(scene.honest.tensors[index], scene.inputs.arguments[position].detach())


_VALUES = "draw the inputs with another distribution or a larger scale, so that this output varies and is not {what}"
_OUTPUT_CHEATS: tuple[tuple[str, str, str, ForgeOne], ...] = (
    ("zeros", "zeros under the tolerance", _VALUES.format(what="near zero"), _zeros),
    ("one constant", "trivial statistics, a constant passes", _VALUES.format(what="the same everywhere"), _constant),
    ("a constant per row", "trivial statistics, a constant passes", _VALUES.format(what="the same all over a row"), _row_constant),
    ("half of it, zeros after", "tiles never computed", _VALUES.format(what="near zero in its second half"), _half_then_zero),
    ("the last column unwritten", "a store mask off by one", "let the reference return no NaN there", _last_column_unwritten),
    ("NaN everywhere", "NaN compares as fine", "draw inputs for which the reference returns no NaN", _nan),
    ("integers off by the slack", "every integer wrong within the slack", "a smaller tolerance.integer_share", _off_by_slack),
    ("nothing written", "an argument left as it was", "draw the arguments so that the update changes them", _unchanged),
)  # fmt: skip
_ANSWER_CHEATS: tuple[tuple[str, str, str, ForgeOne], ...] = (
    ("the answer to another seed", "stale memory, replayed answers, ignored inputs", _VALUES.format(what="always the same"), _stale),
    ("half of it, stale after", "tiles never computed", _VALUES.format(what="always the same in its second half"), _half_then_stale),
    ("saturated values", "values clamped to a smaller range", "draw the inputs with a larger scale", _saturated),
)  # fmt: skip
"""Of outputs that have one right answer, which random ones have not."""


def _copies(scene: Scene, index: int, place: str) -> Iterator[Cheat]:
    for position, item in enumerate(scene.inputs.arguments):
        if not isinstance(item, torch.Tensor) or scene.mutated.get(index) == position:
            continue
        if item.shape != scene.honest.tensors[index].shape:
            continue
        cure = f"draw argument {position} from a distribution (negative values, a larger scale) on which the task changes it"
        cheat = _of_output(index, place, f"a copy of argument {position}", "the input handed back", cure, _copy(position))
        yield dataclasses.replace(cheat, honest_if_exact=True)


def _copy(position: int) -> ForgeOne:
    def forge(scene: Scene, index: int) -> torch.Tensor:
        honest, item = scene.honest.tensors[index], scene.inputs.arguments[position].detach()
        return _filled(honest, item) if item.shape == honest.shape else torch.zeros_like(honest)

    return forge


# The reference on other inputs than those given ---------------------------------------------------------------------------------


Key = int | str
"""A position among the arguments, or the name of a parameter."""


def _changeable(scene: Scene) -> Iterator[tuple[Key, str]]:
    for name, tensor in scene.inputs.parameters.items():
        if tensor.dtype.is_floating_point:
            yield name, f"parameter {name}"
    for position, item in enumerate(scene.inputs.arguments):
        # What is updated in place has to be the caller's own tensor.
        if isinstance(item, torch.Tensor) and item.dtype.is_floating_point and position not in scene.task.mutates:
            yield position, f"argument {position}"


def _changed(inputs: Inputs, key: Key, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    if isinstance(key, str):
        return Inputs(inputs.arguments, {**inputs.parameters, key: change(inputs.parameters[key])})
    arguments: tuple[Any, ...] = tuple(change(item) if at == key else item for at, item in enumerate(inputs.arguments))
    return Inputs(arguments, inputs.parameters)


def _ignoring(key: Key, label: str, value: int) -> Cheat:
    fill: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like if value else torch.zeros_like
    cure = f"draw {label} from a normal or uniform distribution, with a larger scale than now, so that it shows in the outputs"
    return Cheat(
        f"{label} taken as {('zeros', 'ones')[value]}",
        "a bias, scale or input left out",
        cure,
        lambda scene: scene.answer(f"without_{key}_{value}", lambda inputs: _changed(inputs, key, fill)),
    )


def _last_left_out(key: Key, label: str) -> Cheat:
    def shorten(tensor: torch.Tensor) -> torch.Tensor:
        keep = torch.ones(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
        keep[-1] = 0
        return tensor * keep

    def forge(scene: Scene) -> Outputs | None:
        tensor = scene.inputs.parameters[key] if isinstance(key, str) else scene.inputs.arguments[key]
        if tensor.dim() == 0 or tensor.shape[-1] < 2:
            return None
        return scene.answer(f"shorter_{key}", lambda inputs: _changed(inputs, key, shorten))

    cure = f"a small case with few elements (odd, say 5) in the last dimension of {label}, where each of them weighs more"
    return Cheat(f"the last column of {label} left out", "a load mask off by one", cure, forge)


_MANTISSA_BITS: Mapping[str, int] = {"TF32": 10, "float16": 10, "bfloat16": 7}


def _rounding(kind: str) -> Cheat:
    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        if kind != "TF32":
            return tensor.to(torch.float16 if kind == "float16" else torch.bfloat16).to(tensor.dtype)
        if tensor.dtype is not torch.float32:
            return tensor
        # Half a unit of the tenth mantissa bit is added, then the thirteen bits below are cut off: rounds to nearest.
        bits = tensor.detach().contiguous().view(torch.int32)
        rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
        return tensor + (rounded - tensor.detach())  # keeps the gradient

    def change(scene: Scene, inputs: Inputs) -> Inputs:
        for key, _ in _changeable(scene):
            inputs = _changed(inputs, key, narrow)
        return inputs

    epsilon = 2.0 ** -_MANTISSA_BITS[kind]

    def forge(scene: Scene) -> Outputs | None:
        if PRODUCT_EPSILON[scene.task.tolerance.products] >= epsilon or not _finer_than(scene, epsilon):
            return None  # the task says that it allows this, or rounds its outputs so that it hides what is lost inside
        forged = scene.answer(f"in_{kind}", lambda inputs: change(scene, inputs))
        return None if forged is None or same_bits(forged, scene.honest) else forged

    cure = "a smaller tolerance.ratio or tolerance.floor_epsilons, or outputs of the narrower dtype if that precision is enough"
    return Cheat(f"inputs rounded to {kind}", "a lower precision than asked for", cure, forge)


def _finer_than(scene: Scene, epsilon: float) -> bool:
    """Whether an input and an output of the task resolve more than `epsilon`."""
    inputs, outputs = scene.inputs.tensors, scene.honest.tensors
    return all(
        any((item.is_floating_point() or item.is_complex()) and torch.finfo(item.dtype).eps < epsilon for item in tensors)
        for tensors in (inputs, outputs)
    )


# Honest in some cases or draws, zeros in the others -----------------------------------------------------------------------------


def _honest_or_zeros(scene: Scene, honest: bool) -> Outputs:
    if honest:
        return scene.honest
    return Outputs(scene.honest.structure, tuple(torch.zeros_like(tensor) for tensor in scene.honest.tensors))


def _hard_coded(scene: Scene) -> Outputs:
    return _honest_or_zeros(scene, shapes(scene.case) in {shapes(case) for case in scene.task.training_cases})


def _whole_tiles(scene: Scene) -> Outputs:
    sizes = [item.shape for item in scene.case.arguments if isinstance(item, TensorSpec)]
    whole = all(
        size % TILE == 0 or size == 1 or (at < len(shape) - 1 and size < TILE) for shape in sizes for at, size in enumerate(shape)
    )
    return _honest_or_zeros(scene, whole)


def _plain_only(scene: Scene) -> Outputs | None:
    if not applicable_variations(dataclasses.replace(scene.task, variations=frozenset(Variation)), scene.case):
        return None  # there is nothing to vary: integers, say
    return _honest_or_zeros(scene, scene.draw.variation is Variation.PLAIN)


_STRUCTURE_CHEATS = (
    Cheat(
        "right for the shapes of the training cases only",
        "hard-coded shapes",
        "give small and held-out cases of other shapes, odd ones among them",
        _hard_coded,
        honest_in_part=True,
    ),
    Cheat(
        f"right for multiples of {TILE} only",
        "missing masks",
        "give a small case with odd sizes, say 3 x 7, and a held-out case with a prime one",
        _whole_tiles,
        honest_in_part=True,
    ),
    Cheat(
        "right for the declared distribution only",
        "a fast path for the structure that the tests happen to have",
        "allow variations of the inputs in the task",
        _plain_only,
        honest_in_part=True,
    ),
)


def _filled(like: torch.Tensor, values: torch.Tensor | float) -> torch.Tensor:
    """A tensor of the form of another with other values, rounded where it holds integers."""
    forged = like.detach().clone()
    wide = torch.as_tensor(values, device=like.device)
    if not (like.is_floating_point() or like.is_complex()) and wide.is_floating_point():
        wide = wide.round()
    return forged.copy_(wide.expand(like.shape))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _mean(values: torch.Tensor) -> torch.Tensor:
    finite = values[torch.isfinite(values)]
    return finite.mean() if finite.numel() else torch.zeros((), dtype=values.dtype, device=values.device)


def _poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 1.0 if dtype in (torch.bool, torch.uint8) else -1.0
