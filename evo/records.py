"""The frozen records that all rooms speak in; constructors refuse contradictory ones.

Units are in field names. Every record that is stored round-trips through `to_json` / `from_json`
(plain JSON values only), so that stores, sandboxes and processes exchange data, never objects.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from evo.exchanges import Exchange as Exchange
from evo.exchanges import Usage as Usage
from evo.plain import Record as Record
from evo.plain import content_id as content_id
from evo.verdicts import MAX_MESSAGE as MAX_MESSAGE
from evo.verdicts import MAX_SIGNATURE as MAX_SIGNATURE
from evo.verdicts import CaseResult as CaseResult
from evo.verdicts import Configuration as Configuration
from evo.verdicts import Evaluation as Evaluation
from evo.verdicts import Failure as Failure
from evo.verdicts import KernelUse as KernelUse
from evo.verdicts import KnobValue as KnobValue
from evo.verdicts import LatencyKind as LatencyKind
from evo.verdicts import Stage as Stage
from evo.verdicts import Status as Status
from evo.verdicts import Trial as Trial
from evo.verdicts import TrustLevel as TrustLevel
from evo.verdicts import geometric_mean as geometric_mean


@dataclasses.dataclass(frozen=True)
class Variant(Record):
    """One kernel module of one task, identified by its content.

    Attributes:
        task: Task name.
        source: Python source of the module. It defines the task's entry and may declare knobs (see `evo.knobs`).
    """

    task: str
    source: str

    @functools.cached_property
    def variant_id(self) -> str:
        """Content hash of task and source."""
        return content_id(self.task, self.source)


@dataclasses.dataclass(frozen=True)
class Request(Record):
    """One decision of the engine: apply this operator to these parents. Written before it is handed out.

    Attributes:
        number: Position in the run, from 0; with the run's seed it determines all randomness of the proposal.
        task: Task name.
        island: Index of the island.
        lineage: Lineage the child will belong to, e.g. ``softmax/0/3`` (task/island/ordinal).
        operator: Registered operator name, several joined by ``+`` for a chain, or ``start`` for a starting kernel.
        parents: Variant ids, the first one the child's main parent.
        model: Label of the language model to ask; empty where the operator asks none.
    """

    number: int
    task: str
    island: int
    lineage: str
    operator: str
    parents: tuple[str, ...]
    model: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))


@dataclasses.dataclass(frozen=True)
class Proposal(Record):
    """What an operator returned for a request: a new module and a summary of the strategy behind it."""

    source: str
    strategy: str
    exchanges: tuple[Exchange, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(data["source"], data["strategy"], tuple(Exchange.from_json(item) for item in data["exchanges"]))


@dataclasses.dataclass(frozen=True)
class NoProposal(Record):
    """An operator gave no module: it does not apply, or it failed (refusal, endpoint error, unusable reply).

    Attributes:
        reason: One sentence.
        failed: False where the operator does not apply to these parents, True where it should have worked.
    """

    reason: str
    failed: bool = False
    exchanges: tuple[Exchange, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(data["reason"], data["failed"], tuple(Exchange.from_json(item) for item in data["exchanges"]))


class EventKind(StrEnum):
    """What the engine did besides asking and recording."""

    MIGRATION = "migration"
    STALLED = "stalled"
    TRAPPED = "trapped"
    RESTART = "restart"
    RESUMED = "resumed"
    STOPPED = "stopped"
    WORKER_LOST = "worker_lost"
    QUARANTINED = "quarantined"
    """A device is used no more; of no task, the reason names it."""
    BATCH = "batch"
    """Requests to a model were sent as one and will be answered within a day; of no task, see `evo.cluster.receipts`."""
    BUDGET = "budget"
    """From here on a run may use more or less than before; of no task, see `evo.search.allowed`."""
    CLUSTER = "cluster"
    """A node, a worker or a device came, went or failed; of no task, the reason tells what happened and what was done."""
    PROPOSED = "proposed"
    EVALUATED = "evaluated"
    """A session on one of two machines that work alternately ended, and what it added goes to the other one; of no task."""


@dataclasses.dataclass(frozen=True)
class Event(Record):
    """One entry of a run's diary, with the lineage or island it concerns and why."""

    kind: EventKind
    task: str
    island: int
    lineage: str
    variant_id: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", EventKind(self.kind))


@dataclasses.dataclass(frozen=True)
class Spent(Record):
    """What a run has used of its budget so far.

    Attributes:
        dollars, tokens: Of recorded exchanges with language models.
        held_dollars, held_tokens: The most that requests can cost whose bill is not known: those in flight, and those that were in
            flight when their process died. They count as spent.
    """

    evaluations: int = 0
    proposals: int = 0
    wall_s: float = 0.0
    gpu_s: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    held_dollars: float = 0.0
    held_tokens: int = 0
