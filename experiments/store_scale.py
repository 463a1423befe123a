"""A population store with a million variants: how long what a run and its users ask of it takes, and how large it is.

    python experiments/store_scale.py build runs/million.sqlite --variants 1000000     # a quarter of an hour on one core
    python experiments/store_scale.py measure runs/million.sqlite --out experiments/results
    python experiments/store_scale.py look runs/million.sqlite --out experiments/results

`build` writes a journal as a search would: decisions, modules, verdicts and all that the search's rules make follow from them (restarts,
migrations), through the ledger and the store, but with parents drawn at random and verdicts made up. `measure` asks what a run asks,
each time on a store that was just opened; `look` what `triton-evolve status` does, without changing the store.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import event

from evo.commands.measured import described, measured_with, write_results
from evo.evaluation.simulated import CASE
from evo.plain import content_id
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    LatencyKind,
    NoProposal,
    Proposal,
    Request,
    Stage,
    Status,
    TrustLevel,
    Variant,
)
from evo.reporting.status import StatusReader
from evo.search.digest import ENTRIES, NAME
from evo.search.engine import Engine
from evo.search.ledger import Ledger
from evo.search.settings import Budget, SearchSettings
from evo.search.state import TaskState
from evo.search.toy import infos, render, toy_setup
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store
from population_store.sqlite import SqliteStore

SEED = 1
BATCH = 500
"""Variants per commit."""
FAILING = 0.2
"""Share of variants that fail."""
SETTINGS = SearchSettings()
HEADER = RunHeader("store_scale", SEED, "{}", '{"toy": ""}', "{}", "2026-01-01T00:00:00+00:00")
LOOKS = 200


def build(path: Path, variants: int) -> None:
    """Makes the store, or goes on making it."""
    given = None if path.exists() else HEADER
    with open_store(str(path), write=True, header=given) as store:
        _without_waiting_for_the_disk(store)
        ledger = _ledger(store)
        (state,) = ledger.states.values()
        begun, first = time.monotonic(), ledger.meter.evaluations
        for number in itertools.count(ledger.next_number):
            if ledger.meter.evaluations >= variants:
                break
            batch = [entry for place in range(BATCH) for entry in _child(ledger, state, BATCH * number + place)]
            ledger.record(batch)
            done = ledger.meter.evaluations
            if done // 20_000 != (done - BATCH) // 20_000:
                print(f"{done:,} variants, {(done - first) / (time.monotonic() - begun):.0f} per second", flush=True)


def _without_waiting_for_the_disk(store: PopulationStore) -> None:
    """A store that is only built need not survive a power cut meanwhile."""
    assert isinstance(store, SqliteStore)
    writer = store._database.writer
    assert writer is not None

    @event.listens_for(writer, "checkout")
    def _lax(connection: Any, *given: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")


def _ledger(store: PopulationStore) -> Ledger:
    return Ledger(
        seed=SEED,
        settings=SETTINGS,
        budget=Budget(),
        tasks=(toy_setup(),),
        operators=infos(),
        models=(),
        store=store,
        clock=time.monotonic,
    )


def _child(ledger: Ledger, state: TaskState, draw: int) -> Iterator[Entry]:
    """One decision, its module and the verdict on it, with what follows."""
    rng = np.random.default_rng([SEED, draw])
    number = ledger.next_number
    if state.baseline is None:  # the start itself
        for waiting, variant_id in tuple(state.awaiting.items()):
            yield from ledger.apply(EvaluationEntry(waiting, Purpose.SEARCH, _verdict(variant_id, 1.0, rng)))
    island = state.islands[int(rng.integers(len(state.islands)))]
    lineages = island.open_lineages()
    lineage = lineages[int(rng.integers(len(lineages)))]
    members = [member for member in island.ranked() if member.lineage == lineage.name] or island.ranked()
    parent = members[int(rng.integers(len(members)))].variant_id
    request = Request(ledger.next_number, state.name, island.index, lineage.name, "toy_knob", (parent,))
    yield from ledger.apply(request)
    number = request.number
    variant = Variant(state.name, render({"knob_a": number, "knob_b": int(rng.integers(1_000_000))}))
    yield from ledger.apply(OutcomeEntry(number, Proposal(variant.source, f"knob_a to {number}"), variant))
    # Gains become rare, as in a search: the best of n draws grows with the logarithm of n.
    fitness = float(np.exp(0.15 * rng.standard_normal())) if rng.random() >= FAILING else 0.0
    yield from ledger.apply(EvaluationEntry(number, Purpose.SEARCH, _verdict(variant.variant_id, fitness, rng)))


def _verdict(variant_id: str, fitness: float, rng: np.random.Generator) -> Evaluation:
    plan = content_id("plan", variant_id)
    if not fitness:
        where = f"row {int(rng.integers(50))}"
        message = f"wrong values: {where}"
        return Evaluation(
            variant_id,
            Status.WRONG_VALUES,
            Stage.GATE,
            "simulated",
            plan,
            message=message,
            signature=where,
            wall_s=1.0,
            gpu_s=0.1,
        )
    error, memory = float(rng.random()), 1024 << int(rng.integers(4))
    configuration = Configuration({"knob_a": 1})
    case = CaseResult(CASE, configuration, error, 100 / fitness, 100.0, fitness, fitness, fitness, 0, memory)
    return Evaluation(
        variant_id,
        Status.PASSED,
        Stage.TIME,
        "simulated",
        plan,
        TrustLevel.INTERPRETED,
        LatencyKind.SIMULATED,
        fitness=fitness,
        cases=(case,),
        wall_s=1.0,
        gpu_s=0.1,
    )


def measure(path: Path) -> dict[str, Any]:
    """Figures of a store that was built."""
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    with open_store(str(path), write=True) as store:
        found["open_s"] = time.perf_counter() - begun
        begun, used = time.perf_counter(), time.process_time()
        engine = Engine(
            seed=SEED,
            settings=SETTINGS,
            budget=Budget(),
            tasks=(toy_setup(),),
            operators=infos(),
            store=store,
            clock=time.monotonic,
        )
        found["resume_s"] = found["open_s"] + time.perf_counter() - begun
        found["resume_cpu_s"] = time.process_time() - used
        found["resident_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["variants"] = engine.spent.evaluations
        (state,) = engine._ledger.states.values()
        found["held"] = len(state.archive)
        waiting = engine.ask_proposals(SETTINGS.pending_limit)  # of an earlier measurement
        engine.tell_proposals([(work.request.number, NoProposal("measured again")) for work in waiting])
        found["decide"] = _times(lambda place: engine._schedule.decide())
        found["decide_and_commit"] = _times(lambda place: engine.ask_proposals(1), SETTINGS.pending_limit // 2)
        rng = np.random.default_rng(SEED)
        known = [_nth(store, int(place)) for place in rng.integers(0, found["variants"], LOOKS)]
        found["is_known"] = _times(lambda place: state.past.knows(known[place]))
        found["is_new"] = _times(lambda place: state.past.knows(content_id("new", str(place))))
        found["plan_known"] = _times(lambda place: state.past.owner("simulated", content_id("plan", known[place])))
        found["plan_new"] = _times(lambda place: state.past.owner("simulated", content_id("new plan", str(place))))
        found["status"] = _status(store)
    found["bytes"] = sum(item.stat().st_size for item in path.parent.glob(path.name + "*"))
    return found


def _nth(store: PopulationStore, place: int) -> str:
    """Id of some variant."""
    for _, entry in store.journal(3 * place):
        if isinstance(entry, OutcomeEntry) and entry.variant is not None:
            return entry.variant.variant_id
    raise ValueError(place)


def _times(act: Callable[[int], Any], times: int = LOOKS) -> dict[str, float]:
    """Milliseconds of something, in the median and at worst, of so many times; CPU of this process on average."""
    took, used = [], time.process_time()
    for place in range(times):
        begun = time.perf_counter()
        act(place)
        took.append(1e3 * (time.perf_counter() - begun))
    cpu = 1e3 * (time.process_time() - used) / times
    return {"median_ms": statistics.median(took), "worst_ms": max(took), "cpu_ms": cpu}


def _status(store: PopulationStore) -> dict[str, float]:
    """Milliseconds of CPU of what a display asks."""
    asked: dict[str, Callable[[], Any]] = {
        "counts": store.counts,
        "best five": lambda: store.ranking("toy", 5),
        "spent": lambda: store.spent,
    }
    return {name: _cpu_ms(ask) for name, ask in asked.items()}


def _cpu_ms(act: Callable[[], Any]) -> float:
    used = time.process_time()
    act()
    return 1e3 * (time.process_time() - used)


def look(path: Path) -> dict[str, Any]:
    """What a look at a store costs this process; the store is one that a run wrote, or resumed, with this version."""
    found: dict[str, Any] = {}
    with open_store(str(path)) as store:
        reader: list[StatusReader] = []
        found["restore_ms"] = _cpu_ms(lambda: reader.append(StatusReader(store)))
        kept = store.kept(NAME)
        end = kept.seq if kept is not None else 0
        found["look_ms"] = _cpu_ms(lambda: reader[0].look())
        found["again_ms"] = _cpu_ms(lambda: reader[0].look())
        found["followed"] = sum(1 for _ in store.journal(end))
        found["tail_ms"] = _cpu_ms(lambda: sum(1 for _ in store.journal(max(0, end - ENTRIES))))
        found["digest_bytes"] = 0 if kept is None else len(kept.text)
        found["variants"] = store.spent.evaluations
    return found


def look_page(results: dict[str, Any]) -> str:
    """Markdown."""
    found = results["found"]
    lines = [
        described(results["session"]),
        "",
        f"What `triton-evolve status` asks of a SQLite store with {found['variants']:,} variants, in CPU of its process, without "
        f"imports and opening. {results['remark']}",
        "",
        "| what | figure |",
        "|---|---|",
        f"| read the digest, {found['digest_bytes']:,} bytes | {found['restore_ms']:.1f} ms |",
        f"| see {found['followed']} entries that followed, ask the store for the rest | {found['look_ms']:.1f} ms |",
        f"| read {ENTRIES:,} entries of the journal, the most that follow a digest of a running search | {found['tail_ms']:.1f} ms |",
        f"| a second look | {found['again_ms']:.1f} ms |",
    ]
    return "\n".join(lines) + "\n"


def page(results: dict[str, Any]) -> str:
    """Markdown."""
    found = results["found"]

    def timed(name: str, key: str) -> str:
        item = found[key]
        return f"| {name} | {item['median_ms']:.2f} ms ({item['worst_ms']:.1f} ms; CPU {item['cpu_ms']:.2f} ms) |"

    lines = [
        described(results["session"]),
        "",
        f"A SQLite store with {found['variants']:,} variants, made by `build`. Times in the median (at worst; CPU on average) of {LOOKS}, "
        f"of commits {SETTINGS.pending_limit // 2}. "
        f"{results['remark']}",
        "",
        "| what | figure |",
        "|---|---|",
        f"| resume: open, restore the state, apply what followed | {found['resume_s']:.2f} s (CPU {found['resume_cpu_s']:.2f} s) |",
        f"| resident memory then, all libraries included | {found['resident_bytes'] / 1e6:.0f} MB, {found['held']} variants held |",
        timed("choose parents and operator of a request", "decide"),
        timed("the same and record it (a commit with fsync)", "decide_and_commit"),
        timed("is a module known: one that is", "is_known"),
        timed("is a module known: one that is not", "is_new"),
        timed("whose plan is this: a known one", "plan_known"),
        timed("whose plan is this: a new one", "plan_new"),
        *(f"| status: {name} | CPU {value:.1f} ms |" for name, value in found["status"].items()),
        f"| size on disk | {found['bytes'] / 1e9:.2f} GB, {found['bytes'] / found['variants']:,.0f} bytes per variant |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "measure", "look"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--variants", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--remark", default="", help="about the machine, for the page")
    parser.add_argument("--commit")
    given = parser.parse_args()
    if given.what == "build":
        build(given.store, given.variants)
        return
    session = measured_with(given.commit, ["python", "experiments/store_scale.py", *sys.argv[1:]])
    looking = given.what == "look"
    results = {"session": session, "remark": given.remark, "found": look(given.store) if looking else measure(given.store)}
    print(json.dumps(results["found"], indent=1))
    if given.out is not None:
        name, written = ("store_scale_look", look_page(results)) if looking else ("store_scale", page(results))
        write_results(given.out, name, results, written)


if __name__ == "__main__":
    main()
