"""What operators and chains of them achieved per kernel kind, read from the journals of runs; later runs begin with that.

A population store is the place where these figures are kept: they follow from its journal, so that a run that was killed has them too.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evo.errors import ConfigError
from evo.records import NoProposal, Request, Status
from evo.search.archive import START
from evo.search.bandit import Arm, Bandit, reward
from evo.search.chains import LINK, sequence
from evo.search.settings import SearchSettings
from evo.syntax import module_tree
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose
from population_store.opening import open_store

FILE = "operators.json"
"""Of a library that is a folder: figures of stores that are elsewhere."""


@dataclass
class Figures:
    """What became of an operator's requests for one kind of kernel; of a chain's, the sequences that single requests made included.

    Attributes:
        asked: Requests that were answered.
        inapplicable: Of those, the operator did not apply to the parents.
        failed: It failed: a model did not answer, or an operator crashed.
        known: It made a variant that was known.
        evaluated, passed, gained: New variants that were evaluated, that passed, that were faster than their main parent (of a sequence:
            than what its first move changed, and than what its last did).
        ratios: Fitness of those that passed over that of their main parent, or of what the sequence's first move changed.
        arm: As the bandit of one long run would know it.
    """

    asked: int = 0
    inapplicable: int = 0
    failed: int = 0
    known: int = 0
    evaluated: int = 0
    passed: int = 0
    gained: int = 0
    ratios: list[float] = field(default_factory=list)
    arm: Arm = field(default_factory=Arm)

    def add(self, other: Figures) -> None:
        """Takes in those of another run."""
        for name in ("asked", "inapplicable", "failed", "known", "evaluated", "passed", "gained"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratios += other.ratios
        for name in ("won", "lost", "uses", "gains"):
            setattr(self.arm, name, getattr(self.arm, name) + getattr(other.arm, name))


ByKind = dict[str, dict[str, Figures]]
"""Kernel kind → operator or chain → figures."""


def read_figures(stores: Iterable[PopulationStore]) -> ByKind:
    """The figures of several runs together."""
    found: ByKind = {}
    for store in stores:
        for kind, operators in _Reading(store).by_kind().items():
            for name, figures in operators.items():
                found.setdefault(kind, {}).setdefault(name, Figures()).add(figures)
    return found


def read_earlier(places: Sequence[str]) -> Mapping[str, Mapping[str, Arm]]:
    """Kernel kind → operator → what the bandit may begin with; of stores, and of folders with figures in them.

    Raises:
        ConfigError: Figures of a folder cannot be read.
        StoreError: A store cannot be read.
    """
    found: dict[str, dict[str, Arm]] = {}
    for place in places:
        folder = Path(place).expanduser()
        arms = _of_folder(folder) if "://" not in place and folder.is_dir() else _of_store(place)
        for kind, operators in arms.items():
            for name, arm in operators.items():
                old = found.setdefault(kind, {}).get(name, Arm())
                found[kind][name] = Arm(old.won + arm.won, old.lost + arm.lost, old.uses + arm.uses, old.gains + arm.gains)
    return found


def write_earlier(found: Mapping[str, Mapping[str, Arm]], folder: Path) -> None:
    """Writes figures down in a folder, for `read_earlier`."""
    rows = {kind: {name: dataclasses.asdict(arm) for name, arm in operators.items()} for kind, operators in found.items()}
    (folder / FILE).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _of_folder(folder: Path) -> Mapping[str, Mapping[str, Arm]]:
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {kind: {name: Arm(**arm) for name, arm in operators.items()} for kind, operators in rows.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"library: {path}", action=f"its figures of operators cannot be read: {error}") from error


def _of_store(place: str) -> Mapping[str, Mapping[str, Arm]]:
    with open_store(place) as store:
        figures = read_figures([store])
    return {kind: {name: item.arm for name, item in operators.items()} for kind, operators in figures.items()}


@dataclass(frozen=True)
class _Child:
    """An evaluated variant: where it is from, its fitness, and that of its main parent."""

    request: Request
    status: Status
    fitness: float
    before: float


class _Reading:
    """One journal, read once."""

    def __init__(self, store: PopulationStore) -> None:
        self._store = store
        self._kinds = {name: kind_of(text) for name, text in json.loads(store.header.tasks).items()}
        self._requests: dict[int, Request] = {}
        self._known: set[str] = set()
        self._children: dict[str, _Child] = {}
        self._fastest: dict[str, float] = {}
        memory = SearchSettings().bandit_memory
        self._bandits: defaultdict[str, Bandit] = defaultdict(lambda: Bandit(0.0, memory))
        self._figures: defaultdict[str, defaultdict[str, Figures]] = defaultdict(lambda: defaultdict(Figures))

    def by_kind(self) -> ByKind:
        for _, entry in self._store.journal():
            if isinstance(entry, Request):
                self._requests[entry.number] = entry
            elif isinstance(entry, OutcomeEntry):
                self._outcome(self._requests[entry.number], entry)
            elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
                self._evaluated(self._requests.pop(entry.number), entry)
        for kind, operators in self._figures.items():
            for name, figures in operators.items():
                figures.arm = self._bandits[kind].arms.get(name, Arm())
        return {kind: dict(operators) for kind, operators in self._figures.items()}

    def _outcome(self, request: Request, entry: OutcomeEntry) -> None:
        variant = entry.variant
        repeated = variant is not None and variant.variant_id in self._known
        if variant is not None:
            self._known.add(variant.variant_id)
        if request.operator == START:
            return
        kind = self._kinds.get(request.task, "other")
        figures = self._figures[kind][request.operator]
        figures.asked += 1
        figures.known += repeated
        applies = True
        if isinstance(entry.outcome, NoProposal):
            figures.failed += entry.outcome.failed
            figures.inapplicable += not entry.outcome.failed
            applies = entry.outcome.failed
        if applies and (variant is None or repeated):
            self._bandits[kind].learn(request.operator, 0.0)
        if variant is None or repeated:
            del self._requests[request.number]

    def _evaluated(self, request: Request, entry: EvaluationEntry) -> None:
        verdict = entry.evaluation
        passed = verdict.status is Status.PASSED
        fitness = verdict.fitness if passed else 0.0
        if request.operator == START:
            if passed:  # timed against itself; what counts is its place beside the fastest
                fastest = self._fastest[request.task] = min(self._fastest.get(request.task, float("inf")), verdict.latency_us)
                fitness = fastest / verdict.latency_us
            self._children[verdict.variant_id] = _Child(request, verdict.status, fitness, 0.0)
            return
        parents = [self._children[parent] for parent in request.parents if parent in self._children]
        before = parents[0].fitness if parents else 0.0
        kind = self._kinds.get(request.task, "other")
        best = max((parent.fitness for parent in parents), default=0.0)
        self._bandits[kind].learn(request.operator, reward(best, fitness))
        self._count(self._figures[kind][request.operator], (passed, passed and fitness > before, fitness, before))
        first = parents[0] if len(parents) == 1 else None
        if first is not None and first.request.operator != START and first.status is Status.PASSED:
            name = sequence(first.request, request)
            if name:
                helped = fitness > first.fitness
                self._bandits[kind].learn(name, reward(first.before, fitness) if helped else 0.0)
                figures = self._figures[kind][name]
                figures.asked += 1
                self._count(figures, (passed, helped and fitness > first.before, fitness, first.before))
        self._children[verdict.variant_id] = _Child(request, verdict.status, fitness, before)

    @staticmethod
    def _count(figures: Figures, result: tuple[bool, bool, float, float]) -> None:
        passed, gained, fitness, before = result
        figures.evaluated += 1
        figures.passed += passed
        figures.gained += gained
        if passed and before > 0:
            figures.ratios.append(fitness / before)


def kind_of(text: str) -> str:
    """The kernel kind that the text of a task file gives; ``other`` where it gives none as a literal."""
    try:
        tree = module_tree(text)
    except (SyntaxError, ValueError):  # the text of a task that is no file
        return "other"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "kind" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return "other"


def is_chain(name: str) -> bool:
    """Whether a name is that of a chain."""
    return LINK in name
