"""The contract of an evaluator, and the unit of work it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from evo.records import Configuration, Evaluation, Trial, Variant


class Effort(StrEnum):
    """SEARCH: training cases, raced timing. VERIFY: fresh worker, held-out cases too, the full number of pairs."""

    SEARCH = "search"
    VERIFY = "verify"


@dataclass(frozen=True)
class Baseline:
    """The frozen starting variant that speedups are measured against, tuned per case (case name → configuration)."""

    variant: Variant
    configurations: Mapping[str, Configuration]


@dataclass(frozen=True)
class WorkItem:
    """One evaluation to do.

    Attributes:
        number: The request it belongs to; with the run's seed it seeds tuning.
        variant: What to evaluate.
        baseline: None for starting kernels, which are then their own baseline (speedup 1).
        effort: See `Effort`.
        hints: Configurations that did well on relatives, to start tuning from; for VERIFY the chosen one per case in `chosen`.
        chosen: Case name → configuration that must be used (no tuning).
        incumbent: Fitness to reach; timing may stop early when it is out of reach. 0 for none.
        front: Fitness of the best variant of the task; who comes near it in a quick tune gets a deep one. 0 for none.
        known: Trials of this variant on this device, from a tuning that was interrupted: what they answer is not timed again.
    """

    number: int
    variant: Variant
    baseline: Baseline | None
    effort: Effort = Effort.SEARCH
    hints: tuple[Configuration, ...] = ()
    chosen: Mapping[str, Configuration] = field(default_factory=dict)
    incumbent: float = 0.0
    front: float = 0.0
    known: tuple[Trial, ...] = ()


Claim = Callable[[str, str], str | None]
"""(plan hash, variant id) → id of the variant that already has this plan hash, or None, which reserves it."""


Heard = Callable[[int, Sequence[Trial]], None]
"""(number of the request, trials of one configuration): called as soon as they are there, in order."""


class Evaluator(ABC):
    """Turns work into verdicts. One per device; may own child processes until `close`."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Device model as stored with results, e.g. ``NVIDIA H200`` or ``cuda:90 (modelled)``."""

    @property
    def concurrency(self) -> int:
        """How many threads may call `evaluate` at a time."""
        return 1

    @abstractmethod
    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """The verdict. Never raises for a bad kernel; raises DeviceError where the device itself is unusable."""

    def listen(self, heard: Heard) -> None:  # noqa: B027  (nothing to tell is a complete answer)
        """Calls `heard` from now on with what tunings find, before their verdict; an evaluator that does not tune says nothing."""

    @abstractmethod
    def close(self) -> None:
        """Ends child processes. Idempotent."""
