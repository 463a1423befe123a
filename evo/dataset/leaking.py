"""Splits tasks so that nothing of the test part was seen in training: tasks that share kernels go together, prompts that show are found.

Kernels are near copies where they share `operators.likeness.NEAR` of their shingles. All such pairs are found exactly, without
comparing all: of two sets that share so much, the few rarest members of each must have one in common (Bayardo, Ma and Srikant,
2007, "Scaling Up All Pairs Similarity Search").
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from evo.plain import content_id
from operators.likeness import NEAR, shingles
from operators.retrieval import CONTAINED, TELLING

TEST_TENTHS = 1
"""Of the tasks, about this many tenths are for testing."""


def near_pairs(
    sets: Sequence[frozenset[int]], least: float = NEAR, wanted: Callable[[int, int], bool] = lambda one, other: True
) -> Iterator[tuple[int, int]]:
    """Positions of all pairs of sets that share at least `least` of their members (Jaccard), once each.

    Args:
        sets: Of shingles.
        least: From 0 to 1.
        wanted: Which pairs are of interest; asked before they are compared.
    """
    counted = Counter(item for found in sets for item in found)
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for position, found in enumerate(sets):
        # Floats: 0.95 of 20 is a little more than 19 to a computer.
        enough = math.ceil(least * len(found) - 1e-9)
        rarest = sorted(found, key=lambda item: (counted[item], item))[: len(found) - enough + 1]
        for other in sorted({other for item in rarest for other in holders[item]}):
            if wanted(other, position):
                shared = len(found & sets[other])
                if shared >= least * (len(found) + len(sets[other]) - shared) - 1e-9:
                    yield other, position
        for item in rarest:
            holders[item].append(position)


def groups_of(kernels: Mapping[str, Iterable[str]], plans: Mapping[str, Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """Tasks in groups that share no kernel with each other, sorted.

    Args:
        kernels: Task → sources of its kernels.
        plans: Task → their plan hashes.
    """
    parent = {task: task for task in kernels}

    def root(task: str) -> str:
        while parent[task] != task:
            task = parent[task]
        return task

    def join(one: str, other: str) -> None:
        first, second = sorted((root(one), root(other)))
        parent[second] = first

    listed = list(dict.fromkeys((task, shingles(source)) for task in sorted(kernels) for source in kernels[task]))
    pairs = near_pairs([found for _, found in listed], wanted=lambda a, b: root(listed[a][0]) != root(listed[b][0]))
    for one, other in pairs:
        join(listed[one][0], listed[other][0])
    owners: dict[str, str] = {}
    for task in sorted(plans):
        for plan in plans[task]:
            join(owners.setdefault(plan, task), task)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for task in sorted(kernels):
        groups[root(task)].append(task)
    return tuple(tuple(group) for _, group in sorted(groups.items()))


def tasks_for_test(groups: Sequence[Sequence[str]]) -> frozenset[str]:
    """Tasks for testing: a tenth by the hash of their names, so that a task stays where it is as others come, with all that share
    kernels with it. Where that gives none, the group of the smallest hash; never all groups."""
    ranked = sorted(groups, key=lambda group: min(map(content_id, group)))
    chosen = [group for group in ranked if any(int(content_id(task), 16) % 10 < TEST_TENTHS for task in group)]
    if not chosen or len(chosen) == len(ranked):
        chosen = ranked[:1] if len(ranked) > 1 else []
    return frozenset(task for group in chosen for task in group)


class Shown:
    """Finds texts that hold one of some kernels, whatever stands around it.

    Args:
        kernels: Sources. One that is too short to tell is not looked for.
    """

    def __init__(self, kernels: Iterable[str]) -> None:
        sets = {shingles(source, names=True) for source in kernels}
        self._sets = sorted((found for found in sets if len(found) >= TELLING), key=lambda found: (len(found), min(found)))
        counted = Counter(item for found in self._sets for item in found)
        self._holders: defaultdict[int, list[int]] = defaultdict(list)
        for position, found in enumerate(self._sets):
            # Who holds so many of them lacks at most the others, and so has one of this many rarest.
            rarest = sorted(found, key=lambda item: (counted[item], item))[: len(found) - math.ceil(CONTAINED * len(found)) + 1]
            for item in rarest:
                self._holders[item].append(position)

    def in_text(self, text: str) -> bool:
        """Whether it holds `CONTAINED` of the shingles of one."""
        found = shingles(text, names=True)
        candidates = {position for item in found for position in self._holders.get(item, ())}
        return any(len(self._sets[position] & found) >= CONTAINED * len(self._sets[position]) for position in candidates)
