"""Good kernels from elsewhere that a search may show as examples: from earlier population stores and from folders of modules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from evo.errors import ConfigError
from operators.base import Example
from population_store.opening import open_store

BEST_OF_TASK = 4
"""Variants taken of each task of a store."""

MAX_FILES = 1_000
"""Of a folder, the first in order of their paths: every one is compared with the kernel at hand in every request."""

MAX_BYTES = 60_000
"""Of a file; longer ones are no examples."""


def read_library(places: Sequence[str]) -> tuple[Example, ...]:
    """All good kernels of some places, in their order, without repetitions. The text is data: it is read, never run.

    Args:
        places: Paths or URLs of population stores, and folders; in a folder, every module with a Triton kernel counts as good.

    Raises:
        ConfigError: A place is neither.
        StoreError: A store cannot be read.
    """
    found: dict[str, Example] = {}
    for place in places:
        folder = Path(place).expanduser()
        if "://" not in place and not folder.exists():
            raise ConfigError("library", given=place, allowed="population stores and folders", action="no such path")
        examples = _from_folder(folder) if "://" not in place and folder.is_dir() else _from_store(place)
        for example in examples:
            found.setdefault(example.source, example)
    return tuple(found.values())


def _from_store(place: str) -> Iterator[Example]:
    with open_store(place) as store:
        for task in json.loads(store.header.tasks):
            for row in store.ranking(task, BEST_OF_TASK):
                evaluation = row.verify or row.search
                yield Example(row.variant.source, f"task {task} of run {store.header.name}", evaluation.speedup)


def _from_folder(folder: Path) -> Iterator[Example]:
    for path in sorted(folder.rglob("*.py"))[:MAX_FILES]:
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            source = path.read_text(encoding="utf-8", errors="replace")
            if "@triton.jit" in source:
                yield Example(source, str(path.relative_to(folder)))
