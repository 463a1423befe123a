"""Results under keys: equal work is done once, also while it is still being done, and the memory of results is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Closed(RuntimeError):
    """Nothing more is done here."""


@dataclass
class _Work(Generic[V]):
    """Something asked for that is not there yet: what waits for it, how many still want it, and how urgently it was queued."""

    priority: int
    future: Future[V] = field(default_factory=Future)
    wanted: int = 0
    begun: bool = False


class Shelf(Generic[V]):
    """Thread-safe. Whoever asks first is told to do the work: `ask`, then (in any thread) `begin`, then `settle` or `fail`.

    Args:
        capacity: Of all results kept, in the unit of `weigh`; the least recently used make room for others.
        weigh: Weight of a result, e.g. its bytes.
        keeps: Whether a result may serve later askers too; those who asked already all get it.
    """

    def __init__(self, capacity: int, weigh: Callable[[V], int], keeps: Callable[[V], bool]) -> None:
        self._capacity, self._weigh, self._keeps = capacity, weigh, keeps
        self._kept: OrderedDict[Hashable, tuple[Future[V], int]] = OrderedDict()
        self._works: dict[Hashable, _Work[V]] = {}
        self._weight = 0
        self._closed = False
        self._lock = Lock()

    @property
    def weight(self) -> int:
        """Of the results kept."""
        with self._lock:
            return self._weight

    def ask(self, key: Hashable, priority: int) -> tuple[Future[V], bool]:
        """The result to come, and whether the caller must queue the work: it is new, or was queued for later than `priority` (then it is
        queued twice, and only the first to begin does it).

        Raises:
            Closed: The shelf is.
        """
        with self._lock:
            if self._closed:
                raise Closed("nothing more is prepared: it was closed")
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0], False
            new = key not in self._works
            work = self._works.setdefault(key, _Work(priority))
            sooner = not work.begun and priority < work.priority
            work.priority = min(work.priority, priority)
            work.wanted += 1
            return work.future, new or sooner

    def give_up(self, key: Hashable, asked: Future[V]) -> None:
        """One asker wants what it asked for no more. Work that nobody wants is never begun; work that was begun goes on."""
        with self._lock:
            work = self._works.get(key)
            if work is None or work.future is not asked:
                return
            work.wanted -= 1
            if work.wanted > 0 or work.begun:
                return
            del self._works[key]
        work.future.cancel()

    def begin(self, key: Hashable) -> bool:
        """Whether the work is to be done now, by the caller: it is wanted still, and nobody began it."""
        with self._lock:
            work = self._works.get(key)
            if work is None or work.begun:
                return False
            work.begun = True
            return True

    def reopen(self, key: Hashable) -> None:
        """Work that was begun must be done in another way: queue it again."""
        with self._lock:
            if key in self._works:
                self._works[key].begun = False

    def settle(self, key: Hashable, result: V) -> None:
        """The work is done."""
        work = self._taken(key, result)
        if work is not None:
            work.future.set_result(result)

    def fail(self, key: Hashable, error: BaseException) -> None:
        """The work cannot be done: whoever waits gets the exception, and who asks next makes another attempt."""
        work = self._taken(key, None)
        if work is not None:
            work.future.set_exception(error)

    def close(self) -> None:
        """Cancels what is not there yet."""
        with self._lock:
            self._closed = True
            works = list(self._works.values())
            self._works.clear()
        for work in works:
            work.future.cancel()

    def _taken(self, key: Hashable, result: V | None) -> _Work[V] | None:
        with self._lock:
            work = self._works.pop(key, None)
            if work is None or result is None or not self._keeps(result):
                return work
            weight = self._weigh(result)
            self._kept[key] = (work.future, weight)
            self._weight += weight
            while self._weight > self._capacity:
                self._weight -= self._kept.popitem(last=False)[1][1]
            return work
