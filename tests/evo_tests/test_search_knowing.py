"""What a search knows of modules: twins are not evaluated twice, examples come from elsewhere and leak nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.cluster.setup import task_setups
from evo.config import RunConfig, read_config
from evo.errors import ConfigError, StoreError
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Exchange,
    LatencyKind,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    TrustLevel,
    Usage,
    Variant,
)
from evo.search.engine import Engine
from evo.search.library import read_library
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import render, toy_setup
from operators.base import Example, OperatorKind
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

ASK = OperatorInfo("ask", OperatorKind.MUTATION, 1, needs_model=True)
RULE = OperatorInfo("rule", OperatorKind.MUTATION)
SETTINGS = SearchSettings(islands=1, crossover_share=0.0, repair_share=0.0)
EXCHANGE = Exchange("m", "p", "t", "prompt", "reply", "end_turn", "r", 1.0, Usage())


def header(name: str = "run", tasks: str = "{}") -> RunHeader:
    return RunHeader(name, 1, "{}", tasks, "{}", "2026-01-01T00:00:00+00:00")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    with open_store(str(tmp_path / "run.sqlite"), header=header()) as opened:
        yield opened


def engine_on(store: PopulationStore, operator: OperatorInfo, *tasks: TaskSetup) -> Engine:
    engine = Engine(
        seed=3,
        settings=SETTINGS,
        budget=Budget(),
        tasks=tasks or (toy_setup(),),
        operators=(operator,),
        store=store,
        clock=lambda: 0.0,
    )
    for lease in engine.ask_evaluations(9):
        engine.tell_evaluation(lease.token, passed(lease.item.variant, 1.0))
    return engine


def passed(variant: Variant, speedup: float) -> Evaluation:
    case = CaseResult("c", Configuration(), 0.5, 10 / speedup, 10.0, speedup, speedup, speedup, 0, 0)
    return Evaluation(
        variant.variant_id,
        Status.PASSED,
        Stage.TIME,
        "d",
        variant.variant_id,
        TrustLevel.INTERPRETED,
        LatencyKind.SIMULATED,
        fitness=speedup,
        cases=(case,),
    )


TWIN = f'"""A docstring."""\n\n# and a comment\n{render({})}'
RENAMED = render({}).replace("return x", "a = x\n    return a")


def test_a_model_that_writes_a_known_module_again_is_not_evaluated(store: PopulationStore) -> None:
    engine = engine_on(store, ASK)
    (work,) = engine.ask_proposals(1)
    assert engine.tell_proposal(work.request.number, Proposal(TWIN, "new!", (EXCHANGE,)))
    assert engine.ask_evaluations(1) == ()
    (outcome,) = (
        entry for _, entry in store.journal() if isinstance(entry, OutcomeEntry) and entry.number == work.request.number
    )
    assert outcome.variant is not None
    assert outcome.variant.source == render({})
    assert outcome.outcome.exchanges == (EXCHANGE,)


def test_a_new_spelling_of_the_parent_is_no_circle(store: PopulationStore) -> None:
    engine = engine_on(store, ASK)
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, Proposal(TWIN, "new!", (EXCHANGE,)))
    assert store.events() == (), "the lineage is not abandoned for it"


def test_twins_of_what_was_proposed_in_an_earlier_session_are_known_too(store: PopulationStore) -> None:
    engine = engine_on(store, ASK)
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, Proposal(RENAMED, "first", (EXCHANGE,)))
    (lease,) = engine.ask_evaluations(1)
    engine.tell_evaluation(lease.token, passed(lease.item.variant, 1.5))
    again = engine_on(store, ASK)
    (work,) = again.ask_proposals(1)
    again.tell_proposal(
        work.request.number, Proposal(RENAMED.replace("a = x", "b = x").replace("return a", "return b"), "second", (EXCHANGE,))
    )
    assert again.ask_evaluations(1) == ()


def test_rules_are_left_to_the_comparison_of_plans(store: PopulationStore) -> None:
    engine = engine_on(store, RULE)
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, Proposal(TWIN, "layout"))
    assert len(engine.ask_evaluations(1)) == 1


KERNEL = "import triton\n\n\n@triton.jit\ndef kernel(x_ptr, BLOCK: tl.constexpr):\n    tl.store(x_ptr, tl.load(x_ptr))\n"


def test_examples_come_from_the_library_and_from_other_tasks_but_for_held_out_answers(store: PopulationStore) -> None:
    answer = render({}) + "\n\ndef answer(x):\n    return [item * 3 + 1 for item in x if item > 2]\n"
    library = (Example(answer, "a folder", 9.0), Example(render({"knob_a": 3}) + KERNEL, "an earlier run", 2.0))
    plain = toy_setup("toy")
    setup = TaskSetup(plain.task, plain.starts, plain.context, library, held_out=(answer,))
    engine = engine_on(store, ASK, setup, toy_setup("other", starts=(render({}) + KERNEL + "\nNAME = 'other'\n",)))
    works = engine.ask_proposals(2)
    shown = {work.request.task: [example.origin for example in work.context.examples] for work in works}
    assert shown["toy"] in (["an earlier run"], ["task other of this run"])
    assert shown["other"] == ["task toy of this run"]


def test_rules_need_no_examples(store: PopulationStore) -> None:
    plain = toy_setup()
    setup = TaskSetup(plain.task, plain.starts, plain.context, (Example(render({}) + KERNEL, "folder"),))
    (work,) = engine_on(store, RULE, setup).ask_proposals(1)
    assert work.context.examples == ()


def test_a_library_of_stores_and_folders_is_read_and_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "one.py").write_text(KERNEL + "raise SystemExit('it was run')\n")
    (folder / "none.py").write_text("print('no kernel')\n")
    (folder / "large.py").write_text(KERNEL + "# x\n" * 20_000)
    place = str(tmp_path / "earlier.sqlite")
    variant, worse = Variant("softmax", KERNEL + "# best\n"), Variant("softmax", KERNEL + "# worse\n")
    with open_store(place, header=header("night", json.dumps({"softmax": ""}))) as earlier:
        for number, (item, speedup) in enumerate(((variant, 2.0), (worse, 0.0))):
            verdict = passed(item, speedup) if speedup else Evaluation(item.variant_id, Status.TIMEOUT, Stage.GATE, "d")
            entries = [
                Request(number, "softmax", 0, "softmax/0/0", "start", ()),
                OutcomeEntry(number, Proposal(item.source, "s"), item),
                EvaluationEntry(number, Purpose.SEARCH, verdict),
            ]
            earlier.record(entries, Spent())
    found = read_library([place, str(folder)])
    assert [(example.origin, example.speedup) for example in found] == [
        ("task softmax of run night", 2.0),
        ("deep/one.py", 0.0),
    ]


def test_a_library_that_is_not_there_is_said_before_a_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: a\ntasks: [softmax]\nlibrary: [kernels]\n")
    with pytest.raises(ConfigError, match=r"library\.0.*no such population store or folder"):
        read_config(path)
    (tmp_path / "kernels").mkdir()
    assert read_config(path).library == (str(tmp_path / "kernels"),)
    with pytest.raises(ConfigError, match="library"):
        read_library([str(tmp_path / "nowhere")])
    (tmp_path / "text.sqlite").write_text("no store")
    with pytest.raises(StoreError):
        read_library([str(tmp_path / "text.sqlite")])


def test_operators_are_told_what_is_timed_and_nothing_that_is_held_out() -> None:
    config = RunConfig.model_validate({"name": "a", "tasks": ["softmax", "quantize_rows"], "target": "cuda:90"})
    for setup in task_setups(config):
        told = setup.context.brief + setup.context.reference_source
        assert setup.context.kind == setup.task.kind
        assert all(f"{case.name}: " in told for case in setup.task.training_cases)
        assert not any(f"{case.name}: " in told for case in setup.task.held_out_cases)
        assert f"def {setup.task.entry}(" in setup.context.reference_source
    assert "SMALLEST = 1e-10" in setup.context.reference_source, "constants that the reference needs belong to it"
