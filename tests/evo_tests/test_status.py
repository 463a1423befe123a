"""What a person reads of a run: in a store, on a terminal, in a log."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Event,
    EventKind,
    Exchange,
    LatencyKind,
    NoProposal,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    TrustLevel,
    Usage,
    Variant,
)
from evo.reporting.progress import PlainLines, live_table, progress_display
from evo.reporting.status import StatusReader, best_table, render_status
from evo.search.progress import IslandProgress, Progress, TaskProgress
from evo.search.settings import Budget
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

HEADER = RunHeader(
    name="night",
    seed=7,
    config=json.dumps({"budget": {"evaluations": 50, "dollars": 2.0, "wall_s": None}}),
    tasks=json.dumps({"softmax": ""}),
    versions="{}",
    created="2026-01-02T03:04:05+00:00",
)
EXCHANGE = Exchange("some-model", "p", "t", "prompt", "reply", "end_turn", "r1", 1.0, Usage(dollars=0.25))


def passed(variant_id: str, speedup: float, kind: LatencyKind = LatencyKind.MODELLED) -> Evaluation:
    case = CaseResult("c", Configuration(), 0.5, 10 / speedup, 10.0, speedup, speedup, speedup, 0, 64)
    trust = TrustLevel.INTERPRETED
    return Evaluation(
        variant_id, Status.PASSED, Stage.TIME, "d", variant_id, trust, kind, fitness=speedup, cases=(case,), wall_s=1.0
    )


@pytest.fixture
def store(tmp_path: Path) -> PopulationStore:
    """A run with a start, a faster child, a repeat of it, a refusal and work in hand."""
    store = open_store(str(tmp_path / "run.sqlite"), write=True, header=HEADER)
    start, child = Variant("softmax", "start = 1"), Variant("softmax", "child = 1")
    entries = [
        Request(0, "softmax", 0, "softmax/0/0", "start", ()),
        OutcomeEntry(0, Proposal(start.source, "starting kernel"), start),
        EvaluationEntry(0, Purpose.SEARCH, passed(start.variant_id, 1.0)),
        Request(1, "softmax", 1, "softmax/1/0", "llm_mutation", (start.variant_id,)),
        OutcomeEntry(1, Proposal(child.source, "tiles [64]", (EXCHANGE,)), child),
        EvaluationEntry(1, Purpose.SEARCH, passed(child.variant_id, 2.5)),
        Request(2, "softmax", 1, "softmax/1/0", "tile", (start.variant_id,)),
        OutcomeEntry(2, Proposal(child.source, "the same again"), child),
        Request(3, "softmax", 1, "softmax/1/0", "llm_mutation", (start.variant_id,)),
        OutcomeEntry(3, NoProposal("refused", True, (EXCHANGE,)), None),
        Request(4, "softmax", 0, "softmax/0/0", "tile", (start.variant_id,)),
        Event(EventKind.STALLED, "softmax", 1, "softmax/1/0", child.variant_id, "no gain"),
        Event(EventKind.RESTART, "softmax", 1, "softmax/1/1", child.variant_id, "from an elite"),
    ]
    store.record(entries, Spent(evaluations=2, proposals=4, wall_s=12.0, dollars=0.5))
    return store


def printed(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=180).print(renderable)
    return out.getvalue()


def test_status_is_read_while_the_owner_still_writes(store: PopulationStore, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "run.sqlite")) as reading:
        reader = StatusReader(reading)
        status = reader.look()
        assert status.counts == {"softmax": {"passed": 2, "repeated": 1, "no_proposal": 1, "pending": 1}}
        assert status.bills == {"some-model": (2, 0.5)}
        assert status.finished is None
        store.record([Event(EventKind.STOPPED, "", 0, "", "", "enough")], Spent(evaluations=2, proposals=4, wall_s=13.0))
        again = reader.look()
        assert again.finished == "enough"
        assert again.bills == status.bills, "a second look does not count anything twice"


def test_status_tells_islands_restarts_money_and_budget(store: PopulationStore) -> None:
    text = printed(render_status(StatusReader(store).look()))
    assert "night: not finished (seed 7" in text
    assert "2/50 evaluations" in text
    assert "$0.50 of $2.00" in text
    assert "some-model: 2 requests, $0.50" in text
    assert "stalled softmax softmax/1/0: no gain" in text
    islands = StatusReader(store).look().islands
    assert [(place.island, place.passed, place.fitness, place.stalled) for place in islands] == [(0, 1, 1.0, 0), (1, 1, 2.5, 1)]


def test_status_tells_what_traps_cost_and_what_restarts_gave(store: PopulationStore) -> None:
    reader = StatusReader(store)
    (given_up,) = reader.look().abandoned
    assert (given_up.lineage, given_up.successor) == ("softmax/1/0", "softmax/1/1")
    assert (given_up.figures.proposals, given_up.figures.evaluations, given_up.figures.best) == (3, 1, 2.5)
    assert (given_up.figures.dollars, given_up.figures.dollars_since_gain) == (0.5, 0.25)
    assert not given_up.gained
    better = Variant("softmax", "better = 1")
    entries = [
        Request(9, "softmax", 1, "softmax/1/1", "llm_restart", (store.ranking("softmax")[0].variant.variant_id,)),
        OutcomeEntry(9, Proposal(better.source, "anew", (EXCHANGE,)), better),
        EvaluationEntry(9, Purpose.SEARCH, passed(better.variant_id, 3.0)),
    ]
    store.record(entries, Spent(evaluations=3, proposals=5, dollars=0.75))
    look = reader.look()
    assert look.abandoned[0].gained
    assert look.given_up.better == 1
    text = printed(render_status(look))
    assert (
        "0 trapped and 1 stalled lineages, $0.25 spent on them since their last gain; 1 of 1 restarts found something better"
        in text
    )
    row = next(line for line in text.splitlines() if line.startswith("softmax/1/0"))
    assert row.split()[-5:] == ["$0.50", "2.50", "softmax/1/1", "3.00", "$0.25"]


def test_status_tells_what_rests_on_which_trust_and_what_was_checked(store: PopulationStore) -> None:
    variant_id = store.ranking("softmax")[0].variant.variant_id
    checks = ("recorded use", "memcheck not applied: compute-sanitizer is not installed")
    verdict = dataclasses.replace(passed(variant_id, 2.0, LatencyKind.MEASURED), trust=TrustLevel.HOSTED, checks=checks)
    store.record([EvaluationEntry(1, Purpose.VERIFY, verdict)], Spent(evaluations=2, proposals=4))
    text = printed(render_status(StatusReader(store).look()))
    assert "trust softmax: hosted 1 (50%), interpreted 1 (50%)" in text
    assert "verified with recorded use: 1" in text
    assert "verified without memcheck (compute-sanitizer is not installed): 1" in text


def test_the_best_table_marks_estimates_and_keeps_square_brackets(store: PopulationStore) -> None:
    rows = store.ranking("softmax")
    text = printed(best_table(rows))
    best = next(line for line in text.splitlines() if "llm_mutation" in line)
    assert "modelled estimate" in best
    assert "measured" not in text
    assert "2.50× (≥ 2.50)" in best
    assert "tiles [64]" in best
    assert "interpreted" in best


def test_a_verified_figure_replaces_the_searched_one(store: PopulationStore) -> None:
    variant_id = store.ranking("softmax")[0].variant.variant_id
    verdict = passed(variant_id, 2.0, LatencyKind.MEASURED)
    store.record([EvaluationEntry(1, Purpose.VERIFY, verdict)], Spent(evaluations=2, proposals=4))
    best = next(line for line in printed(best_table(store.ranking("softmax"))).splitlines() if "llm_mutation" in line)
    assert "2.00× (≥ 2.00)" in best
    assert "interpreted, verified" in best
    assert "measured" in best


def progress(best: str = "", speedup: float = 0.0) -> Progress:
    islands = (IslandProgress(0, 1, speedup, 1, 1, 0),)
    latency = 5.0 if best else float("inf")
    task = TaskProgress("softmax", 3, 2, {}, 1, 0, speedup, speedup, latency, best, "tile" if best else "", False, 1, islands)
    return Progress((task,), (), Spent(evaluations=3, wall_s=4.0), Budget(evaluations=9), 1, 1, "search")


def test_a_log_gets_a_line_at_each_improvement_and_otherwise_one_every_few_seconds() -> None:
    out, now = io.StringIO(), [0.0]
    with progress_display(Console(file=out, width=40), LatencyKind.MODELLED, lambda: now[0]) as observe:
        assert isinstance(observe, PlainLines)
        for second, given in enumerate(
            [progress(), progress(), progress("abc", 1.5), progress("abc", 1.5), progress("def", 1.75)]
        ):
            now[0] = second
            observe(given)
        now[0] = 20.0
        observe(progress("def", 1.75))
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["search", "softmax", "softmax", "search"]
    assert "1.50× (modelled estimate)" in lines[1]
    assert "3/9 evaluations" in lines[3]


def test_a_terminal_gets_one_table_with_every_task() -> None:
    text = printed(live_table(progress("abcdef", 1.5), LatencyKind.MEASURED))
    assert "softmax" in text
    assert "1.50× (measured)" in text
    assert "3/9 evaluations" in text
    out = io.StringIO()
    with progress_display(Console(file=out, width=120, force_terminal=True), LatencyKind.MEASURED) as observe:
        observe(progress("abcdef", 1.5))
    assert "1.50×" in out.getvalue()


def test_what_models_fail_at_and_what_nobody_knows_the_bill_of_is_said(tmp_path: Path) -> None:
    failed = dataclasses.replace(EXCHANGE, model="down", stop_reason="error", usage=Usage())
    refused = dataclasses.replace(EXCHANGE, model="shy", stop_reason="refusal")
    outcomes = [
        NoProposal("down: 401 authentication_error [bold]", failed=True, exchanges=(failed,)),
        NoProposal("the model refused to answer", failed=True, exchanges=(refused,)),
    ]
    with open_store(str(tmp_path / "run.sqlite"), header=HEADER) as store:
        for number, outcome in enumerate(outcomes):
            request = Request(number, "softmax", 0, "softmax/0/0", "llm", ())
            store.record([request, OutcomeEntry(number, outcome, None)], Spent(dollars=0.25, held_dollars=0.5))
        status = StatusReader(store).look()
    text = " ".join(printed(render_status(status)).split())
    assert "$0.25 and $0.50 for requests whose bill is not known of $2.00" in text
    assert "down: 1 requests failed, 0 refused; the last: down: 401 authentication_error [bold]" in text
    assert "shy: 0 requests failed, 1 refused; the last: the model refused to answer" in text


def test_a_log_says_once_that_a_model_fails_again_and_again() -> None:
    out = io.StringIO()
    lines = PlainLines(Console(file=out, width=200), LatencyKind.MODELLED, lambda: 0.0)
    for count in (3, 4):
        failing = (f"some-model failed {count} times in a row: 401 [auth]",)
        lines(dataclasses.replace(progress(), failing=failing))
        assert failing[0] in printed(live_table(dataclasses.replace(progress(), failing=failing), LatencyKind.MODELLED))
    assert out.getvalue().count("some-model failed 3 times in a row: 401 [auth]") == 1
    assert "4 times" not in out.getvalue()
