"""A process that writes a store until it is killed: ``python -m population_store.contract.writer URL FIRST``.

It prints ``open`` once it owns the store, then the number of each batch after `record` returned: what was printed must be there.
"""

from __future__ import annotations

import os
import sys
from itertools import count

from population_store.contract import samples
from population_store.opening import open_store


def main(url: str, first: int) -> None:
    """Records one request with outcome, evaluation and event per batch, from number `first` on."""
    store = open_store(url, write=True)
    _say("open")
    for number in count(first):
        store.record([*samples.history(number), samples.event(number)], samples.spent_after(number + 1))
        _say(str(number))


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # unbuffered: what is said has happened


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
