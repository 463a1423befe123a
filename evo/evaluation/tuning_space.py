"""A knob space as numbers: every configuration is a row of codes, and distance between rows means what it means for kernels.

Numeric knobs become their rank among the sorted choices, so 64 and 128 are neighbours and 4096 is far away, whatever the scale; other
knobs become one column per choice, so that all of them are equally far apart. A numeric knob that is declared as 0, with positive choices
beside it, leaves its value to a rule of the author's: its 0 lies beside the middle of the range, not below its end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evo.records import Configuration, KnobValue

ENUMERATED = 4096
"""Spaces up to this size are listed; of larger ones a sample is."""

BESIDE = 2.0
"""Steps by which the value of a rule lies beside the range."""

Codes = tuple[int, ...]
"""Position of each knob's value among its choices, knobs in alphabetical order."""
Floats = NDArray[np.float64]


class KnobSpace:
    """The knobs that vary, their choices in order, and the values of all others.

    Args:
        space: Knob → allowed values.
        default: Assigns every knob.

    Raises:
        ValueError: `default` lacks a knob of the space or has a value outside of it; a knob has no choice.
    """

    def __init__(self, space: Mapping[str, tuple[KnobValue, ...]], default: Configuration) -> None:
        for name, choices in space.items():
            if name not in default or default[name] not in choices:
                raise ValueError(f"the default {default!r} does not set {name} to one of {list(choices)}")
        self.default = default
        self.choices = {name: _in_order(name, choices) for name, choices in sorted(space.items())}
        self.names = tuple(self.choices)
        self.counts = tuple(len(choices) for choices in self.choices.values())
        self.size = math.prod(self.counts)
        self.ordered = tuple(is_ordered(name, choices) for name, choices in self.choices.items())
        self.ruled = tuple(
            ordered and default[name] == 0 and len(choices) > 2 and all(float(choice) > 0 for choice in choices[1:])
            for (name, choices), ordered in zip(self.choices.items(), self.ordered, strict=True)
        )
        widths = [1 + ruled if ordered else n for n, ordered, ruled in zip(self.counts, self.ordered, self.ruled, strict=True)]
        self.columns = tuple(knob for knob, width in enumerate(widths) for _ in range(width))
        """Per column of `features`, the knob it belongs to."""

    def codes(self, configuration: Configuration) -> Codes:
        """Of a configuration within the space.

        Raises:
            ValueError: It is not.
        """
        outside = [name for name in self.names if configuration[name] not in self.choices[name]]
        if outside:
            raise ValueError(f"{outside[0]} = {configuration[outside[0]]!r} is none of {list(self.choices[outside[0]])}")
        return tuple(self.choices[name].index(configuration[name]) for name in self.names)

    def configuration(self, codes: Sequence[int]) -> Configuration:
        """Inverse of `codes`."""
        values = {name: self.choices[name][code] for name, code in zip(self.names, codes, strict=True)}
        return Configuration({**self.default, **values})

    def nearest(self, hint: Mapping[str, KnobValue]) -> Configuration:
        """A hint with what the space does not allow replaced: numbers by the nearest choice in ratio, all else by the default's."""
        values = {name: self._nearest(name, hint[name]) for name in self.names if name in hint}
        return Configuration({**self.default, **values})

    def features(self, rows: Sequence[Codes]) -> Floats:
        """One row per configuration: ranks of ordered knobs, indicators of the others."""
        table = np.asarray(rows, dtype=np.int64).reshape(len(rows), len(self.names))
        parts: list[Floats] = []
        for knob, count in enumerate(self.counts):
            column = table[:, knob]
            if not self.ordered[knob]:
                parts.append(np.eye(count)[column])
            elif self.ruled[knob]:
                by_rule = column == 0
                parts.append(np.stack([np.where(by_rule, count / 2, column), BESIDE * by_rule], axis=1))
            else:
                parts.append(column[:, None].astype(np.float64))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(rows), 0))

    def candidates(self, generator: np.random.Generator, around: Sequence[Codes]) -> list[Codes]:
        """All configurations of a space that can be listed; else a uniform sample, and those a step or two from given ones."""
        if self.size <= ENUMERATED:
            return list(itertools.product(*map(range, self.counts)))
        table = np.stack([generator.integers(0, count, ENUMERATED // 2) for count in self.counts], axis=1)
        found = dict.fromkeys(tuple(map(int, row)) for row in table)
        for centre in around:
            for near in self.neighbours(centre):
                found.setdefault(near)
                found.update(dict.fromkeys(self.neighbours(near)))
        return list(found)

    def neighbours(self, codes: Codes) -> Iterator[Codes]:
        """What differs in one knob: by one step where it is ordered, in any way where not."""
        for knob, (code, count) in enumerate(zip(codes, self.counts, strict=True)):
            others = (code - 1, code + 1) if self.ordered[knob] else range(count)
            for other in others:
                if other != code and 0 <= other < count:
                    yield (*codes[:knob], other, *codes[knob + 1 :])

    def _nearest(self, name: str, value: KnobValue) -> KnobValue:
        choices = self.choices[name]
        if value in choices:
            return value
        if not is_ordered(name, choices) or isinstance(value, str | bool):
            return self.default[name]
        scale = [_log(float(choice)) for choice in choices]
        return min(zip(choices, scale, strict=True), key=lambda item: abs(item[1] - _log(float(value))))[0]


def is_ordered(name: str, choices: Sequence[KnobValue]) -> bool:
    """Whether choices are numbers that mean amounts. An autotuner's are positions in a list that its author wrote in any order."""
    return not name.startswith("autotune:") and all(isinstance(c, int | float) and not isinstance(c, bool) for c in choices)


def _in_order(name: str, choices: Sequence[KnobValue]) -> tuple[KnobValue, ...]:
    distinct = tuple(dict.fromkeys(choices))
    if not distinct:
        raise ValueError(f"knob {name} has no choice")
    return tuple(sorted(distinct, key=float)) if is_ordered(name, distinct) else distinct


def _log(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)
