"""Snapshots of a search's state in the store, so that a long run resumes in seconds. The journal stays the only truth.

A snapshot is what applying the journal up to one entry gave. It is used where everything that decides how entries are applied is as it
was (version, settings, tasks, models), and otherwise ignored: the whole journal is applied then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from evo.evaluation.base import Baseline
from evo.plain import content_id
from evo.records import CaseResult, Evaluation, KernelUse, LatencyKind, Request, Stage, Status, Trial, TrustLevel, Variant
from evo.search.archive import Kin, Note
from evo.search.bandit import Arm
from evo.search.exhaustion import Attempted
from evo.search.freezing import freeze, layout, thaw
from evo.search.front import Point
from evo.search.islands import Failed
from evo.search.model_mix import ModelArm
from evo.search.newest import Newest
from evo.search.selection import Member
from evo.search.settings import SearchSettings
from evo.search.setup import TaskSetup
from evo.search.traps import Lineage
from population_store.base import PopulationStore

NAME = "search"
"""Of the snapshot in the store."""

RULES = 1
"""To be raised with each change of how entries change the state, if names of attributes do not tell."""

SETTINGS = ("islands", "island_capacity", "selection", "fruitless_limit", "operator_failure_limit", "bandit_memory")
"""What entries change depends on these alone. What others decide is recorded, so that a run may go on with other ones."""

ENTRIES = 10_000
"""Entries between two snapshots, at least: about as many are applied again on resume, at most (a second or two)."""

PER_VARIANT = 5
"""Entries between two snapshots, at least, for each variant that the state holds: writing it takes time, too."""

_CLASSES: tuple[type, ...] = (
    Arm,
    Attempted,
    Baseline,
    CaseResult,
    Evaluation,
    Failed,
    KernelUse,
    Kin,
    LatencyKind,
    Lineage,
    Member,
    ModelArm,
    Newest,
    Note,
    Point,
    Request,
    Stage,
    Status,
    Trial,
    TrustLevel,
    Variant,
)


class Snapshots:
    """Keeps the state of one ledger.

    Args:
        store: Where.
        owner: Whose ``KEPT`` attributes are the state; made and not yet changed.
        settings, tasks, models: What else decides how entries are applied.

    Attributes:
        key: Of all that; a snapshot with another one does not fit.
    """

    def __init__(
        self, store: PopulationStore, owner: Any, settings: SearchSettings, tasks: Sequence[TaskSetup], models: Sequence[str]
    ) -> None:
        self._store = store
        self._owner = owner
        described = [[setup.task.name, setup.task.kind, *(variant.variant_id for variant in setup.starts)] for setup in tasks]
        facts = [RULES, [getattr(settings, name) for name in SETTINGS], described, list(models)]
        self.key = content_id(json.dumps(facts, sort_keys=True), layout(owner, _CLASSES))
        self._since = 0

    def restore(self) -> int:
        """Gives the owner the state of the newest snapshot that fits; the number of the entry it stands after, 0 for none."""
        kept = self._store.kept(NAME)
        if kept is None or kept.key != self.key:
            return 0
        try:
            thaw(self._owner, kept.text, _CLASSES)
        except ValueError:  # damaged, or of a version whose RULES should differ; the journal has all of it
            return 0
        return kept.seq

    def applied(self, entries: int) -> None:
        """So many entries were applied that no snapshot has."""
        self._since += entries

    def is_due(self, held: int) -> bool:
        """Whether it is time for a snapshot of a state that holds so many variants."""
        return self._since >= max(ENTRIES, PER_VARIANT * held)

    def keep(self) -> int:
        """Writes a snapshot, when everything applied is recorded; the number of the newest entry."""
        self._since = 0
        return self._store.keep(NAME, self.key, freeze(self._owner))
