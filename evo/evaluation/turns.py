"""How the climbs of one evaluator share its tier: checks side by side, timing alone; each pays for its share of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, get_ident

from evo.evaluation.stages import StageClock
from evo.evaluation.tier import Candidate, Checked, Sides, Tier, Timing
from evo.records import Failure
from evo.tasks.base import Task
from evo.tasks.draws import Draw


class Sharing:
    """Who may use the device at the same time: any number of threads `shared`, or one thread `alone`.

    A thread that waits to be alone keeps newcomers out, so timing never starves behind checks; while it has to wait for an examination,
    which takes seconds and leaves the device idle for most of them, they come in all the same. A thread that is alone may ask for
    either again; one that shares must not ask to be alone.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._sharers = 0
        self._owner: int | None = None
        self._depth = 0
        self._waiting = 0
        self._examining = 0

    @contextmanager
    def examining(self) -> Iterator[None]:
        """As `shared`, for what takes long."""
        with self.shared():
            with self._changed:
                self._examining += 1
                self._changed.notify_all()
            try:
                yield
            finally:
                with self._changed:
                    self._examining -= 1

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Nobody is alone with the device until the block ends, unless it is this thread."""
        with self._changed:
            mine = self._owner == get_ident()
            if not mine:
                self._changed.wait_for(lambda: self._owner is None and (not self._waiting or self._examining > 0))
                self._sharers += 1
        try:
            yield
        finally:
            if not mine:
                with self._changed:
                    self._sharers -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread has the device until the block ends."""
        with self._changed:
            if self._owner != get_ident():
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: self._owner is None and not self._sharers)
                finally:
                    self._waiting -= 1
                self._owner = get_ident()
            self._depth += 1
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._owner = None
                    self._changed.notify_all()


class Turns:
    """One climb's access to the tier.

    Args:
        tier: Shared.
        sharing: Shared by all climbs on the tier.
        clock: Of the evaluator.
    """

    def __init__(self, tier: Tier, sharing: Sharing, clock: StageClock) -> None:
        self._tier = tier
        self._sharing = sharing
        self._clock = clock
        self.gpu_s = 0.0
        self.device = tier.device
        self.trust = tier.trust
        self.latency_kind = tier.latency_kind
        self.gates_on_binaries = tier.gates_on_binaries
        self.gate_cases = tier.gate_cases
        self.noise_of = tier.noise_of
        self.conditions = tier.conditions

    def announce(self, candidates: Sequence[Candidate]) -> None:
        """See `Tier.announce`; takes no turn."""
        self._tier.announce(candidates)

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """See `Tier.check`."""
        checked = self.check_all(task, [(candidate, draws)])
        return checked if isinstance(checked, Failure) else checked[0]

    def check_all(self, task: Task, asked: Sequence[tuple[Candidate, Sequence[Draw]]]) -> list[Checked] | Failure:
        """See `Tier.check_all`."""
        with self._turn(self._sharing.shared if self._tier.overlaps else self._sharing.alone, "check"):
            return self._tier.check_all(task, asked)

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        """See `Tier.latency_us`."""
        with self._turn(self._sharing.alone, "tune"):
            return self._tier.latency_us(task, candidate, worth_us)

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        """See `Tier.compare_all`."""
        with self._turn(self._sharing.alone, "time"):
            return self._tier.compare_all(task, sides, pairs=pairs, placement=placement)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other climb has the tier until the block ends."""
        with self._sharing.alone():
            yield

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Nobody is timed until the block ends, which uses processes of its own."""
        with self._sharing.examining():
            yield

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """No other climb has the tier, and what runs on it runs in new processes, until the block ends."""
        with self._sharing.alone():
            self._tier.fresh()
            try:
                yield
            finally:
                self._tier.settle()

    @contextmanager
    def _turn(self, enter: Callable[[], AbstractContextManager[None]], stage: str) -> Iterator[None]:
        with self._clock.stage("wait for device"):
            turn = enter()
            turn.__enter__()
        before = self._tier.gpu_s_of_thread
        try:
            with self._clock.stage(stage):
                yield
        finally:
            self.gpu_s += self._tier.gpu_s_of_thread - before
            turn.__exit__(None, None, None)
