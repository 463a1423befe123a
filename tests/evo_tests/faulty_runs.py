"""Searches on a cluster that is broken under them: what is broken and promised, how a search is driven, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from evo.records import EventKind, Spent
from evo.reporting.status import StatusReader, render_status
from population_store.opening import open_store
from tests.evo_tests.journal_check import Journal, check_journal, read_journal
from tests.evo_tests.machines import Machine, Machines
from tests.evo_tests.running_processes import alive, spent_of, wait_until

TIMES = "TRITON_EVOLVE_FAULT_TIMES"
"""Environment variable with a file that measured times are added to; see `tests.evo_tests.fault_table`."""

CONFIGURATION = """
name: faulty
seed: 3
tasks: [softmax]
target: cuda:90
evaluator: {evaluator}
search: {{islands: 2, migration_interval: 5, pending_limit: 12, verify_elites: 2}}
budget: {{evaluations: {evaluations}}}
evaluation: {{tune_trials: 0}}
cluster: {{device: cpu, evaluators: {evaluators}}}
"""

Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        broken: What is done to a search.
        happens: What follows, as the test asserts it.
        within_s: Seconds within which everything that was waiting or in hand is judged (or, where it must be resumed, the first
            new verdict is recorded).
        resumed: It goes on by one command, not by itself.
    """

    broken: str
    happens: str
    within_s: float
    resumed: bool = False


def breaks(broken: str, happens: str, within_s: float, *, resumed: bool = False) -> Callable[[Test], Test]:
    """Marks a test as the proof of a row."""

    def mark(test: Test) -> Test:
        test.fault = Fault(broken, happens, within_s, resumed)  # type: ignore[attr-defined]
        return test

    return mark


class Search:
    """One search, its store, and what was known when it was broken.

    Args:
        machines: The cluster, started.
        folder: Of the store.
        evaluator: Function of `tests.evo_tests.faulty_evaluators`.
        evaluations: Its budget.
        evaluators: How many.
    """

    def __init__(
        self, machines: Machines, folder: Path, evaluator: str, evaluations: int, evaluators: int | str = "auto"
    ) -> None:
        self._machines = machines
        self.store = folder / "run.sqlite"
        self._config = folder / "run.yaml"
        name = f"tests.evo_tests.faulty_evaluators:{evaluator}"
        self._config.write_text(CONFIGURATION.format(evaluator=name, evaluations=evaluations, evaluators=evaluators))
        self._before: Journal | None = None
        self._broken_at = 0.0
        self._driver: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """`triton-evolve run`."""
        with self._machines.started("run", str(self._config), "--store", str(self.store)) as self._driver:
            yield self._driver

    @contextlib.contextmanager
    def resumed(self) -> Iterator[subprocess.Popen[str]]:
        """`triton-evolve resume`."""
        with self._machines.started("resume", str(self.store)) as self._driver:
            yield self._driver

    @property
    def spent(self) -> Spent:
        """By now."""
        return spent_of(self.store)

    def reach(self, evaluations: int) -> None:
        """Waits until so many are recorded."""
        wait_until(lambda: self.spent.evaluations >= evaluations or self._ended, f"{evaluations} evaluations", 240)
        assert not self._ended, self._machines.said

    def broken(self) -> None:
        """Notes what is recorded, waits and is in hand at this moment."""
        self._before = self.journal()
        self._broken_at = time.monotonic()

    @property
    def since_broken(self) -> float:
        """Seconds."""
        return time.monotonic() - self._broken_at

    def recovers(self, fault: Fault) -> float:
        """Waits until what was waiting or in hand is judged, or where it was resumed for a new verdict, and checks how long it took."""
        assert self._before is not None
        known = self._before
        judged = {number for number, _ in known.evaluations}
        waiting = {number for number, entry in known.outcomes.items() if entry.variant is not None} - judged

        def recovered() -> bool:
            now = self.journal()
            if fault.resumed:
                return len(now.evaluations) > len(known.evaluations)
            new = {entry.variant.variant_id for number, entry in known.outcomes.items() if entry.variant and number in waiting}
            done = {entry.evaluation.variant_id for entry in now.searched}
            return new <= done and len(now.evaluations) > len(known.evaluations)

        wait_until(lambda: recovered() or self._ended, "recovery", fault.within_s)
        took = self.since_broken
        assert recovered(), self._machines.said
        _note(fault, took)
        return took

    def interrupt(self) -> None:
        """Ctrl-C."""
        for pid in self._machines.head.titled("evo.main")[-1:]:  # the command itself, not what entered the machine for it
            os.kill(pid, signal.SIGINT)

    def finish(self, status: int = 0) -> None:
        """Waits for the end, and checks that nothing was lost or counted twice and that no process is left."""
        assert self._driver is not None
        assert self._driver.wait(timeout=300) == status, self._machines.said
        with open_store(str(self.store)) as opened:
            assert check_journal(opened, finished=status == 0) == []
            after = read_journal(opened)
        if self._before is not None:
            assert after.requests.items() >= self._before.requests.items(), "a recorded decision was changed"
            assert after.outcomes.items() >= self._before.outcomes.items(), "a recorded proposal was changed"
            assert after.evaluations.items() >= self._before.evaluations.items(), "a recorded verdict was changed"
        self.leaves_nothing()

    def leaves_nothing(self) -> None:
        """No process of the run is left on any machine."""
        wait_until(lambda: not alive(self._machines.ours()), "end of all processes of the run", 40)

    def tells(self, *patterns: str) -> None:
        """`triton-evolve status` says so."""
        text = io.StringIO()
        with open_store(str(self.store)) as opened:
            Console(file=text, width=400).print(render_status(StatusReader(opened).look()))
        for pattern in patterns:
            assert re.search(pattern, text.getvalue()), f"{pattern!r} is not in:\n{text.getvalue()}"

    def journal(self) -> Journal:
        """As recorded by now."""
        with open_store(str(self.store)) as opened:
            return read_journal(opened)

    def events(self, kind: EventKind) -> list[str]:
        """Reasons of the events of one kind."""
        with open_store(str(self.store)) as opened:
            return [event.reason for event in opened.events() if event.kind is kind]

    @property
    def _ended(self) -> bool:
        return self._driver is not None and self._driver.poll() is not None


@contextlib.contextmanager
def two_machines(
    folder: Path, evaluator: str, evaluations: int, evaluators: int | str = "auto", **joining: Any
) -> Iterator[tuple[Machines, Machine, Search]]:
    """A head with two cores, another machine called a, and a search on them that has not begun."""
    with Machines(folder) as machines:
        machines.start_head(2)
        other = machines.join("a", **joining)
        yield machines, other, Search(machines, folder, evaluator, evaluations, evaluators)


def _note(fault: Fault, took: float) -> None:
    place = os.environ.get(TIMES)
    if place is None:
        return
    path = Path(place)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known.setdefault(fault.broken, []).append(round(took, 1))
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
