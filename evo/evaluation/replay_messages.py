"""What is asked of the replay process and what it answers, as data that needs no GPU to be read."""

from __future__ import annotations

from dataclasses import dataclass

from evo.evaluation.checking import Differs
from evo.evaluation.health import Reading
from evo.tracing.compiler import Binary
from evo.tracing.plan import LaunchPlan


@dataclass(frozen=True)
class Work:
    """A plan on one case of a task (task as a reference that `load_task` takes). Binaries that this process has already are named by
    their hash alone."""

    task: str
    case: str
    plan: LaunchPlan
    plan_hash: str
    binaries: tuple[Binary | str, ...]


@dataclass(frozen=True)
class Missing:
    """The answer to work with binaries that this process does not have (any more)."""

    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    """What a checked run left.

    Attributes:
        token: To release the outputs with, once they are judged.
        structure, outputs: Pickled tensors with their structure.
        violations: Guard bands changed.
        changed_inputs: Position of an argument or name of a parameter.
        differs: Whether repeats gave equal bits.
        peak_bytes: Beyond the inputs.
    """

    token: int
    structure: str
    outputs: bytes
    violations: int
    changed_inputs: tuple[int | str, ...]
    differs: Differs
    peak_bytes: int

    @property
    def sound(self) -> bool:
        """Whether memory was used as it should be; only then the values mean something."""
        return not self.violations and not self.changed_inputs and self.differs in (Differs.NOT, Differs.UNDEFINED)


@dataclass(frozen=True)
class Compared:
    """Latencies of candidate and baseline, microseconds, pair by pair; whether outputs of a timed call of the candidate, chosen at
    random, equal those of a checked run on the same inputs; pairs discarded because the device throttled, and the reasons if it
    never stopped; what the driver said at the end."""

    mine: tuple[float, ...]
    other: tuple[float, ...]
    as_checked: bool
    discarded: int
    throttled: tuple[str, ...]
    reading: Reading
