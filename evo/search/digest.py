"""What a look at a run counts, followed entry by entry and kept in the store, so that a look at a long run reads only its end.

The journal stays the only truth: a digest is what seeing the journal up to one entry gave. One that cannot be read, or is of another
version, is ignored, and the whole journal seen anew.
"""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from evo.exchanges import REFUSAL
from evo.plain import content_id
from evo.records import Evaluation, Event, EventKind, NoProposal, Request, Status, TrustLevel
from evo.search.allowed import Limits, recorded
from evo.search.freezing import freeze, layout, thaw
from evo.search.given_up import Abandoned, GivenUp, LineageFigures, Totals
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose

NAME = "status"
"""Of the digest in the store."""

RULES = 1
"""To be raised with each change of what entries change, if names of attributes do not tell."""

ENTRIES = 1_000
"""Entries between two digests in the store, and the most that a look reads of the journal beside; more where more requests are open,
for each is written down in a digest."""

LEADERS = 64
"""Variants of an island that are known by their fitness, as many as may fail their verification without a longer look for its best."""

SHOWN_EVENTS = 5
SHOWN_FAULTS = 12
"""Of the cluster's and of sessions, besides."""
SHOWN_DEVICES = 100
"""Newest devices in quarantine, besides."""

ENDS = (EventKind.STOPPED, EventKind.RESUMED, EventKind.PROPOSED, EventKind.EVALUATED)
"""Where sessions end, or begin."""


@dataclass(frozen=True)
class Trouble:
    """How many requests of a model failed, how many it refused, and why the last one came to nothing."""

    failed: int = 0
    refused: int = 0
    last: str = ""


@dataclass(frozen=True)
class Place:
    """An island of a task."""

    task: str
    island: int


@dataclass(frozen=True)
class Happening:
    """An event to be shown. `order` among events; `after_death`: a session begins, and the one before it has no end."""

    order: int
    event: Event
    after_death: bool = False


_CLASSES = (Abandoned, Event, EventKind, Happening, LineageFigures, Place, Request, Totals, TrustLevel, Trouble)


class Digest:
    """See the module's docstring. Made as of the newest digest in the store that fits; `follow` brings it up to the journal's end.

    A verification changes nothing here: `PopulationStore.verified` tells the few that there are.

    Args:
        store: Of the run.

    Attributes:
        bills: Model name → (requests, dollars).
        troubles: Of the models that had some.
        given_up: Abandoned lineages.
        passed: Variants by place, as searched.
        trust: Task → trust level → those variants.
        leaders: By place, the best fitnesses as searched, each as (-fitness, request), best first.
        kinds: By place, how many events of each kind.
        end: The newest event with which a session ended or began.
        allowed: What the run may use since its newest session with another budget; None where there was none.
    """

    KEPT: ClassVar = (
        "bills",
        "troubles",
        "given_up",
        "passed",
        "trust",
        "leaders",
        "kinds",
        "end",
        "allowed",
        "_open",
        "_outcomes",
        "_order",
        "_quarantined",
        "_faults",
        "_newest",
    )

    def __init__(self, store: PopulationStore) -> None:
        self.bills: dict[str, tuple[int, float]] = {}
        self.troubles: dict[str, Trouble] = {}
        self.given_up = GivenUp()
        self.passed: Counter[Place] = Counter()
        self.trust: dict[str, Counter[TrustLevel]] = {}
        self.leaders: dict[Place, list[tuple[float, int]]] = {}
        self.kinds: dict[Place, Counter[EventKind]] = {}
        self.end: Event | None = None
        self.allowed: Limits | None = None
        self._open: dict[int, Request] = {}
        self._outcomes: dict[str, Counter[str]] = {}
        self._order = 0
        self._quarantined: deque[Happening] = deque(maxlen=SHOWN_DEVICES)
        self._faults: deque[Happening] = deque(maxlen=SHOWN_EVENTS + SHOWN_FAULTS)
        self._newest: deque[Happening] = deque(maxlen=SHOWN_EVENTS)
        self._store = store
        self._key = content_id(str(RULES), layout(self, _CLASSES))
        self._since = 0
        self._seq = self._restore()

    def follow(self) -> None:
        """Sees what the journal has beyond it."""
        for seq, entry in self._store.journal(self._seq):
            variant = entry.variant if isinstance(entry, OutcomeEntry) else None
            self.see(entry, repeated=variant is not None and self._store.is_known(variant.variant_id, seq - 1))
            self._seq = seq

    def see(self, entry: Entry, *, repeated: bool = False) -> None:
        """The next entry.

        Args:
            entry: Of a journal.
            repeated: It is an outcome, and an earlier one led to the same variant.
        """
        self._since += 1
        if isinstance(entry, Request):
            self._open[entry.number] = entry
            self.given_up.asked(entry.lineage)
        elif isinstance(entry, OutcomeEntry):
            self._outcome(entry, repeated)
        elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
            self._evaluated(entry)
        elif isinstance(entry, Event):
            self._event(entry)

    def keep(self) -> None:
        """Writes it to the store from time to time; to be called when everything that was seen is recorded there."""
        if self._since >= max(ENTRIES, len(self._open)):
            self._since = 0
            self._seq = self._store.keep(NAME, self._key, freeze(self))

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Task → status (or ``no_proposal``, ``repeated`` for a known variant, ``pending``) → requests."""
        counts = {task: Counter(found) for task, found in self._outcomes.items()}
        for request in self._open.values():
            counts.setdefault(request.task, Counter())["pending"] += 1
        return counts

    def happenings(self) -> tuple[Happening, ...]:
        """Devices in quarantine, what happened to the cluster and to sessions last, and the last events whatever they are."""
        first = self._newest[0].order if self._newest else self._order
        faults = [item for item in self._faults if item.order < first][-SHOWN_FAULTS:]
        return tuple(sorted({*self._quarantined, *faults, *self._newest}, key=lambda item: item.order))

    def _restore(self) -> int:
        kept = self._store.kept(NAME)
        if kept is None or kept.key != self._key:
            return 0
        try:
            thaw(self, kept.text, _CLASSES)
        except ValueError:  # damaged; the journal has all of it
            return 0
        return kept.seq

    def _outcome(self, entry: OutcomeEntry, repeated: bool) -> None:
        for exchange in entry.outcome.exchanges:
            requests, dollars = self.bills.get(exchange.model, (0, 0.0))
            self.bills[exchange.model] = (requests + 1, dollars + exchange.usage.dollars)
            failed, refused = exchange.stop_reason == "error", exchange.stop_reason == REFUSAL
            if failed or refused:
                had = self.troubles.get(exchange.model, Trouble())
                last = entry.outcome.reason if isinstance(entry.outcome, NoProposal) else had.last
                self.troubles[exchange.model] = Trouble(had.failed + failed, had.refused + refused, last)
        self.given_up.answered(self._open[entry.number].lineage, entry.outcome)
        if entry.variant is None or repeated:
            self._done(entry.number, "no_proposal" if entry.variant is None else "repeated")

    def _evaluated(self, entry: EvaluationEntry) -> None:
        request, evaluation = self._open.get(entry.number), entry.evaluation
        if request is None:  # of a known variant, which no search evaluates again
            return
        self.given_up.evaluated(request.lineage, evaluation)
        self._done(entry.number, evaluation.status.value)
        if evaluation.status is Status.PASSED:
            self._passed(request, evaluation)

    def _passed(self, request: Request, evaluation: Evaluation) -> None:
        place = Place(request.task, request.island)
        self.passed[place] += 1
        assert evaluation.trust is not None, "what passed was judged in some way"
        self.trust.setdefault(request.task, Counter())[evaluation.trust] += 1
        leaders = self.leaders.setdefault(place, [])
        bisect.insort(leaders, (-evaluation.fitness, request.number))
        del leaders[LEADERS:]

    def _done(self, number: int, outcome: str) -> None:
        request = self._open.pop(number)
        self._outcomes.setdefault(request.task, Counter())[outcome] += 1
        self.given_up.done(request.lineage)

    def _event(self, event: Event) -> None:
        self.given_up.happened(event)
        if event.task and event.island >= 0:
            self.kinds.setdefault(Place(event.task, event.island), Counter())[event.kind] += 1
        after_death = event.kind is EventKind.RESUMED and (self.end is None or self.end.kind is EventKind.RESUMED)
        if event.kind in ENDS:
            self.end = event
        if event.kind is EventKind.BUDGET:
            self.allowed = recorded(event)
        if event.kind in (EventKind.BATCH, EventKind.BUDGET):  # of use to the next process alone, or shown elsewhere
            return
        happening = Happening(self._order, event, after_death)
        self._order += 1
        self._newest.append(happening)
        if event.kind is EventKind.QUARANTINED:
            self._quarantined.append(happening)
        if event.kind in (EventKind.CLUSTER, EventKind.WORKER_LOST, *ENDS):
            self._faults.append(happening)
