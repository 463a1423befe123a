"""Which evaluator holds which evaluations since when, and which of them take so long that somebody idle should do them too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from evo.search.leases import Lease

FIRST_PATIENCE_S = 60.0
"""How long an evaluation may take before it counts as slow, while none has come to its end."""

LEAST_PATIENCE_S = 10.0
PATIENCE = 3.0
"""After that: so many times the longest of the newest `REMEMBERED` ones, and never less than `LEAST_PATIENCE_S` seconds."""

REMEMBERED = 64


class Holdings:
    """Not thread-safe; belongs to the engine's event loop.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, dict[str, Lease]] = {}
        self._since: dict[str, float] = {}
        self._took: deque[float] = deque(maxlen=REMEMBERED)

    def give(self, worker: str, leases: Iterable[Lease]) -> None:
        """Notes what a worker was handed out, in this order."""
        now, held = self._clock(), self._held.setdefault(worker, {})
        for lease in leases:
            held[lease.token] = lease
            self._since[lease.token] = now

    def done(self, worker: str, token: str) -> None:
        """A verdict came; how long it took is learned from."""
        since = self._since.pop(token, None)
        if self._held.get(worker, {}).pop(token, None) is not None and since is not None:
            self._took.append(self._clock() - since)

    def of(self, worker: str) -> tuple[str, ...]:
        """Tokens that a worker holds."""
        return tuple(self._held.get(worker, ()))

    def take(self, worker: str) -> tuple[Lease, ...]:
        """All that a worker holds, in the order it was given; it holds nothing from here on."""
        leases = tuple(self._held.pop(worker, {}).values())
        for lease in leases:
            self._since.pop(lease.token, None)
        return leases

    def slow(self, asking: str) -> tuple[str, ...]:
        """Tokens of evaluations that others than `asking` have held for too long and nobody else does, the longest first."""
        patience = max(LEAST_PATIENCE_S, PATIENCE * max(self._took)) if self._took else FIRST_PATIENCE_S
        latest = self._clock() - patience
        if next(iter(self._since.values()), latest + 1) > latest:  # the first of them was handed out longest ago
            return ()
        work: dict[tuple[int, str], list[str]] = {}
        own: set[tuple[int, str]] = set()
        for worker, held in self._held.items():
            for token, lease in held.items():
                key = (lease.item.number, lease.item.effort)
                work.setdefault(key, []).append(token)
                if worker == asking:
                    own.add(key)
        alone = [tokens[0] for key, tokens in work.items() if len(tokens) == 1 and key not in own]
        return tuple(sorted((token for token in alone if self._since[token] <= latest), key=self._since.__getitem__))
