"""The Pareto front over latency, numerical error and peak memory; smaller is better in each, and of equals the more trusted one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from evo.records import Evaluation, TrustLevel


@dataclass(frozen=True)
class Point:
    """Where one PASSED variant stands.

    Attributes:
        variant_id: Whose point.
        latency_us: Geometric mean over cases, microseconds.
        error_ratio: Worst share of the tolerance.
        peak_bytes: Largest memory beyond the inputs.
        distrust: 0 for the highest trust level, more for lower ones; it decides between points that are equal otherwise.
    """

    variant_id: str
    latency_us: float
    error_ratio: float
    peak_bytes: int
    distrust: int = 0

    @classmethod
    def of(cls, evaluation: Evaluation) -> Point:
        """The point of a PASSED evaluation."""
        distrust = list(TrustLevel).index(evaluation.trust) if evaluation.trust is not None else 0
        return cls(evaluation.variant_id, evaluation.latency_us, evaluation.error_ratio, evaluation.peak_bytes, distrust)

    @property
    def values(self) -> tuple[float, float, int]:
        """The three objectives."""
        return self.latency_us, self.error_ratio, self.peak_bytes

    def covers(self, other: Point) -> bool:
        """No worse in every objective (equal points cover each other, unless this one is trusted less)."""
        if self.values == other.values:
            return self.distrust <= other.distrust
        return all(mine <= theirs for mine, theirs in zip(self.values, other.values, strict=True))


class Front:
    """Keeps the points that none covers, in the order they came. Of equal points the most trusted one stays, and of those the first.

    What is covered is forgotten. Where a point leaves, or changes, what it alone covered comes back from those that the caller still has.
    """

    KEPT: ClassVar = ("_front",)

    def __init__(self) -> None:
        self._front: dict[str, Point] = {}

    def __contains__(self, variant_id: str) -> bool:
        return variant_id in self._front

    @property
    def points(self) -> tuple[Point, ...]:
        """The points on the front, in the order they came."""
        return tuple(self._front.values())

    def add(self, point: Point) -> tuple[str, ...]:
        """Adds a point of a variant that is not on the front. Returns the ids that entered or left the front."""
        if any(other.covers(point) for other in self._front.values()):
            return ()
        gone = [other.variant_id for other in self._front.values() if point.covers(other)]
        for variant_id in gone:
            del self._front[variant_id]
        self._front[point.variant_id] = point
        return (*gone, point.variant_id)

    def replace(self, variant_id: str, by: Point | None, others: Iterable[Point]) -> tuple[str, ...]:
        """Takes away the point of a variant, or gives it another one. Returns the ids that entered or left the front.

        Args:
            variant_id: Whose point.
            by: Its new point, None for none.
            others: Points that may come back.
        """
        if variant_id not in self._front:
            return () if by is None else self.add(by)
        before = set(self._front)
        known = {point.variant_id: point for point in others} | self._front
        del known[variant_id]
        if by is not None:
            known[variant_id] = by
        self._front = {point.variant_id: point for point in pareto_front(known.values())}
        return tuple(sorted(before ^ set(self._front)))


def pareto_front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other covers, in the order given; of equal ones the most trusted stays, then the first."""
    order = {point: place for place, point in enumerate(points)}
    front: list[Point] = []
    # Sorted by the objectives, a point can only be covered by one before it.
    for point in sorted(order, key=lambda item: (item.values, item.distrust, order[item])):
        if not any(other.covers(point) for other in front):
            front.append(point)
    return tuple(sorted(front, key=order.__getitem__))
