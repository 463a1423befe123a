"""How the climbs of one evaluator share its tier: one at a time has the device, and pays for that time alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from evo.evaluation.tier import Candidate, Checked, Tier, Timing
from evo.records import Failure
from evo.tasks.base import Task
from evo.tasks.draws import Draw


class Turns:
    """One climb's access to the tier; steps of other climbs may come between its own, unless it asks to be `alone`.

    Args:
        tier: Shared.
        turn: Shared by all climbs on the tier.
    """

    def __init__(self, tier: Tier, turn: RLock) -> None:
        self._tier = tier
        self._turn = turn
        self.gpu_s = 0.0
        self.device = tier.device
        self.trust = tier.trust
        self.latency_kind = tier.latency_kind
        self.gates_on_binaries = tier.gates_on_binaries
        self.gate_cases = tier.gate_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """See `Tier.check`."""
        with self._mine():
            return self._tier.check(task, candidate, draws)

    def latency_us(self, task: Task, candidate: Candidate) -> float | Failure:
        """See `Tier.latency_us`."""
        with self._mine():
            return self._tier.latency_us(task, candidate)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, pairs: int, incumbent: float) -> Timing | Failure:
        """See `Tier.compare`."""
        with self._mine():
            return self._tier.compare(task, candidate, baseline, pairs=pairs, incumbent=incumbent)

    def fresh(self) -> None:
        """See `Tier.fresh`."""
        with self._mine():
            self._tier.fresh()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other climb has the tier until the block ends."""
        with self._turn:
            yield

    @contextmanager
    def _mine(self) -> Iterator[None]:
        with self._turn:
            before = self._tier.gpu_s
            try:
                yield
            finally:
                self.gpu_s += self._tier.gpu_s - before
