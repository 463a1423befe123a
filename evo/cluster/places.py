"""Where evaluators may be: one place per GPU or core of each node, closed where an evaluator failed again and again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evo.cluster.nodes import Node

MAX_STRIKES = 5
"""An evaluator that ends so often without one result in between is not started again for `REST_S` seconds."""

REST_S = 600.0
"""A full disk or a node without memory may be mended meanwhile."""


@dataclass(frozen=True)
class Place:
    """One evaluator's place: a node, and a number there."""

    node_id: str
    number: int


class Places:
    """Knows free and closed places; starts nothing.

    Args:
        gpu: Evaluators take a GPU each, else a core.
        wanted: How many evaluators there should be; None for as many as there are places.
        clock: Monotonic seconds.
    """

    def __init__(self, *, gpu: bool, wanted: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._wanted = wanted
        self._clock = clock
        self._strikes: dict[Place, int] = {}
        self._resting: dict[Place, float] = {}
        self._closed: set[Place] = set()

    def offered(self, nodes: Sequence[Node]) -> Mapping[str, int]:
        """Node id → places. Without GPUs and without a wish, one core of the driver's node is left to the engine and proposers."""
        counts = {node.node_id: node.gpus if self._gpu else node.cpus for node in nodes}
        if not self._gpu and self._wanted is None:
            for node in nodes:
                if node.here and sum(counts.values()) > 1:
                    counts[node.node_id] = max(0, node.cpus - 1)
        return counts

    def cores(self, node: Node) -> int | None:
        """How many cores of a node are an evaluator's own, however many are started there meanwhile; None where Ray was told of none."""
        beside = self.offered([node])[node.node_id]
        most = beside if self._wanted is None else min(beside, self._wanted)
        return max(1, node.cpus // max(1, most)) if node.cpus else None

    def free(self, nodes: Sequence[Node], taken: Collection[Place]) -> tuple[Place, ...]:
        """Places where evaluators should be started now, spread over the nodes that have fewest.

        Args:
            nodes: The live ones.
            taken: Places with an evaluator.
        """
        offered = self.offered([node for node in nodes if not node.leaving])
        left = {node_id: list(self._open(node_id, count, taken)) for node_id, count in offered.items()}
        busy = Counter(place.node_id for place in taken)
        missing = sum(map(len, left.values())) if self._wanted is None else self._wanted - len(taken)
        found: list[Place] = []
        while len(found) < missing and any(left.values()):
            node_id = min((node_id for node_id in left if left[node_id]), key=busy.__getitem__)
            busy[node_id] += 1
            found.append(left[node_id].pop(0))
        return tuple(found)

    def hopeless(self, nodes: Sequence[Node]) -> bool:
        """There are places, and all of them are closed."""
        offered = self.offered([node for node in nodes if not node.leaving])
        return sum(offered.values()) > 0 and not any(any(self._open(*item, ())) for item in offered.items())

    def failed(self, place: Place, delivered: int) -> int:
        """Counts an evaluator's end after so many results; how often in a row there was none. The place may be closed now."""
        self._strikes[place] = strikes = 1 if delivered else self._strikes.get(place, 0) + 1
        if strikes >= MAX_STRIKES:
            self._strikes[place] = MAX_STRIKES - 1  # one more chance later
            self._resting[place] = self._clock() + REST_S
        return strikes

    def close(self, place: Place) -> None:
        """Nothing is started there again."""
        self._closed.add(place)

    def _open(self, node_id: str, count: int, taken: Collection[Place]) -> Iterator[Place]:
        for number in range(count):
            place = Place(node_id, number)
            if place not in taken and place not in self._closed and self._resting.get(place, 0.0) <= self._clock():
                yield place
