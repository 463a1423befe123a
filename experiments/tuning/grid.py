"""A measured grid: every configuration of one kernel on one case with its latency or the reason why it has none, as kept on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evo.records import Configuration, KnobValue

PASSED = "passed"


@dataclass(frozen=True)
class Entry:
    """One configuration.

    Attributes:
        configuration: All knobs.
        status: ``passed``, or why it cannot be used; `message` says it in words.
        latency_us: Median of `samples`, None unless it passed.
        samples: Quick latencies in microseconds: one, or those of the second timing, which the fastest got.
        gate_s, time_s: GPU seconds of the gate and of one quick latency (the first).
        programs: Of the largest launch.
        registers, spill_bytes, shared_bytes: The most that a kernel takes, as compiled: what was known before any timing.
    """

    configuration: Configuration
    status: str
    message: str = ""
    latency_us: float | None = None
    samples: tuple[float, ...] = ()
    gate_s: float = 0.0
    time_s: float = 0.0
    programs: int = 0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0


COLUMNS = tuple(item.name for item in dataclasses.fields(Entry) if item.name != "configuration")
"""Of a file, beside the values of knobs."""


@dataclass(frozen=True)
class Grid:
    """All configurations of one kernel on one case.

    Attributes:
        name, task, case, kind: What it is of.
        device: It was measured on, or modelled for.
        measured: False where latencies are modelled.
        space, default: What a tuner is given.
        entries: In the order of the space.
        compile_s: Core seconds of tracing and compiling the whole grid (wall seconds times workers).
        workers: Cores that did.
        noise: Relative standard deviation of one quick latency, pooled over the configurations that were timed again.
        noise_floor: Half-width of the A/A interval of the fastest configuration's pairs, 0 where unknown.
        seed: Of the inputs.
        remark: What else is to be known.
    """

    name: str
    task: str
    case: str
    kind: str
    device: str
    measured: bool
    space: Mapping[str, tuple[KnobValue, ...]]
    default: Configuration
    entries: tuple[Entry, ...]
    compile_s: float = 0.0
    workers: int = 1
    noise: float = 0.0
    noise_floor: float = 0.0
    seed: int = 0
    remark: str = ""
    session: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def valid(self) -> tuple[Entry, ...]:
        """Those that passed."""
        return tuple(entry for entry in self.entries if entry.latency_us is not None)

    @cached_property
    def latencies(self) -> Mapping[Configuration, float | None]:
        """Configuration → latency."""
        return {entry.configuration: entry.latency_us for entry in self.entries}

    @property
    def best_us(self) -> float:
        """The truth that tuners look for.

        Raises:
            ValueError: No configuration passed.
        """
        return min(entry.latency_us or math.inf for entry in self.valid)

    @property
    def best(self) -> Configuration:
        """The fastest configuration."""
        return min(self.valid, key=lambda entry: entry.latency_us or math.inf).configuration

    def near_best(self, within: float) -> int:
        """How many configurations lie within a share of the best: how hard the grid is."""
        return sum((entry.latency_us or math.inf) <= (1 + within) * self.best_us for entry in self.valid)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Status → how many configurations have it."""
        counts: dict[str, int] = {}
        for entry in self.entries:
            counts[entry.status] = counts.get(entry.status, 0) + 1
        return counts

    def save(self, folder: Path) -> None:
        """Writes NAME.json into a folder, at once or not at all: a line per entry, the values of its knobs in the order of the space."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        plain["space"] = {name: list(choices) for name, choices in self.space.items()}
        plain["default"] = dict(self.default)
        rows = [
            [[entry.configuration[knob] for knob in self.space], *(getattr(entry, name) for name in COLUMNS)]
            for entry in self.entries
        ]
        head = json.dumps({**plain, "columns": COLUMNS, "entries": None})
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        partial = folder / f".{self.name}.json"
        partial.write_text(head.replace('"entries": null', f'"entries": [\n{lines}\n]') + "\n", encoding="utf-8")
        partial.replace(folder / f"{self.name}.json")

    @classmethod
    def load(cls, path: Path) -> Grid:
        """Reads what `save` wrote."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        space = {name: tuple(choices) for name, choices in plain["space"].items()}
        columns = plain.pop("columns")
        entries = []
        for values, *rest in plain["entries"]:
            found = dict(zip(columns, rest, strict=True))
            chosen = Configuration({**plain["default"], **dict(zip(space, values, strict=True))})
            entries.append(Entry(**{**found, "configuration": chosen, "samples": tuple(found["samples"])}))
        return cls(**{**plain, "space": space, "default": Configuration(plain["default"]), "entries": tuple(entries)})


def load_grids(folder: Path) -> list[Grid]:
    """All grids of a folder, by name.

    Raises:
        FileNotFoundError: There is none.
    """
    paths = sorted((folder / "grids").glob("*.json"))
    if not paths:
        raise FileNotFoundError(
            f"no measured grids in {folder / 'grids'}; run: python experiments/tuning_truth.py measure --out {folder}"
        )
    return [Grid.load(path) for path in paths]


def pooled_noise(samples: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation of one sample, from several samples of several configurations; 0 of none."""
    squares, freedom = 0.0, 0
    for values in samples:
        if len(values) > 1:
            mean = statistics.fmean(values)
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0
