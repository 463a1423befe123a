"""What an autoscaler is asked for: room for evaluators that are missing, until there is some or the driver is gone."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group


class Wishes:
    """Asks by placement groups that wait for room, one for each evaluator, and gives the room back as soon as they have it.

    An autoscaler starts nodes for groups that wait, not for actors that are bound to a node. They end with their driver, however it
    ends. What `ray.autoscaler.sdk.request_resources` asks for stays when a driver is killed, so that a cluster would be paid for
    with nobody at work on it; and it is one request of the whole cluster, which each driver overwrites. Tasks that wait are counted
    too often once some of them are taken back.

    Args:
        resources: Of one evaluator, by Ray's names for them.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        self._resources = dict(resources)
        self._groups: list[PlacementGroup] = []

    def ask(self, count: int) -> None:
        """From now on room for so many is asked for, besides what is free."""
        known = placement_group_table() if self._groups else {}
        waiting = [group for group in self._groups if known.get(group.id.hex(), {}).get("state") == "PENDING"]
        kept = {group.id: group for group in waiting[:count]}
        for group in self._groups:
            if group.id not in kept:
                remove_placement_group(group)
        self._groups = [*kept.values(), *(placement_group([self._resources]) for _ in range(count - len(kept)))]
