"""Cheats of one output. The others are handed over as they should be, for a judge has to see each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.scene import Scene
from evo.evaluation.oracle import Outputs

ForgeOne = Callable[[Scene, int], torch.Tensor | None]


def forged_outputs(scene: Scene, index: int) -> Iterator[Cheat]:
    """The cheats of the output at a position among the flattened ones."""
    place = scene.places[index]
    rows = _OUTPUT_CHEATS if scene.task.statistic is not None else _OUTPUT_CHEATS + _ANSWER_CHEATS
    yield from (_of_output(index, place, *row) for row in rows)
    yield from _copies(scene, index, place)


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
