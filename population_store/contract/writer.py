"""A process that writes a store until it is killed: ``python -m population_store.contract.writer URL FIRST``.

It prints ``open`` once it owns the store, then the index of each batch after `record` returned: what was printed must be there.
"""

from __future__ import annotations

import os
import sys
from itertools import count

from population_store.contract import samples
from population_store.opening import open_store


def main(url: str, first: int) -> None:
    """Records `samples.batch` after batch, from index `first` on."""
    store = open_store(url, write=True)
    _say("open")
    for index in count(first):
        store.record(samples.batch(index), samples.spent_after(index + 1))
        _say(str(index))


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # unbuffered: what is said has happened


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
