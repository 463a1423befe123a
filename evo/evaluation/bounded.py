"""A cache of large things, bounded by their bytes: the least recently used ones are dropped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """Keeps values up to a number of bytes; the newest one is kept whatever its size. Not thread-safe.

    Args:
        capacity_bytes: Of all values together.
        nbytes: Bytes of one value, asked once when it is made.
        limit: Number of values, at most.
    """

    def __init__(self, capacity_bytes: int, nbytes: Callable[[T], int], limit: int = 1 << 20) -> None:
        self._capacity_bytes = capacity_bytes
        self._nbytes = nbytes
        self._limit = limit
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made where it is not there."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        value = make()
        size = self._nbytes(value)
        self._kept[key] = (value, size)
        self.held_bytes += size
        while len(self._kept) > 1 and (self.held_bytes > self._capacity_bytes or len(self._kept) > self._limit):
            self.held_bytes -= self._kept.popitem(last=False)[1][1]
        return value

    def discard(self, keep: Callable[[Hashable], bool] = lambda key: False) -> None:
        """Drops all values but those whose key is to be kept."""
        for key in [key for key in self._kept if not keep(key)]:
            self.held_bytes -= self._kept.pop(key)[1]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)
