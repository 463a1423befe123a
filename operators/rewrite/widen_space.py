"""Extends a knob's list in `SPACE` beyond the end at which the best configurations lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import libcst as cst

from evo.knobs import MAX_CHOICES, read_knobs
from evo.records import Evaluation, KnobValue
from operators.base import Parent
from operators.edits import appended, edited, knob_table, with_part
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, Source, code

FURTHER = 2
"""Values added at most: a tuner that likes them can be followed again, and each one multiplies the space."""

WARPS, STAGES, SIZES, COUNTS = (1, 32), (1, 8), (16, 65536), (1, 65536)
"""Smallest and largest values of `num_warps`, `num_stages`, tile sizes, and powers of two that already start below 16."""

OPTIONS = frozenset({"num_ctas", "maxnreg", "kpack", "waves_per_eu", "matrix_instr_nonkdim"})
"""Launch options whose legal values depend on the device in other ways."""


class WidenSpace(Rewrite):
    """`"BLOCK": [256, 512, 1024]` becomes `[256, 512, 1024, 2048, 4096]` where some case is fastest at 1024.

    Without an evaluation every end of every ordered knob counts. Powers of two double and halve, `num_stages` goes by one. `CONFIG`
    stays, so the child launches what its parent does until tuning picks a new value. A parent that did not pass is left alone:
    more choices do not repair it.
    """

    name = "widen_space"
    when = "The best configuration found lies at the edge of the space."
    cites = "Powers of two around what won, as in TorchInductor's coordinate descent tuning."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per knob and end."""
        return _sites(source, None)

    def sites_of(self, parent: Parent, source: Source) -> Iterator[Site]:
        """One site per knob and end that is best for some case."""
        return _sites(source, parent.evaluation)


def _sites(source: Source, evaluation: Evaluation | None) -> Iterator[Site]:
    if evaluation is not None and not evaluation.cases:
        raise NotApplicableError(f"the parent's evaluation is {evaluation.status}, so no configuration of it is best")
    if not source.launches:
        raise NotApplicableError("the module launches no kernel with plain arguments, so its knobs may mean nothing")
    space = read_knobs(source.module.code).space
    found = False
    for knob, choices in space.items():
        numbers = [value for value in choices if type(value) is int]
        if len(numbers) != len(choices) or numbers not in (sorted(numbers), sorted(numbers, reverse=True)):
            continue
        for upwards in (False, True):
            end = max(numbers) if upwards else min(numbers)
            further = _further(knob, numbers, upwards=upwards)[: MAX_CHOICES - len(numbers)]
            if further and _best_at(knob, end, evaluation):
                found = True
                strategy = f"{knob} may also be {' or '.join(map(str, further))}"
                yield Site(strategy, partial(_widened, source, knob, numbers, further))
    if not found:
        where = "" if evaluation is None else ", or no case is fastest at an end"
        raise NotApplicableError(f"no list of SPACE can grow: {', '.join(space) or 'no knobs'} at their limits{where}")


def _best_at(knob: str, end: KnobValue, evaluation: Evaluation | None) -> bool:
    return evaluation is None or any(case.configuration.get(knob) == end for case in evaluation.cases)


def _further(knob: str, numbers: Sequence[int], *, upwards: bool) -> list[int]:
    """Values beyond an end, nearest first; empty for knobs with another rule than these."""
    value = max(numbers) if upwards else min(numbers)
    by_one = knob.startswith("num_stages")
    if knob in OPTIONS or (not by_one and any(number < 1 or number & (number - 1) for number in numbers)):
        return []
    low, high = COUNTS if min(numbers) < SIZES[0] else SIZES
    low, high = STAGES if by_one else WARPS if knob.startswith("num_warps") else (low, high)
    found: list[int] = []
    for _ in range(FURTHER):
        value = value + (1 if upwards else -1) if by_one else value * 2 if upwards else value // 2
        if low <= value <= high:
            found.append(value)
    return found


def _widened(source: Source, knob: str, numbers: Sequence[int], further: Sequence[int]) -> cst.Module:
    table = knob_table(source.module, "SPACE")
    elements = [] if table is None else [e for e in table.elements if isinstance(e, cst.DictElement)]
    lists = [element.value for element in elements if code(element.key).strip("\"'") == knob]
    if len(lists) != 1 or not isinstance(lists[0], cst.List | cst.Tuple):
        raise NotApplicableError(f"the choices of {knob} are no plain list")
    upwards, rising = further[0] > numbers[0], numbers[0] <= numbers[-1]
    items: list[Any] = list(lists[0].elements)
    for value in further:
        new = cst.Element(cst.Integer(str(value)))
        items = appended(items, new) if upwards == rising else _prepended(items, new)
    module = edited(source.module, [(lists[0], with_part(elements=items))])
    assert isinstance(module, cst.Module)
    return module


def _prepended(items: Sequence[Any], item: cst.Element) -> list[Any]:
    comma = items[0].comma if len(items) > 1 else None
    if not isinstance(comma, cst.Comma) or "#" in code(comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [item.with_changes(comma=comma), *items]
