"""Work in turns on two machines: proposals here, evaluations there, one search."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.commands.airgap import evaluate_command, merge_command, propose_command
from evo.commands.carrying import hand_over, open_merged, standing_of, tasks_here, write_rest
from evo.commands.search import Overrides
from evo.config import RunConfig
from evo.errors import BundleError, ConfigError, StoreError, TaskError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.main import main
from evo.records import Event, EventKind, NoProposal, Proposal
from evo.search.engine import Engine
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo
from evo.search.toy import toy_setup
from experiments.scripted_model import ScriptedModel, finished, toy_answer
from operators.base import Operator
from operators.llm.crossover import LlmCrossover
from operators.llm.explore import LlmExplore
from operators.llm.optimize import LlmOptimize
from operators.llm.repair import LlmRepair
from operators.llm.restart import LlmRestart
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, RunHeader
from population_store.bundles import read_bundle
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal
from tests.evo_tests.running_processes import started, wait_until
from tests.evo_tests.test_cluster_models import rewritten
from tests.operators_tests.loopback import Failure, Loopback, Message

HEADER = RunHeader("turns", 7, '{"name": "turns", "tasks": ["toy"]}', "{}", "{}", "2026-01-01T00:00:00+00:00")
ENDS = (EventKind.RESUMED, EventKind.PROPOSED, EventKind.EVALUATED)
ROUND = 9


def quiet(text: str) -> None:
    """Nobody listens."""


class Search:
    """An engine with a scripted model and the simulated evaluator."""

    def __init__(self, store: PopulationStore) -> None:
        model = ScriptedModel(toy_answer, seed=3)
        classes: list[type[Operator]] = [LlmOptimize, LlmCrossover, LlmRepair, LlmExplore, LlmRestart]
        self.operators: dict[str, Operator] = {cls.name: cls(model=model) for cls in classes}  # type: ignore[call-arg]
        self.engine = Engine(
            seed=7,
            settings=SearchSettings(islands=2, migration_interval=4, stall_limit=4, verify_elites=0),
            budget=Budget(evaluations=50),
            tasks=[toy_setup()],
            operators=[OperatorInfo(item.name, item.kind, item.arity, item.needs_model) for item in self.operators.values()],
            store=store,
            clock=lambda: 0.0,
        )

    def propose(self) -> None:
        """Until a round of variants awaits evaluation."""
        while self.engine.progress().tasks[0].pending_evaluations < ROUND and (works := self.engine.ask_proposals(1)):
            (work,) = works
            rng = np.random.default_rng(work.seed)
            outcome = finished(self.operators[work.request.operator], work.parents, work.context, rng)
            assert isinstance(outcome, Proposal | NoProposal)
            self.engine.tell_proposal(work.request.number, outcome)

    def evaluate(self) -> None:
        """All that await it."""
        while leases := self.engine.ask_evaluations(1, "simulated"):
            self.engine.tell_evaluation(leases[0].token, SimulatedEvaluator(7).evaluate(leases[0].item, self.engine.claim))


def decided(store: PopulationStore) -> list[Entry]:
    """What the search decided and learned, without the ends of sessions."""
    return [entry for _, entry in store.journal() if not (isinstance(entry, Event) and entry.kind in ENDS)]


def test_two_machines_in_turns_search_as_one_that_is_never_interrupted(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "one.sqlite"), header=HEADER) as one:
        search = Search(one)
        while search.engine.finished is None:
            search.propose()
            search.evaluate()
        expected = decided(one)
    here, there = tmp_path / "here" / "run.sqlite", tmp_path / "there" / "run.sqlite"
    out, back = tmp_path / "out.jsonl.gz", tmp_path / "back.jsonl.gz"
    open_store(str(here), header=HEADER).close()
    sizes = []
    for turn in range(20):
        with open_merged(str(here), [back] if turn else [], quiet, create=False) as store:
            search = Search(store)
            if search.engine.finished is not None:
                break
            search.propose()
            hand_over(store, EventKind.PROPOSED, "", store.spent, once=False)
            write_rest(store, EventKind.EVALUATED, out)
        with open_merged(str(there), [out], quiet, create=True) as store:
            Search(store).evaluate()
            hand_over(store, EventKind.EVALUATED, "", store.spent, once=False)
            sizes.append(len(write_rest(store, EventKind.PROPOSED, back).entries))
    assert len(sizes) > 4
    assert max(sizes) < 60, "a bundle holds one turn, not the run"
    with open_store(str(here)) as store, open_store(str(there)) as other:
        assert decided(store) == decided(other) == expected
        assert check_journal(other, finished=True) == []
        assert store.spent.dollars == other.spent.dollars > 0
    assert {entry.kind for entry in expected if isinstance(entry, Event)} >= {EventKind.MIGRATION, EventKind.RESTART}


@pytest.fixture
def turns(simulated_file: Callable[..., Path]) -> Callable[..., Path]:
    """A configuration of a search with a model at a loopback server."""

    def write(server: Loopback, **given: int) -> Path:
        path = simulated_file(**given)
        model = f"{{provider: openai, name: gpt-6-luna, base_url: '{server.url}', max_tokens: 2000, options: {{max_retries: 0}}}}"
        path.write_text(path.read_text() + f"operators: [llm_optimize, widen_space]\nmodels: [{model}]\n")
        return path

    return write


def journal(path: Path) -> list[Entry]:
    with open_store(str(path)) as store:
        return [entry for _, entry in store.journal()]


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_the_commands_work_in_turns_and_may_be_given_twice(
    turns: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here" / "run.sqlite", tmp_path / "there" / "run.sqlite"
    names = [tmp_path / f"{name}.jsonl.gz" for name in ("p0", "e0", "p1", "e1", "p2")]
    p0, e0, p1, e1, p2 = names
    with Loopback(rewritten, keyless=True) as server:
        config = turns(server, evaluations=14)
        assert propose_command(str(here), 6, p0, None, config) == 0
        assert "the starting kernels must be evaluated first" in capsys.readouterr().out
        assert server.count == 0
        assert evaluate_command(str(there), p0, e0) == 0
        assert propose_command(str(here), 6, p1, e0, None) == 0
        assert "6 variants to evaluate, 6 of them new" in capsys.readouterr().out
        assert server.count > 0
        before, written, asked = journal(here), p1.read_bytes(), server.count
        assert propose_command(str(here), 6, p1, e0, config) == 0
        assert "nothing new" in capsys.readouterr().out
        assert (journal(here), p1.read_bytes(), server.count) == (before, written, asked), "the same command again"
        assert evaluate_command(str(there), p1, e1) == 0
        assert "6 evaluated now" in capsys.readouterr().out
        known, answered = journal(there), e1.read_bytes()
        assert evaluate_command(str(there), p1, e1) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert (journal(there), e1.read_bytes()) == (known, answered)
        assert propose_command(str(here), 50, p2, e1, None) == 0
        assert "fewer than 50: the budget of 14 evaluations is used" in capsys.readouterr().out
        assert evaluate_command(str(there), p2, None) == 0
        assert merge_command(str(here), [tmp_path / "evaluated-p2.jsonl.gz", e1, there]) == 0
        assert journal(here) == journal(there)
        with open_store(str(here)) as store:
            assert check_journal(store, finished=True) == []
            standing, spent = standing_of(store), store.spent
        assert propose_command(str(here), 3, p2, None, None, Overrides(evaluations=17)) == 0
        assert "3 variants to evaluate, 3 of them new" in capsys.readouterr().out, "a larger budget prolongs what had ended"
    assert (standing.evaluated, spent.evaluations, standing.awaiting) == (14, 14, {})
    assert spent.held_dollars == 0 < spent.dollars


def test_an_endpoint_that_is_down_costs_little_and_is_told_of(
    turns: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, back = tmp_path / "here.sqlite", tmp_path / "there.sqlite", tmp_path / "e0.jsonl"
    with Loopback([Failure(500, "down")], keyless=True) as server:
        config = turns(server)
        config.write_text(config.read_text().replace(", widen_space", ""))
        propose_command(str(here), 40, tmp_path / "p0.jsonl", None, config)
        judge_starts(there, tmp_path / "p0.jsonl", back)
        gc.collect()  # of what earlier tests left
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            assert propose_command(str(here), 40, tmp_path / "p1.jsonl", back, None) == 0
            gc.collect()
        assert not [warning for warning in told if "unclosed" in str(warning.message)], "a connection was left open"
        said = capsys.readouterr().out
        assert "0 variants to evaluate" in said
        assert f"asks gpt-6-luna at {server.url}" in said, "keys go where a store says"
        assert "fewer than 40: gpt-6-luna failed" in said
        assert server.count < 25 + 8, "the limit, and what was in hand when it was reached"
    assert len(read_bundle(tmp_path / "p1.jsonl").entries) > 1, "the failures are known there too"


def test_proposals_that_were_killed_go_on_and_what_was_in_flight_counts_as_spent(
    turns: Callable[..., Path], tmp_path: Path
) -> None:
    here, there, back, out = (tmp_path / name for name in ("here.sqlite", "there.sqlite", "e0.jsonl", "p1.jsonl"))

    def slow(body: dict[str, Any]) -> Message:
        return Message(rewritten(body).blocks, delay_s=30.0 if server.count > 2 and not killed else 0.0)

    killed: list[int] = []
    with Loopback(slow, keyless=True) as server:
        propose_command(str(here), 1, tmp_path / "p0.jsonl", None, turns(server))
        judge_starts(there, tmp_path / "p0.jsonl", back)
        with started(tmp_path, "propose", str(here), "--n", "8", "--in", str(back), "--out", str(out)) as process:
            wait_until(lambda: server.count >= 5, "requests that are not answered")
            killed.append(process.pid)
            process.kill()
        assert not out.exists()
        before = journal(here)
        with open_store(str(here)) as store:
            held = store.spent.held_dollars
        assert propose_command(str(here), 8, out, back, None) == 0
    with open_store(str(here)) as store:
        assert check_journal(store) == []
        assert len(standing_of(store).awaiting) == 8
        assert store.spent.held_dollars == pytest.approx(held)
        assert held > 0
    assert journal(here)[: len(before)] == before
    assert sum(isinstance(entry, OutcomeEntry) for entry in before) >= 3, "what was answered is not asked again"


@pytest.mark.slow
def test_an_evaluation_that_was_killed_goes_on(turns: Callable[..., Path], tmp_path: Path, slow_evaluator: str) -> None:
    here, there, back, out = (tmp_path / name for name in ("here.sqlite", "there.sqlite", "e0.jsonl", "p1.jsonl"))
    with Loopback(rewritten, keyless=True) as server:
        config = turns(server)
        config.write_text(config.read_text().replace("evaluator: simulated", f"evaluator: '{slow_evaluator}'"))
        propose_command(str(here), 20, tmp_path / "p0.jsonl", None, config)
        shutil.copy(here, there)  # such an evaluator is not taken from a bundle
        judge_starts(there, tmp_path / "p0.jsonl", back)
        propose_command(str(here), 20, out, back, None)
    with started(tmp_path, "evaluate", str(there), "--in", str(out)) as process:
        wait_until(lambda: len(evaluated(there)) >= 4, "some evaluations")
        process.kill()
    assert not (tmp_path / "evaluated-p1.jsonl").exists()
    before = evaluated(there)
    with started(tmp_path, "evaluate", str(there), "--in", str(out)) as process:
        wait_until(lambda: process.poll() is not None, "the end")
    assert process.returncode == 0, (tmp_path / "out.txt").read_text()
    assert evaluated(there)[: len(before)] == before
    merge_command(str(here), [tmp_path / "evaluated-p1.jsonl"])
    with open_store(str(here)) as store:
        assert check_journal(store) == []
        assert (standing_of(store).evaluated, standing_of(store).awaiting) == (21, {})


def evaluated(path: Path) -> list[Entry]:
    return [entry for entry in journal(path) if isinstance(entry, EvaluationEntry)]


def test_a_run_begins_with_a_target_and_goes_on_with_the_same_configuration(turns: Callable[..., Path], tmp_path: Path) -> None:
    here, out = tmp_path / "here.sqlite", tmp_path / "p0.jsonl"
    with pytest.raises(StoreError, match="no such population store"):
        propose_command(str(here), 1, out, None, None)
    with Loopback([Failure(500, "down")], keyless=True) as server:
        config = turns(server)
        text = config.read_text()
        config.write_text(text.replace("cuda:90", "auto"))
        with pytest.raises(ConfigError, match="target; given 'auto'; name the target"):
            propose_command(str(here), 1, out, None, config)
        assert not here.exists()
        config.write_text(text)
        propose_command(str(here), 1, out, None, config)
        config.write_text(text.replace("seed: 0", "seed: 1"))
        with pytest.raises(StoreError, match="another configuration"):
            propose_command(str(here), 1, out, None, config)


def test_a_bundle_cannot_name_a_function_to_call(tmp_path: Path) -> None:
    config = RunConfig(name="turns", tasks=("softmax",), evaluator="os:system").to_text()
    with open_store(str(tmp_path / "a.sqlite"), header=dataclasses.replace(HEADER, config=config)) as store:
        write_rest(store, EventKind.EVALUATED, tmp_path / "b.jsonl")
    with pytest.raises(BundleError, match="evaluator os:system"):
        merge_command(str(tmp_path / "b.sqlite"), [tmp_path / "b.jsonl"])
    assert not (tmp_path / "b.sqlite").exists()


def test_a_task_file_is_found_beside_the_store_and_imported_only_if_it_is_the_same(tmp_path: Path) -> None:
    config = RunConfig(name="turns", tasks=("/elsewhere/mine.py", "softmax"))
    header = dataclasses.replace(HEADER, tasks='{"mine": "TASK = 1\\n"}')
    store, copy = str(tmp_path / "run.sqlite"), tmp_path / "mine.py"
    with pytest.raises(TaskError, match="beside the store"):
        tasks_here(config, header, store)
    copy.write_text("TASK = 2\n")
    with pytest.raises(TaskError, match="not the file that the run was started with"):
        tasks_here(config, header, store)
    copy.write_text("TASK = 1\n")
    assert tasks_here(config, header, store).tasks == (str(copy), "softmax")


def test_a_bundle_that_comes_too_early_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(str(tmp_path / "a.sqlite"), header=HEADER) as store:
        hand_over(store, EventKind.EVALUATED, "", store.spent, once=False)
        write_rest(store, EventKind.EVALUATED, tmp_path / "late.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["merge", str(tmp_path / "b.sqlite"), str(tmp_path / "late.jsonl")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "merge the bundle before it first" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "b.sqlite").exists()


def judge_starts(there: Path, bundle: Path, back: Path) -> None:
    """What `evaluate` does, without a Ray."""
    from evo.cluster.setup import operator_infos, task_setups

    with open_merged(str(there), [bundle], quiet, create=True) as store:
        config = RunConfig.from_text(store.header.config, "")
        engine = Engine(
            seed=config.seed,
            settings=config.search,
            budget=config.budget,
            tasks=task_setups(config),
            operators=operator_infos(config),
            store=store,
            clock=lambda: 0.0,
            models=[section.key for section in config.models],
        )
        for lease in engine.ask_evaluations(9, "simulated"):
            engine.tell_evaluation(lease.token, SimulatedEvaluator(0).evaluate(lease.item, engine.claim))
        hand_over(store, EventKind.EVALUATED, "", store.spent, once=False)
        write_rest(store, EventKind.PROPOSED, back)
