"""The contract of a population store: an append-only journal of what a run decided and learned, with queries over it.

What every backend promises (and `population_store.testing.StoreContract` checks):

* **Atomic.** `record` commits all its entries and the new `Spent`, or none.
* **Durable.** When `record` returns, `kill -9` loses nothing of it.
* **Once.** A request, an outcome, an evaluation (per request and purpose) and trials (per request and position) are recorded once; a
  second one is ignored and reported by the return value, whoever sends it.
* **Whole.** An outcome belongs to a recorded request of its variant's task, an evaluation to its request's recorded variant, trials
  to a request that has a variant; any other raises ValueError and nothing of that call is recorded.
* **Ordered.** Entries get increasing sequence numbers; `journal` yields them in that order, equal to what was recorded, so that a
  run can be replayed exactly.
* **One owner.** `open(..., write=True)` takes ownership of the store for this process until `close` or its death; a second writer
  gets StoreInUseError. Readers never wait for the writer, nor it for them.
* **Versioned.** A newer schema raises StoreVersionError; an older one is migrated on opening for writing.
* **Thread-safe.** Methods may be called from several threads of the owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from evo.records import Evaluation, Event, NoProposal, Proposal, Record, Request, Spent, Trial, Variant


class Purpose(StrEnum):
    """Why a variant was evaluated: during the search, or again in a fresh process with held-out cases."""

    SEARCH = "search"
    VERIFY = "verify"


@dataclass(frozen=True)
class RunHeader(Record):
    """What identifies a run and lets it be repeated.

    Attributes:
        name: From the configuration.
        seed: Of all randomness.
        config: The full configuration as JSON text.
        tasks: Task name → the text of its file (JSON text of a dict).
        versions: Of Python, torch, triton, ray and ourselves (JSON text of a dict).
        created: UTC, ISO 8601.
    """

    name: str
    seed: int
    config: str
    tasks: str
    versions: str
    created: str


@dataclass(frozen=True)
class OutcomeEntry:
    """What came of a request: a proposal (whose module is the variant) or none."""

    number: int
    outcome: Proposal | NoProposal
    variant: Variant | None

    def __post_init__(self) -> None:
        if isinstance(self.outcome, Proposal) != (self.variant is not None):
            raise ValueError("a Proposal comes with its variant, a NoProposal without one")


@dataclass(frozen=True)
class EvaluationEntry:
    """The verdict on the variant of request `number`."""

    number: int
    purpose: Purpose
    evaluation: Evaluation


@dataclass(frozen=True)
class TrialEntry:
    """What came of one configuration while the variant of request `number` is being tuned, before there is a verdict.

    Attributes:
        number: The request.
        position: Of the configuration in its tuning, from 0.
        device: As in an evaluation.
        trials: One per case on which it was tried; at least one, all of one configuration.
    """

    number: int
    position: int
    device: str
    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        if len({trial.configuration for trial in self.trials}) != 1:
            raise ValueError("a TrialEntry has the trials of one configuration")


Entry = Request | OutcomeEntry | EvaluationEntry | TrialEntry | Event
"""What a journal is made of."""


@dataclass(frozen=True)
class Kept:
    """What somebody worked out from the journal up to one entry, so as not to read all of it again.

    Attributes:
        seq: Number of that entry.
        key: Whatever the text depends on besides the journal.
        text: See `PopulationStore.keep`.
    """

    seq: int
    key: str
    text: str


@dataclass(frozen=True)
class Ranked:
    """A row of `PopulationStore.ranking`: a variant with its request, strategy and newest evaluation of each purpose."""

    number: int
    request: Request
    variant: Variant
    strategy: str
    search: Evaluation
    verify: Evaluation | None


class PopulationStore(ABC):
    """See the module's docstring for the contract."""

    @classmethod
    @abstractmethod
    def open(cls, url: str, *, write: bool = False, header: RunHeader | None = None) -> Self:
        """Opens a store.

        Args:
            url: ``path/to/file.sqlite``, ``sqlite:///…`` or the URL of another backend.
            write: Take ownership, migrating an older schema.
            header: Create the store for this run; it must not exist yet. Without it the store must exist.

        Raises:
            StoreInUseError: Another process owns it.
            StoreVersionError: Its schema is newer, or it is no population store.
            StoreMissingError: There is none.
            StoreError: Already existing, or not writable.
        """

    @classmethod
    @abstractmethod
    def build(cls, url: str, header: RunHeader) -> AbstractContextManager[Self]:
        """A new store, for a block that fills it: it is there when the block has ended, and not at all where the block fails or is killed.

        Args:
            url, header: See `open`.

        Raises:
            StoreError: There is something already, or it cannot be written.
        """

    @classmethod
    @abstractmethod
    def check_url(cls, url: str) -> None:
        """Looks at nothing but the URL's text, and says nothing where a store may have it.

        Raises:
            StoreError: None may: it names no place, or holds a password, which would be recorded and shown.
        """

    @property
    @abstractmethod
    def header(self) -> RunHeader:
        """The run this store belongs to."""

    @property
    @abstractmethod
    def spent(self) -> Spent:
        """As of the last commit."""

    @abstractmethod
    def record(self, entries: Sequence[Entry], spent: Spent) -> tuple[bool, ...]:
        """Appends entries in one transaction.

        Returns:
            Per entry, False where it was already there (and so was ignored).

        Raises:
            StoreFullError: The disk is full; nothing of this call was recorded.
        """

    @abstractmethod
    def journal(self, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Entries with sequence numbers above `after`, in order."""

    @abstractmethod
    def variant(self, variant_id: str) -> Variant | None:
        """The variant of that id."""

    @abstractmethod
    def modules(self, task: str) -> Iterator[Variant]:
        """All variants of a task, in the order in which they became known."""

    @abstractmethod
    def is_known(self, variant_id: str, up_to: int) -> bool:
        """Whether an outcome with a sequence number up to `up_to` led to this variant."""

    @abstractmethod
    def plan_owner(self, task: str, device: str, plan_hash: str, up_to: int) -> str | None:
        """The variant whose search evaluation was the first on this plan that is no DUPLICATE, None for a plan that is new.

        Args:
            task: Task name.
            device: Device model of the evaluation; empty for any.
            plan_hash: See `evo.records.Evaluation`.
            up_to: The last sequence number that is looked at.
        """

    @abstractmethod
    def keep(self, name: str, key: str, text: str) -> int:
        """Keeps one text under a name, in place of an earlier one: what was worked out from the whole journal as it stands.

        The journal stays the only truth: such a text can always be made again, and nothing else depends on it.

        Args:
            name: Of at most 32 characters.
            key: Whatever the text depends on besides the journal.
            text: ASCII, without NUL characters.

        Returns:
            The number of the journal's newest entry.
        """

    @abstractmethod
    def kept(self, name: str) -> Kept | None:
        """What `keep` was given last under a name."""

    @abstractmethod
    def ranking(self, task: str, limit: int | None = None) -> tuple[Ranked, ...]:
        """PASSED variants of a task, best fitness first (verified fitness where there is one), one row per variant.

        The newest verdict of a purpose counts, and a DUPLICATE is none: its variant was judged under another request. A variant
        whose verification did not pass is not ranked. Equal fitness: the one evaluated first is first.
        """

    @abstractmethod
    def verified(self, task: str) -> tuple[Ranked, ...]:
        """Variants of a task that passed in the search and have a verdict of a verification, whichever, first evaluated first.

        The newest verdict of a purpose counts, as in a ranking.
        """

    @abstractmethod
    def counts(self) -> dict[str, dict[str, int]]:
        """Task → status value of the search evaluation (or ``no_proposal``, ``pending``) → how many requests."""

    @abstractmethod
    def events(self) -> tuple[Event, ...]:
        """All events, in order."""

    @abstractmethod
    def close(self) -> None:
        """Gives up ownership. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
