"""Accuracy and pass@k of a run: against counting by hand, from a real store, on the command line."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from evo.commands.looking import report_command
from evo.errors import InputError
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
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
from evo.reporting.accuracy import pass_at_k, read_accuracy
from evo.reporting.accuracy_table import accuracy_json, render_accuracy
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

HEADER = RunHeader("night", 1, "{}", json.dumps({"a": "", "b": ""}), "{}", "2026-01-01T00:00:00+00:00")
EXCHANGE = Exchange("m", "p", "t", "prompt", "reply", "end_turn", "r", 1.0, Usage(dollars=0.5))


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_correct_one(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(draw) < c for draw in draws) / len(draws))


def test_pass_at_k_stays_exact_for_large_counts() -> None:
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="allowed"):
        pass_at_k(3, 4, 1)
    with pytest.raises(ValueError, match="allowed"):
        pass_at_k(3, 1, 4)


def verdict(variant: Variant, status: Status, speedup: float = 1.0, duplicate_of: str | None = None) -> Evaluation:
    if status is not Status.PASSED:
        stage = Stage.GATE if status is Status.WRONG_VALUES else Stage.COMPILE
        return Evaluation(variant.variant_id, status, stage, "d", plan_hash="p", duplicate_of=duplicate_of)
    case = CaseResult("c", Configuration(), 0.5, 10 / speedup, 10.0, speedup, speedup, speedup, 0, 0)
    return Evaluation(
        variant.variant_id,
        status,
        Stage.TIME,
        "d",
        variant.variant_id,
        TrustLevel.INTERPRETED,
        LatencyKind.MODELLED,
        fitness=speedup,
        cases=(case,),
    )


class Writer:
    """Writes what a run of two tasks would record."""

    def __init__(self, store: PopulationStore) -> None:
        self._store = store
        self._number = 0

    def start(self, task: str) -> Variant:
        variant = Variant(task, f"def {task}(x):\n    return x\n")
        self._write(task, "start", (), Proposal(variant.source, "start"), variant, verdict(variant, Status.PASSED))
        return variant

    def ask(self, parents: tuple[Variant, ...], source: str, found: Evaluation | None, operator: str = "llm_optimize") -> Variant:
        variant = Variant(parents[0].task, source)
        outcome = Proposal(source, "s", (EXCHANGE,) if operator.startswith("llm") else ())
        self._write(variant.task, operator, tuple(item.variant_id for item in parents), outcome, variant, found)
        return variant

    def nothing(self, parent: Variant, failed: bool = True) -> None:
        outcome = NoProposal("no", failed, (EXCHANGE,) if failed else ())
        self._write(parent.task, "llm_optimize", (parent.variant_id,), outcome, None, None)

    def _write(
        self,
        task: str,
        operator: str,
        parents: tuple[str, ...],
        outcome: Proposal | NoProposal,
        variant: Variant | None,
        found: Evaluation | None,
    ) -> None:
        number, self._number = self._number, self._number + 1
        entries: list[Entry] = [
            Request(number, task, 0, f"{task}/0/0", operator, parents),
            OutcomeEntry(number, outcome, variant),
        ]
        if found is not None:
            entries.append(EvaluationEntry(number, Purpose.SEARCH, found))
        self._store.record(entries, Spent())


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Task a: a correct and faster one, a wrong one, one that does not compile, none, one that awaits its verdict, a repeat, a
    duplicate, and a later one. Task b: two correct ones of a rule."""
    path = str(tmp_path / "run.sqlite")
    with open_store(path, header=HEADER) as store:
        writer = Writer(store)
        a, b = writer.start("a"), writer.start("b")
        sources = [f"def a(x):\n    y{number} = x * {'x + ' * number} 1\n    return y{number}\n" for number in range(1, 7)]
        variants = [Variant("a", source) for source in sources]
        writer.ask((a,), sources[0], verdict(variants[0], Status.PASSED, 2.0))
        writer.ask((a,), sources[1], verdict(variants[1], Status.WRONG_VALUES))
        writer.ask((a,), sources[2], verdict(variants[2], Status.COMPILE_ERROR))
        writer.nothing(a)
        writer.nothing(a, failed=False)
        writer.ask((a,), sources[3], None)
        writer.ask((a,), sources[0], None)
        writer.ask((a,), sources[4], verdict(variants[4], Status.DUPLICATE, duplicate_of=variants[1].variant_id))
        writer.ask((variants[0],), sources[5], verdict(variants[5], Status.PASSED, 0.5))
        twin = sources[5].replace("y6", "z")
        writer.ask((variants[5],), twin, verdict(Variant("a", twin), Status.PASSED, 0.5))
        for number in range(2):
            child = Variant("b", f"def b(x):\n    return x + {number}\n")
            writer.ask((b,), child.source, verdict(child, Status.PASSED), operator="tile")
    return path


def test_every_proposal_is_counted_for_what_came_of_it(place: str) -> None:
    with open_store(place) as store:
        report = read_accuracy(store)
    first = report.first["a"]
    assert (first.proposals, first.usable, first.repeated, first.judged) == (7, 6, 1, 5)
    assert (first.called, first.correct, first.faster) == (4, 2, 2), "a repeat and a duplicate count as what they repeat"
    assert first.finished == 6, "what awaits its verdict does not count against anybody"
    assert first.call_accuracy == pytest.approx(4 / 6)
    assert first.execution_accuracy == pytest.approx(2 / 6)
    assert first.dollars == 3.5
    later = report.later["a"]
    assert (later.proposals, later.correct, later.faster, later.near) == (2, 2, 0, 1)
    assert set(report.first) == {"a"}, "rules sample nothing"
    assert (report.operators["tile"].proposals, report.operators["llm_optimize"].proposals) == (2, 9)


def test_pass_at_k_is_of_independent_proposals(place: str) -> None:
    with open_store(place) as store:
        report = read_accuracy(store)
    assert report.pass_at(1) == pytest.approx(2 / 6)
    assert report.pass_at(2) == pytest.approx(1 - (4 * 3) / (6 * 5))
    assert report.pass_at(7) is None


def test_people_and_programs_read_the_same(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    report_command(place, "1, 8", as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["pass_at_k"] == {"1": pytest.approx(2 / 6), "8": None}
    assert data["first"]["a"]["call_accuracy"] == pytest.approx(4 / 6)
    with open_store(place) as store:
        report = read_accuracy(store)
    assert accuracy_json(report, [1, 8]) == data
    out = io.StringIO()
    Console(file=out, width=160).print(render_accuracy(report, [1, 8]))
    row = next(line for line in out.getvalue().splitlines() if line.startswith("a "))
    assert row.split() == ["a", "7", "1", "1", "0", "66.7%", "33.3%", "33.3%", "$3.50", "33.3%", "-"]


def test_rounds_of_mending_are_counted_by_tier(tmp_path: Path) -> None:
    path = str(tmp_path / "rounds.sqlite")
    with open_store(path, header=HEADER) as store:
        writer = Writer(store)
        a = writer.start("a")
        names = [Variant("a", f"def a(x):\n    q{number} = x * {number}\n    return q{number}\n") for number in range(5)]
        broken = writer.ask((a,), names[0].source, verdict(names[0], Status.COMPILE_ERROR))
        again = writer.ask((broken,), names[1].source, verdict(names[1], Status.WRONG_VALUES), "llm_repair")
        mended = writer.ask((again,), names[2].source, verdict(names[2], Status.PASSED, 2.0), "llm_repair")
        writer.ask((mended,), names[3].source, verdict(names[3], Status.PASSED, 3.0))
        writer.nothing(broken)
    with open_store(path) as store:
        report = read_accuracy(store)
    (rounds,) = report.tiers.values()
    assert [found.proposals for found in rounds] == [2, 2, 1]
    assert [found.compiled for found in rounds] == [1, 1, 1]
    assert [found.correct for found in rounds] == [1, 0, 1]
    assert [found.usable for found in rounds] == [found.at_once for found in rounds] == [2, 1, 1]
    out = io.StringIO()
    Console(file=out, width=200).print(render_accuracy(report, [1]))
    rows = [line.split() for line in out.getvalue().splitlines()[-3:]]
    assert rows[0] == ["m", "0", "2", "100.0%", "100.0%", "50.0%", "50.0%", "50.0%", "-", "$1.00"]
    assert rows[1] == ["1", "2", "50.0%", "50.0%", "50.0%", "0.0%", "0.0%", "-", "$1.00"]


@pytest.mark.parametrize("ks", ["", "0", "1,x", "-1", "²"])
def test_wrong_k_is_one_line(place: str, ks: str) -> None:
    with pytest.raises(InputError, match="--k"):
        report_command(place, ks, as_json=False)


def test_a_run_without_proposals_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "new.sqlite")
    open_store(path, header=HEADER).close()
    report_command(path, "1", as_json=False)
    assert "no proposals yet" in capsys.readouterr().out
