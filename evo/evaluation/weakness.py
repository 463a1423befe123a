"""Turns known cheats on a task before it is searched: would its own cases, draws and tolerance let one through?

The judge is the one of every run, and so are the draws (of a gate for compiled kernels) but for the run's secret; nothing is compiled
or launched. A cheat is tried case by case, and each case on the draws that a search would check, until one of them stops it there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch

from evo.errors import TaskError
from evo.evaluation.base import Effort
from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.registry import cheats_for
from evo.evaluation.cheats.scene import Scene, same_bits
from evo.evaluation.cures import cure_for
from evo.evaluation.draws import choose_draws
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Oracle
from evo.records import Failure
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw, Variation

ANSWERS_SHARE = 8
"""A share of the free memory for the answers that the judge keeps, and as much for the forger's."""
WORKING_BYTES_PER_ELEMENT = 128
"""Inputs, answers in float64 and forged ones, with copies: an element of a case needs about that much while it is looked at."""


class Reach(StrEnum):
    """How far a cheat gets."""

    STOPPED = "stopped"
    CASES = "some cases"
    SEARCH = "the search"
    VERIFICATION = "the search and the verification"


@dataclass(frozen=True)
class Finding:
    """What became of one cheat.

    Attributes:
        task: Name of the task.
        cheat, models: See `Cheat`.
        reach: How far it gets, among the cases looked at.
        passed: Names of the cases that it passes on every draw.
        stopped_by: Case and draw that stopped it first, in words; empty if none does.
        error_ratio: Where it came nearest to being caught: its error as a share of what is allowed.
        place: That case and draw, in words.
        why: Why it passes there.
        cure: What to change.
    """

    task: str
    cheat: str
    models: str
    reach: Reach
    passed: tuple[str, ...] = ()
    stopped_by: str = ""
    error_ratio: float = 0.0
    place: str = ""
    why: str = ""
    cure: str = ""

    @property
    def weak(self) -> bool:
        """Whether a search could end with it."""
        return self.reach in (Reach.SEARCH, Reach.VERIFICATION)

    @property
    def text(self) -> str:
        """One line."""
        return (
            f"task {self.task}: {self.cheat} ({self.models}) would pass {self.reach}, at {self.error_ratio:.2g} of the allowed error "
            f"in {self.place}: {self.why}; cure: {self.cure}"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What was found about one task.

    Attributes:
        task: Its name.
        findings: One per cheat that there was an occasion for, those that get furthest first.
        looked_at: Names of the cases.
        skipped: Names of the others, each with the reason.
        unfit: What the judge says of the reference itself, where it does not pass.
    """

    task: str
    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    unfit: tuple[str, ...] = ()

    @property
    def weaknesses(self) -> tuple[Finding, ...]:
        """The cheats that a search could end with."""
        return tuple(finding for finding in self.findings if finding.weak)


@dataclass(frozen=True)
class Bounds:
    """How much may be spent.

    Attributes:
        seconds: Wall time; cases that are estimated to take longer than what is left of it are skipped. Small cases always come.
        survivors_only: Cases only see cheats that none before stopped, and held-out cases none: enough to know whether a task is
            weak, not which of its cases are.
    """

    seconds: float
    survivors_only: bool = False


@dataclass
class _Attempts:
    """What one cheat did so far."""

    cheat: Cheat
    passed: list[tuple[Case, Draw, float]] = field(default_factory=list)
    stopped: list[tuple[Case, Draw]] = field(default_factory=list)
    exact: bool = True
    varied: bool = False


def diagnose(task: Task, limits: Bounds, device: torch.device | str = "cpu") -> Diagnosis:
    """Tries every known cheat on a task.

    Args:
        task: Loaded and checked.
        limits: See `Bounds`.
        device: Where answers are computed and compared; ``cuda`` has a larger reach in the same time.

    Raises:
        TaskError: The reference fails on one of the cases.
    """
    return _Doctor(task, limits, torch.device(device)).run()


class _Doctor:
    def __init__(self, task: Task, limits: Bounds, device: torch.device) -> None:
        self._task, self._limits, self._device = task, limits, device
        self._answers_bytes = _memory_bytes(device) // ANSWERS_SHARE
        self._judge = Judge(device, self._answers_bytes)
        self._oracle = Oracle(device, self._answers_bytes)
        self._started = time.monotonic()
        self._attempts: list[_Attempts] = []
        self._looked_at: list[str] = []
        self._skipped: list[tuple[str, str]] = []
        self._unfit: list[str] = []
        self._checked: set[Scene] = set()

    def run(self) -> Diagnosis:
        # The largest one first: its shapes tell best which cheats there are to try.
        for case in sorted(self._task.small_cases, key=lambda case: -_elements(self._task, case)):
            if not self._too_large(case):
                self._look(case)
        for case in sorted(self._larger_cases(), key=self._estimate_s):
            if self._limits.survivors_only and not any(attempts.passed for attempts in self._tried()):
                break
            if not self._too_large(case) and not self._too_long(case, self._estimate_s(case)):
                self._look(case)
        tried = [attempts for attempts in self._attempts if attempts.passed or attempts.stopped]
        findings = sorted(map(self._finding, tried), key=lambda item: -list(Reach).index(item.reach))
        return Diagnosis(self._task.name, tuple(findings), tuple(self._looked_at), tuple(self._skipped), tuple(self._unfit))

    def _larger_cases(self) -> tuple[Case, ...]:
        return self._task.training_cases + (() if self._limits.survivors_only else self._task.held_out_cases)

    def _tried(self) -> list[_Attempts]:
        """The cheats that the next case sees."""
        return [attempts for attempts in self._attempts if not (self._limits.survivors_only and attempts.stopped)]

    def _look(self, case: Case) -> None:
        try:
            self._try_all(case)
        except (MemoryError, torch.OutOfMemoryError):
            self._skipped.append((case.name, "it does not fit in memory"))

    def _try_all(self, case: Case) -> None:
        effort = Effort.VERIFY if case in self._task.held_out_cases else Effort.SEARCH
        scenes = [Scene(self._task, case, draw, self._oracle) for draw in choose_draws(self._task, case, effort, compiled=True)]
        started = time.monotonic()
        self._check_reference(scenes[0])
        took = time.monotonic() - started
        if case not in self._task.small_cases and self._too_long(case, took * (len(scenes) + len(self._tried()) / 2)):
            return
        if not self._attempts:
            self._attempts = [_Attempts(cheat) for cheat in cheats_for(scenes[0])]
        self._looked_at.append(case.name)
        for scene in () if self._limits.survivors_only else scenes:
            self._check_reference(scene)
        for attempts in self._tried():
            self._try(attempts, scenes)

    def _check_reference(self, scene: Scene) -> None:
        """Once per scene, before anything is made of it."""
        if scene in self._checked:
            return
        self._checked.add(scene)
        try:
            verdict = self._judge.judge(self._task, scene.case, scene.draw, scene.honest)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            where = f"{self._task.path or self._task.name}: reference on {words(scene.case, scene.draw)}"
            text = " ".join(f"{type(error).__name__}: {error}".split())
            action = "the reference must run on every case, and on every variation that the task allows"
            raise TaskError(where, given=text, action=action) from error
        if isinstance(verdict, Failure):
            self._unfit.append(verdict.message.splitlines()[0])

    def _try(self, attempts: _Attempts, scenes: Sequence[Scene]) -> None:
        """One case, until a draw stops the cheat there."""
        if self._task.statistic is not None:
            self._judge = Judge(self._device, self._answers_bytes)  # it compares the patterns of one candidate's draws
        nearest: tuple[Case, Draw, float] | None = None
        for scene in scenes:
            self._check_reference(scene)
            forged = attempts.cheat.forge(scene) if scene.honest.nbytes else None
            if forged is None:
                continue
            verdict = self._judge.judge(self._task, scene.case, scene.draw, forged)
            if isinstance(verdict, Failure):
                attempts.stopped.append((scene.case, scene.draw))
                return
            attempts.exact &= same_bits(forged, scene.honest)
            attempts.varied |= scene.draw.variation is not Variation.PLAIN
            if nearest is None or verdict.error_ratio > nearest[2]:
                nearest = (scene.case, scene.draw, verdict.error_ratio)
        if nearest is not None:
            attempts.passed.append(nearest)

    def _finding(self, attempts: _Attempts) -> Finding:
        cheat = attempts.cheat
        names = tuple(case.name for case, _, _ in attempts.passed)
        stopped_by = words(*attempts.stopped[0]) if attempts.stopped else ""
        reach = self._reach(attempts)
        if reach is Reach.STOPPED:
            return Finding(self._task.name, cheat.name, cheat.models, reach, stopped_by=stopped_by)
        case, draw, ratio = max(attempts.passed, key=lambda item: item[2])
        scene = Scene(self._task, case, draw, self._oracle)
        forged = cheat.forge(scene)
        assert forged is not None
        why, cure = cure_for(scene, forged, cheat, self._judge)
        return Finding(
            self._task.name, cheat.name, cheat.models, reach, names, stopped_by, ratio, words(case, draw), why, cure
        )  # fmt: skip

    def _reach(self, attempts: _Attempts) -> Reach:
        cheat, held_out = attempts.cheat, {case.name for case in self._task.held_out_cases}
        if not attempts.passed or (cheat.honest_if_exact and attempts.exact and attempts.varied):
            return Reach.STOPPED
        passed, stopped = ([case.name in held_out for case, *_ in items] for items in (attempts.passed, attempts.stopped))
        if all(passed) or not all(stopped):
            return Reach.STOPPED if cheat.honest_in_part else Reach.CASES
        return Reach.VERIFICATION if not stopped and (any(passed) or not held_out) else Reach.SEARCH

    def _too_large(self, case: Case) -> bool:
        needed, there = WORKING_BYTES_PER_ELEMENT * _elements(self._task, case), _memory_bytes(self._device)
        if needed > there:
            self._skipped.append((case.name, f"it needs about {needed / 2**30:.0f} GiB, {there / 2**30:.0f} are free"))
        return needed > there

    def _too_long(self, case: Case, seconds: float) -> bool:
        too_long = seconds > self._limits.seconds - (time.monotonic() - self._started)
        if too_long:
            self._skipped.append((case.name, f"it would take about {max(1.0, seconds):.0f} s here"))
        return too_long

    def _estimate_s(self, case: Case) -> float:
        """From what one core, or one GPU, does in a second; references run in float64 too."""
        draws = len(choose_draws(self._task, case, Effort.SEARCH, compiled=True))
        element_s, flop_s = (1e-9, 2e-13) if self._device.type == "cuda" else (1.5e-7, 4e-10)
        references = 3 * draws + (2 if self._limits.survivors_only else 12)
        comparisons = draws + len(self._tried())
        inputs = sum(spec.nbytes for spec in _specs(self._task, case))
        outputs = (case.bytes - inputs) // 2 if case.bytes > inputs else _elements(self._task, case)
        return (
            references * (case.flops * flop_s + _elements(self._task, case) * element_s / 10) + comparisons * outputs * element_s
        )


def words(case: Case, draw: Draw) -> str:
    """A case and a draw, for a person."""
    return ", ".join(filter(None, (f"case {case.name}", draw.words)))


def _elements(task: Task, case: Case) -> int:
    return max(sum(spec.numel for spec in _specs(task, case)), case.bytes // 4)


def _specs(task: Task, case: Case) -> list[TensorSpec]:
    return [item for item in (*case.arguments, *task.parameters.values()) if isinstance(item, TensorSpec)]


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62
