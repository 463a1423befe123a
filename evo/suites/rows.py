"""What became of each problem of a suite, read from the folder of its run: one row per problem, raw figures and all."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evo.errors import InputError
from evo.evaluation.statistics import Interval, geometric_mean_interval
from evo.plain import Record
from evo.records import LatencyKind, Status
from evo.suites.base import Against, Problem, Suite
from evo.suites.comparing import COMPILERS, verified_best
from evo.suites.jobs import STORE, RunFolder
from population_store.base import EvaluationEntry, PopulationStore, Purpose, Ranked
from population_store.opening import open_store

CALLED = frozenset({Status.PASSED, Status.WRONG_VALUES, Status.WRONG_STRUCTURE, Status.GUARD_VIOLATION})
"""Verdicts on modules that were traced and compiled and gave outputs."""
NOTHING: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Row(Record):
    """One problem.

    Attributes:
        name, title, family: Of the problem.
        state: ``verified``: a variant passed verification. ``failed``: searched, and none did. ``refused``: it cannot be run, see `reason`.
            ``waiting``: not searched yet.
        reason: Why not.
        notes: Liberties that were taken.
        oracle: What its kernels were judged by.
        evaluations, gpu_s: Spent.
        called: Whether any variant was traced, compiled and ran.
        start_passed: Whether a starting kernel passed the search's gate.
        differs: Whether the best variant is none of the starting kernels.
        trust, latency_kind: Of the best variant.
        device_speedup: Of the best variant over the tuned starting kernel, device latency: point, low, high of its verification.
        call_us: Side → microseconds per call, a case each.
        call_speedup: Side → its time over that of the best variant: point, low, high over cases.
        own_speedup: By the suite's own definition; 0 where it was not measured.
        unmeasured: Side → why.
        sampled, correct: Finished first proposals of models, and how many were correct, for pass@k.
    """

    name: str
    title: str
    family: str
    state: str
    reason: str = ""
    notes: tuple[str, ...] = ()
    oracle: str = ""
    evaluations: int = 0
    gpu_s: float = 0.0
    called: bool = False
    start_passed: bool = False
    differs: bool = False
    trust: str = ""
    latency_kind: str = ""
    device_speedup: tuple[float, float, float] = NOTHING
    call_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    call_speedup: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    own_speedup: float = 0.0
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    sampled: int = 0
    correct: int = 0

    def over(self, side: str) -> tuple[float, float, float]:
        """Speedup over a side; ``best`` stands for whatever compiler is fastest. Zeros where it was not measured, or is not correct."""
        if side != "best":
            return self.call_speedup.get(side, NOTHING)
        known = [self.call_speedup[name] for name in COMPILERS if name in self.call_speedup]
        return min(known, default=NOTHING)


def read_rows(folder: RunFolder, problems: Sequence[Problem], counted: Mapping[str, tuple[int, int]]) -> tuple[Row, ...]:
    """Rows of problems, in their order.

    Args:
        folder: Of the run.
        problems: Which.
        counted: Name → finished first proposals of models, and correct ones among them.
    """
    return tuple(_row(folder, problem, counted.get(problem.name, (0, 0))) for problem in problems)


def _row(folder: RunFolder, problem: Problem, counted: tuple[int, int]) -> Row:
    common: dict[str, Any] = {"name": problem.name, "title": problem.title, "family": problem.family}
    ready = folder.ready(problem)
    if ready is None:
        return Row(**common, state="waiting", reason="not prepared yet")
    common |= {"notes": ready.notes, "oracle": ready.oracle}
    if ready.stage != "ready":
        return Row(**common, state="refused", reason=f"{ready.stage}: {ready.reason}")
    path = folder.of(problem) / STORE
    searched = folder.searched(problem)
    if not path.exists():
        reason = searched.reason if searched is not None else ready.gpu_only or "not searched yet"
        return Row(**common, state="failed" if searched is not None and searched.done else "waiting", reason=reason)
    try:
        with open_store(str(path)) as store:
            common |= _of_store(store)
    except InputError as error:
        return Row(**common, state="refused", reason=f"store: {error}")
    common |= {"sampled": counted[0], "correct": counted[1]}
    verified = bool(common.pop("verified"))
    reason = "" if verified else str(common.pop("why"))
    common.pop("why", None)
    if not verified and (searched is None or not searched.done):
        return Row(**common, state="waiting", reason=searched.reason if searched is not None else "its search was cut off")
    row = Row(**common, state="verified" if verified else "failed", reason=reason)
    return _with_calls(row, folder.suite, folder.compared(problem))


def _of_store(store: PopulationStore) -> dict[str, Any]:
    (task,) = json.loads(store.header.tasks)
    statuses, starts, last = set[Status](), set[str](), ""
    for _, entry in store.journal():
        if isinstance(entry, EvaluationEntry):
            statuses.add(entry.evaluation.status)
            if entry.evaluation.status is not Status.PASSED and entry.purpose is Purpose.SEARCH:
                last = f"{entry.evaluation.status.value}: {' '.join(entry.evaluation.message.split())[:300]}"
    ranking = store.ranking(task)
    starts = {row.variant.variant_id for row in ranking if row.request.operator == "start"}
    best = verified_best(ranking)
    found: dict[str, Any] = {
        "evaluations": store.spent.evaluations,
        "gpu_s": round(store.spent.gpu_s, 3),
        "called": bool(statuses & CALLED),
        "start_passed": bool(starts),
        "verified": best is not None,
        "why": last or "nothing was evaluated",
    }
    return found if best is None else {**found, **_of_best(best, starts)}


def _of_best(best: Ranked, starts: set[str]) -> dict[str, Any]:
    verify = best.verify
    assert verify is not None
    interval = NOTHING
    if verify.latency_kind is LatencyKind.MEASURED:
        ratios = [case.log_ratios for case in verify.cases]
        high = math.exp(math.fsum(math.log(case.speedup_high) for case in verify.cases) / len(verify.cases))
        point = geometric_mean_interval(ratios, seed=0).point if all(ratios) else verify.speedup
        interval = (point, min(point, verify.fitness), max(point, high))
    return {
        "differs": best.variant.variant_id not in starts,
        "trust": verify.trust.value if verify.trust else "",
        "latency_kind": verify.latency_kind.value if verify.latency_kind else "",
        "device_speedup": interval,
    }


def _with_calls(row: Row, suite: Suite, compared: Mapping[str, Any] | None) -> Row:
    """The row with call latencies, where they are of the variant that is the best one now."""
    if compared is None or row.state != "verified":
        return row
    if "failure" in compared:
        return dataclasses.replace(row, unmeasured={"best": str(compared["failure"])})
    cases = compared["cases"]
    sides = [side for side in cases[0]["us"] if all(side in case["us"] for case in cases)] if cases else []
    us = {side: tuple(float(case["us"][side]) for case in cases) for side in sides}
    ratios = {side: [case["ratios"][side] for case in cases] for side in sides if side != "best"}
    side = "kernel" if suite.against is Against.KERNEL else "eager"
    return dataclasses.replace(
        row,
        call_us=us,
        call_speedup={name: _numbers(geometric_mean_interval(given, seed=0)) for name, given in ratios.items()},
        own_speedup=suite.own_speedup(us[side], us["best"]) if side in us else 0.0,
        unmeasured=dict(compared.get("failed", {})),
    )


def _numbers(interval: Interval) -> tuple[float, float, float]:
    return interval.point, interval.low, interval.high
