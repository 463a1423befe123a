"""How a store stands between two machines that work on it in turns, and what comes from the other one into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evo.config import RunConfig
from evo.errors import BundleError, StoreError, StoreInUseError, StoreVersionError, TaskError
from evo.records import Event, EventKind, LatencyKind, Request, Spent, Status
from evo.registry import EVALUATORS
from evo.search.archive import START
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.bundles import Bundle, bundle_of, read_bundle, write_bundle
from population_store.merging import merge
from population_store.opening import open_store

_SQLITE = b"SQLite format 3\0"


@dataclass
class Standing:
    """What the journal of a store tells about work in turns.

    Attributes:
        awaiting: Variants without an evaluation: number of the request → its operator.
        evaluated, passed: Evaluations of the search, and those that passed.
        latency_kind: Of those; None before one passed.
        last: The newest entry.
        ends: How many entries there are up to the newest `EventKind.PROPOSED` and the newest `EventKind.EVALUATED`.
    """

    awaiting: dict[int, str] = field(default_factory=dict)
    evaluated: int = 0
    passed: int = 0
    latency_kind: LatencyKind | None = None
    last: Entry | None = None
    ends: dict[EventKind, int] = field(default_factory=dict)

    def ended_by(self, kind: EventKind) -> bool:
        """Whether nothing happened since a session of that kind ended."""
        return isinstance(self.last, Event) and self.last.kind is kind

    @property
    def starting(self) -> bool:
        """Whether starting kernels must be evaluated before there is anything to propose."""
        return START in self.awaiting.values()


def standing_of(store: PopulationStore) -> Standing:
    """Reads a journal."""
    standing, operators, known = Standing(), dict[int, str](), set[str]()
    for count, (_, entry) in enumerate(store.journal(), start=1):
        standing.last = entry
        if isinstance(entry, Request):
            operators[entry.number] = entry.operator
        elif isinstance(entry, OutcomeEntry) and entry.variant is not None and entry.variant.variant_id not in known:
            known.add(entry.variant.variant_id)
            standing.awaiting[entry.number] = operators[entry.number]
        elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
            standing.awaiting.pop(entry.number, None)
            standing.evaluated += 1
            standing.passed += entry.evaluation.status is Status.PASSED
            standing.latency_kind = standing.latency_kind or entry.evaluation.latency_kind
        elif isinstance(entry, Event) and entry.kind in (EventKind.PROPOSED, EventKind.EVALUATED):
            standing.ends[entry.kind] = count
    return standing


def open_merged(store: str, sources: Sequence[Path], say: Callable[[str], None], *, create: bool) -> PopulationStore:
    """A store, open for writing, with what bundles and other stores have beyond it; their order does not matter.

    Args:
        store: Path or URL.
        sources: Bundles and stores of the same run.
        say: Told of each source what was new.
        create: Make the store from the first of them where there is none.

    Raises:
        BundleError: One cannot be used, is of another run, or went on in another way than the store.
        StoreError: The store cannot be opened.
    """
    bundles = sorted(((path, _read(path)) for path in sources), key=lambda item: item[1].base.entries)
    opened = _opened(store, *bundles[0], say) if create and bundles else open_store(store, write=True)
    try:
        for path, bundle in bundles:
            new = merge(opened, bundle, str(path))
            say(f"{path}: {new} new entries" if new else f"{path}: nothing new, the store has all of it already")
    except BaseException:
        opened.close()
        raise
    return opened


def hand_over(store: PopulationStore, kind: EventKind, reason: str, spent: Spent, *, once: bool) -> None:
    """Records the end of a session, unless (`once`) it is recorded already."""
    if not once or not standing_of(store).ended_by(kind):
        store.record([Event(kind, "", 0, "", "", reason)], spent)


def write_rest(store: PopulationStore, known_by: EventKind, out: Path) -> Bundle:
    """Writes what the other machine lacks: everything since its own newest session (of kind `known_by`) that came here."""
    bundle = bundle_of(store, standing_of(store).ends.get(known_by, 0))
    write_bundle(bundle, out)
    return bundle


def tasks_here(config: RunConfig, header: RunHeader, store: str) -> RunConfig:
    """The configuration with its task files where they are on this machine: at the same path, or beside the store.

    No file is imported whose text is not the one that the run was started with.

    Raises:
        TaskError: A file is missing, or its text is another one.
    """
    recorded: Mapping[str, str] = json.loads(header.tasks)
    return config.model_copy(update={"tasks": tuple(_here(task, recorded, store) for task in config.tasks)})


def _here(reference: str, recorded: Mapping[str, str], store: str) -> str:
    path = Path(reference)
    if not path.is_absolute():
        return reference  # a task of the package
    places = [path] if "://" in store else [path, Path(store).with_name(path.name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise TaskError(reference, action=f"no such file on this machine: put a copy there, or beside the store ({places[-1]})")
    if found.read_text(encoding="utf-8", errors="replace") not in recorded.values():
        raise TaskError(str(found), action="it is not the file that the run was started with: bring that one here")
    return str(found)


def _read(path: Path) -> Bundle:
    try:
        with path.open("rb") as file:
            is_store = path.is_file() and file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise BundleError(str(path), action=f"cannot be read: {error.strerror}") from None
    if not is_store:
        return read_bundle(path)
    with open_store(str(path)) as store:
        return bundle_of(store)


def _opened(store: str, path: Path, bundle: Bundle, say: Callable[[str], None]) -> PopulationStore:
    """The store; one that is made of a bundle has its configuration from elsewhere."""
    try:
        return open_store(store, write=True)
    except (StoreInUseError, StoreVersionError):
        raise
    except StoreError:  # there is none; any other reason is found again by who makes one
        if bundle.base.entries:
            action = (
                f"it begins after {bundle.base.entries} entries of a store, and {store} is none: merge the bundle before it first"
            )
            raise BundleError(str(path), action=action) from None
    config = RunConfig.from_text(bundle.header.config, f"{path}: its configuration")
    if config.evaluator not in EVALUATORS:
        # The name of a function, which would be called here.
        raise BundleError(str(path), given=f"evaluator {config.evaluator}", allowed=EVALUATORS, action="carry the store itself")
    made = open_store(store, header=bundle.header)
    asked = ", ".join(config.endpoints)
    say(f"{store}: made for run {config.name}" + (f"; whoever proposes with it sends keys to {asked}" if asked else ""))
    return made
