"""One island: a bounded population of PASSED variants, the newest failures, and its lineages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from evo.search.selection import Member, Selection
from evo.search.settings import SearchSettings
from evo.search.traps import Lineage

FAILED_KEPT = 16
"""Failed variants an island remembers for repair."""


@dataclass(frozen=True)
class Failed:
    """A failed variant that may be repaired.

    Attributes:
        stage: Rank of the stage it reached; later ones are repaired first.
        chain: How many failures in a row it ends.
    """

    variant_id: str
    number: int
    lineage: str
    stage: int
    chain: int


class Island:
    """Members leave by the selection's rule; the best of every open lineage always stays.

    Args:
        task, index: Where it is in the run.
        settings: See `SearchSettings`.
        selection: Who leaves when it is full.
    """

    KEPT: ClassVar = (
        "members",
        "failed",
        "lineages",
        "begun",
        "requests",
        "passed_since_migration",
        "restarts",
        "_last_abandoned",
    )

    def __init__(self, task: str, index: int, settings: SearchSettings, selection: Selection) -> None:
        self.index = index
        self.members: dict[str, Member] = {}
        self.failed: dict[str, Failed] = {}
        self.lineages: dict[str, Lineage] = {}
        self.begun = 0
        self.requests = 0
        self.passed_since_migration = 0
        self.restarts = 0
        self._last_abandoned = ""
        self._task = task
        self._settings = settings
        self._selection = selection
        self._ranked: tuple[Member, ...] | None = None
        self._open: tuple[Lineage, ...] | None = None

    @property
    def last_abandoned(self) -> Lineage | None:
        """The lineage that was abandoned last."""
        return self.lineages.get(self._last_abandoned)

    @property
    def next_lineage(self) -> str:
        """Name of the lineage that `open` makes next."""
        return f"{self._task}/{self.index}/{self.begun}"

    def open(self, root: str, score: float, *, replaces: Lineage | None = None) -> Lineage:
        """Begins a lineage at `root`, perhaps in place of one that was abandoned."""
        lineage = Lineage(self.next_lineage, root, root_score=score, best=score)
        if replaces is not None:
            lineage.replaces = True
            lineage.avoid = frozenset(replaces.tried)
            lineage.lessons.extend(replaces.lessons)
        self.lineages[lineage.name] = lineage
        self.begun += 1
        return lineage

    def forget_lineages(self, pending: Collection[str]) -> None:
        """Drops abandoned lineages that no member or failure belongs to, but for the last one and those that work under way is for.

        Args:
            pending: Names of the latter.
        """
        needed = {member.lineage for member in self.members.values()} | {failed.lineage for failed in self.failed.values()}
        self.lineages = {
            name: lineage
            for name, lineage in self.lineages.items()
            if not lineage.abandoned or name in needed or name in pending or name == self._last_abandoned
        }

    def open_lineages(self) -> tuple[Lineage, ...]:
        """Lineages that are not abandoned and have a variant to go on from, oldest first."""
        if self._open is not None:
            return self._open
        names = {member.lineage for member in self.members.values()} | {failed.lineage for failed in self.failed.values()}
        found = (self.lineages[name] for name in names)
        ordered = sorted((item for item in found if not item.abandoned), key=lambda item: int(item.name.rsplit("/", 1)[1]))
        self._open = tuple(ordered)
        return self._open

    def add(self, member: Member) -> tuple[str, ...]:
        """Adds a member (one of the same variant is replaced) and returns the ids that had to leave."""
        self.members[member.variant_id] = member
        self._changed()
        leaving = self._selection.surplus(self.members.values(), self._protected())
        for item in leaving:
            del self.members[item.variant_id]
        self._changed()
        return tuple(item.variant_id for item in leaving)

    def move(self, variant_id: str, lineage: str) -> None:
        """Makes a member part of another lineage."""
        self.members[variant_id] = replace(self.members[variant_id], lineage=lineage)
        self._changed()

    def rescore(self, variant_id: str, score: float) -> bool:
        """Gives a member its verified score; 0 removes it. True if it was removed."""
        member = self.members.get(variant_id)
        if member is None:
            return False
        self._changed()
        if score <= 0:
            del self.members[variant_id]
            return True
        self.members[variant_id] = replace(member, score=score)
        return False

    def remember_failure(self, failed: Failed) -> tuple[str, ...]:
        """Keeps a failure for repair and returns the ids that had to leave."""
        self.failed[failed.variant_id] = failed
        self._changed()
        if len(self.failed) <= FAILED_KEPT:
            return ()
        oldest = min(self.failed.values(), key=lambda item: item.number).variant_id
        return self.forget_failure(oldest)

    def forget_failure(self, variant_id: str) -> tuple[str, ...]:
        """Drops a failure and returns its id, if it was there."""
        self._changed()
        return () if self.failed.pop(variant_id, None) is None else (variant_id,)

    def abandon(self, lineage: str) -> tuple[str, ...]:
        """Ends a lineage: its members stay as elites, its failures leave (their ids are returned)."""
        self._last_abandoned = lineage
        self.lineages[lineage].abandoned = True
        gone = [item.variant_id for item in self.failed.values() if item.lineage == lineage]
        for variant_id in gone:
            del self.failed[variant_id]
        self._changed()
        return tuple(gone)

    def ranked(self) -> tuple[Member, ...]:
        """Members, best first."""
        if self._ranked is None:
            self._ranked = tuple(sorted(self.members.values(), key=lambda member: member.order))
        return self._ranked

    @property
    def entry_score(self) -> float:
        """Score a variant needs to enter; 0 while there is room."""
        if len(self.members) < self._settings.island_capacity:
            return 0.0
        return self.ranked()[-1].score

    def _changed(self) -> None:
        """What was derived from members, failures and lineages has to be derived again."""
        self._ranked = self._open = None

    def _protected(self) -> frozenset[str]:
        best: dict[str, Member] = {}
        for member in self.ranked():
            if not self.lineages[member.lineage].abandoned:
                best.setdefault(member.lineage, member)
        return frozenset(member.variant_id for member in best.values())
