"""The folder of a suite's run: where each problem's task, store and outcome are, and what is still to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import StoreError, TaskError
from evo.plain import Record
from evo.suites.base import CHECKOUT, Problem, Suite
from evo.suites.launched import HOSTED
from evo.suites.preparing import Ready, read_ready

PROBLEMS, ABOUT, STORE, SEARCHED, COMPARED = "problems", "suite.json", "store.sqlite", "searched.json", "compared.json"


@dataclass(frozen=True)
class Searched(Record):
    """How the search of a problem ended.

    Attributes:
        reason: Why.
        done: Whether its budget was used, or nothing is left to try; else a second run goes on.
        evaluations, gpu_s: The budget it had.
        device: What it ran on, as `evo.cluster.spec.RunSpec.device`.
    """

    reason: str
    done: bool
    evaluations: int | None
    gpu_s: float | None
    device: str

    def serves(self, evaluations: int | None, gpu_s: float | None) -> bool:
        """Whether nothing is left to do with such a budget."""
        return self.done and _covers(self.evaluations, evaluations) and _covers(self.gpu_s, gpu_s)


def _covers(had: float | None, wanted: float | None) -> bool:
    return had is None or (wanted is not None and wanted <= had)


class RunFolder:
    """The folder of a suite's run.

    Args:
        path: Made where it is not there.
        suite: Which.
        root: Of the checkout; linked, as task files find it from their own place.

    Raises:
        StoreError: The folder is of another suite, or cannot be written to.
        TaskError: The checkout is no folder.
    """

    def __init__(self, path: Path, suite: Suite, root: Path) -> None:
        if not root.is_dir():
            raise TaskError(f"--suite-root {root}", given="no folder", action=f"give the root of a checkout of {suite.title}")
        self.path, self.suite, self.root = path.resolve(), suite, root.resolve()
        try:
            self._claim(self.path / ABOUT)
            link = self.path / CHECKOUT
            if not link.is_symlink() or link.resolve() != self.root:
                link.unlink(missing_ok=True)
                link.symlink_to(self.root)
        except OSError as error:
            action = "give a --store that is a folder, or can be made one, and that you may write to"
            raise StoreError(f"--store {path}", given=error.strerror, action=action) from error

    def _claim(self, about: Path) -> None:
        if not about.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(about, {"suite": self.suite.name})
            return
        try:
            known = json.loads(about.read_text(encoding="utf-8"))["suite"]
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(str(about), given="not what a run writes there", action="give another --store") from error
        if known != self.suite.name:
            raise StoreError(str(self.path), given=f"a run of {known}", action=f"give another --store for {self.suite.name}")

    def of(self, problem: Problem) -> Path:
        """The folder of a problem."""
        return self.path / PROBLEMS / problem.name

    def ready(self, problem: Problem) -> Ready | None:
        """See `evo.suites.preparing.read_ready`."""
        return read_ready(self.of(problem))

    def hosted_last(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        """In their order, but for those that keep a device from the others."""
        known = {problem.name: self.ready(problem) for problem in problems}
        return tuple(sorted(problems, key=lambda problem: (ready := known[problem.name]) is not None and HOSTED in ready.notes))

    def searched(self, problem: Problem) -> Searched | None:
        """How its search ended; None where none was begun or it was cut off."""
        path = self.of(problem) / SEARCHED
        return Searched.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def compared(self, problem: Problem) -> dict[str, Any] | None:
        """What `evo.suites.comparing` measured."""
        return read_json(self.of(problem) / COMPARED)


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a file of JSON; None where there is none."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_whole(path: Path, data: Any) -> None:
    """Writes JSON so that a reader finds the old content or the new one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1), encoding="utf-8")
    part.replace(path)


def selected(problems: Sequence[Problem], wanted: str | None) -> tuple[Problem, ...]:
    """The problems that a user names, by what they expect to gain, most first; all without names.

    Args:
        problems: Of the suite.
        wanted: Names, titles or numbers of titles, separated by commas; ``3-7`` for numbers from 3 to 7.

    Raises:
        TaskError: A name is of no problem.
    """
    ranked = tuple(sorted(problems, key=lambda problem: -problem.gain))
    if wanted is None:
        return ranked
    found: set[str] = set()
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        matching = {problem.name for problem in problems if _matches(problem, word)}
        if not matching:
            titles = [problem.title for problem in problems]
            raise TaskError(f"--problems {word}", given="no such problem", allowed=titles)
        found |= matching
    return tuple(problem for problem in ranked if problem.name in found)


def _matches(problem: Problem, word: str) -> bool:
    if word in (problem.name, problem.title, problem.title.removeprefix("test_")):
        return True
    first, _, last = word.partition("-")
    number = problem.title.split("_")[0]
    return first.isdigit() and number.isdigit() and int(first) <= int(number) <= int(last or first)
