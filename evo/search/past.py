"""What earlier entries hold of a task: known variants and whose plan was whose, asked of the store instead of kept in memory."""

from __future__ import annotations

from population_store.base import PopulationStore


class Past:
    """Answers as of the newest entry that was applied, though the store may hold later ones (in a replay) or lack it (before a commit).

    What was applied since `moved` is kept here; what is older is asked of the store, up to the entry that `moved` named. So a run of
    any length needs little memory and starts quickly.

    Args:
        task: Task name.
        store: Of the run.
    """

    def __init__(self, task: str, store: PopulationStore) -> None:
        self._task = task
        self._store = store
        self._up_to = 0
        self._variants: set[str] = set()
        self._plans: dict[tuple[str, str], str] = {}
        self._owners: dict[tuple[str, str], str | None] = {}

    def moved(self, up_to: int) -> None:
        """Every entry that was applied has a number up to this one, and is in the store."""
        self._up_to = up_to
        for kept in (self._variants, self._plans, self._owners):
            kept.clear()

    def add(self, variant_id: str) -> None:
        """A variant is known from now on."""
        self._variants.add(variant_id)

    def knows(self, variant_id: str) -> bool:
        """Whether some request's outcome was this variant."""
        return variant_id in self._variants or (self._up_to > 0 and self._store.is_known(variant_id, self._up_to))

    def measured(self, device: str, plan_hash: str, variant_id: str) -> None:
        """A verdict on a plan; the first one's variant has the plan."""
        for place in (device, ""):
            self._plans.setdefault((place, plan_hash), variant_id)

    def owner(self, device: str, plan_hash: str) -> str | None:
        """The variant that had a plan first on a device (empty: on any); None for a plan that is new."""
        key = (device, plan_hash)
        if self._up_to and key not in self._owners:
            self._owners[key] = self._store.plan_owner(self._task, device, plan_hash, self._up_to)
        return self._owners.get(key) or self._plans.get(key)
