"""Chains: what counts as one, when it is offered, what it makes; and what earlier runs tell of operators."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from evo.cluster.proposing import propose
from evo.commands.looking import operators_command
from evo.errors import ConfigError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import NoProposal, Proposal, Request, Variant
from evo.reporting.operators import operators_json
from evo.search.bandit import Arm, Bandit
from evo.search.chains import LONGEST, OFFERED, offered, sequence
from evo.search.earlier import FILE, kind_of, read_earlier, read_figures, write_earlier
from evo.search.engine import Engine
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo
from evo.search.toy import ToyFlag, ToyKnob, genes_of, render, toy_setup
from evo.search.work import ProposalWork
from operators.base import Context, Operator, OperatorKind, Parent
from operators.chaining import Chain
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store

CONTEXT = Context("toy", "", "toy", "", frozenset(), "simulated", "none")
PLAIN = Parent(Variant("toy", render({})))
OPERATORS: Mapping[str, Mapping[str, Operator]] = {"toy_knob": {"": ToyKnob()}, "toy_flag": {"": ToyFlag()}}
INFOS = tuple(OperatorInfo(name, OperatorKind.MUTATION, chainable=True) for name in OPERATORS)
TASKS = json.dumps({"toy": 'TASK = Task(name="toy", kind="toy")'})


class Never(ToyFlag):
    """Does not apply."""

    name: ClassVar[str] = "never"

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        return NoProposal("never: does not apply")


def request(operator: str, *, parents: tuple[str, ...] = ("a",), model: str = "") -> Request:
    return Request(1, "toy", 0, "toy/0/0", operator, parents, model)


def new_store(path: Path) -> PopulationStore:
    return open_store(str(path), header=RunHeader("test", 1, "{}", TASKS, "{}", "2026-01-01T00:00:00+00:00"))


def engine_on(store: PopulationStore, *, evaluations: int = 70, earlier: Mapping[str, Arm] | None = None) -> Engine:
    setup = dataclasses.replace(toy_setup(), earlier=earlier or {})
    settings = SearchSettings(islands=1, crossover_share=0, repair_share=0, explore_share=0)
    return Engine(seed=3, settings=settings, budget=Budget(evaluations=evaluations), tasks=(setup,), operators=INFOS,
                  store=store, clock=lambda: 0.0)  # fmt: skip


def searched(engine: Engine) -> list[str]:
    """The operators of all requests, in order."""
    evaluator, asked = SimulatedEvaluator(3, failure_rate=0.2), []
    while engine.finished is None:
        if leases := engine.ask_evaluations(1, "simulated"):
            engine.tell_evaluation(leases[0].token, evaluator.evaluate(leases[0].item, engine.claim))
        for work in engine.ask_proposals(1):
            asked.append(work.request.operator)
            engine.tell_proposal(work.request.number, asyncio.run(propose(OPERATORS, work)))
    return asked


def test_a_sequence_is_of_rules_with_one_parent_and_no_longer_than_is_allowed() -> None:
    assert sequence(request("f"), request("g")) == "f+g"
    assert sequence(request("f+g"), request("h")) == "f+g+h"
    assert LONGEST == 3
    assert sequence(request("f+g+h"), request("i")) == ""
    assert sequence(request("f", parents=("a", "b")), request("g")) == ""
    assert sequence(request("f"), request("g", model="a model")) == ""


def test_a_chain_is_offered_once_it_helped_twice_and_a_search_has_its_operators() -> None:
    bandit = Bandit(floor=0.1, memory=50)
    bandit.learn("f+g", 0.9)
    assert bandit.chains(["f", "g"]) == []
    bandit.learn("f+g", 0.9)
    assert bandit.chains(["f", "g"]) == ["f+g"]
    assert bandit.chains(["f"]) == []
    arms = {f"f{number}+g": Arm(won=float(number), lost=1.0, gains=5) for number in range(OFFERED + 2)}
    assert offered(arms, [name for chain in arms for name in chain.split("+")]) == sorted(arms)[2:], "the best ones"


def test_earlier_runs_are_where_a_bandit_begins_and_a_run_of_its_own_outweighs_them() -> None:
    rng = np.random.default_rng(0)
    bandit = Bandit(floor=0.0, memory=50, earlier={"good": Arm(900.0, 100.0, 1000, 900), "bad": Arm(100.0, 900.0, 1000, 100)})
    assert [bandit.choose(["bad", "good"], rng) for _ in range(40)].count("good") > 30
    for _ in range(40):
        bandit.learn("good", 0.0)
        bandit.learn("bad", 0.8)
    assert [bandit.choose(["bad", "good"], rng) for _ in range(40)].count("bad") > 30
    assert bandit.arms["good"].uses == 40, "what a run records is its own"


def test_a_chain_makes_all_its_moves_and_says_them() -> None:
    work = ProposalWork(request("toy_knob+toy_flag"), (PLAIN,), CONTEXT, (0, 1))
    outcome = asyncio.run(propose(OPERATORS, work))
    assert isinstance(outcome, Proposal)
    genes = genes_of(outcome.source)
    assert sum(bool(value) for name, value in genes.items() if name.startswith("FLAG")) == 1
    assert sum(value != 0 for name, value in genes.items() if name.startswith("knob")) == 1
    assert outcome.strategy.count("; then ") == 1


def test_a_chain_whose_later_move_does_not_apply_says_so_and_an_unknown_part_is_refused() -> None:
    outcome = asyncio.run(Chain([ToyKnob(), Never()]).propose((PLAIN,), CONTEXT, np.random.default_rng(0)))
    assert outcome == NoProposal("never: does not apply")
    work = ProposalWork(request("toy_knob+gone"), (PLAIN,), CONTEXT, (0, 1))
    missing = asyncio.run(propose(OPERATORS, work))
    assert isinstance(missing, NoProposal)
    assert missing.failed
    assert "toy_knob+gone" in missing.reason
    with pytest.raises(ValueError, match="two or more mutations of one parent"):
        Chain([ToyKnob()])


@pytest.mark.slow
def test_a_search_finds_chains_uses_them_and_its_store_tells_of_them(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        engine = engine_on(store)
        asked = searched(engine)
        progress = engine.progress()
        known = {item.operator: (item.uses, item.gains) for item in (*progress.operators, *progress.chains)}
        found = read_figures([store])["toy"]
    chains = {name for name in asked if "+" in name}
    assert chains, "the toy landscape rewards two changes in a row"
    assert {name: (item.arm.uses, item.arm.gains) for name, item in found.items()} == known, (
        "the store tells what the bandit knew"
    )
    assert sum(found[name].evaluated for name in chains) >= 1
    assert operators_json({"toy": found})["toy"][min(chains)]["asked"] >= asked.count(min(chains))


def test_a_search_that_is_resumed_knows_what_it_knew(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        before = engine_on(store, evaluations=25)
        searched(before)
        again, then = engine_on(store, evaluations=26).progress(), before.progress()
    assert then.chains
    assert (again.operators, again.chains) == (then.operators, then.chains)


def test_a_new_search_offers_the_chains_of_earlier_ones_at_once(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        asked = searched(engine_on(store, evaluations=12, earlier={"toy_knob+toy_flag": Arm(9.0, 1.0, 10, 9)}))
    assert "toy_knob+toy_flag" in asked[:6]


def test_figures_of_stores_and_of_folders_are_read_and_broken_ones_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "run.sqlite"
    with new_store(place) as store:
        searched(engine_on(store, evaluations=15))
    alone = read_earlier([str(place)])
    folder = tmp_path / "library"
    folder.mkdir()
    assert read_earlier([str(folder)]) == {}, "a folder of kernels"
    write_earlier(alone, folder)
    assert read_earlier([str(folder)]) == alone
    both = read_earlier([str(place), str(folder)])["toy"]["toy_knob"]
    assert both.uses == 2 * alone["toy"]["toy_knob"].uses > 0
    (folder / FILE).write_text("[1]")
    with pytest.raises(ConfigError, match=r"operators\.json.*cannot be read"):
        read_earlier([str(folder)])


def test_the_kernel_kind_of_a_task_file_is_read_without_running_it() -> None:
    assert kind_of('TASK = Task(name="a", kind="norm")') == "norm"
    assert kind_of("TASK = Task(name='a')") == kind_of("no python here:") == "other"


def test_the_command_shows_kinds_operators_and_what_never_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "run.sqlite")
    with new_store(Path(place)) as store:
        searched(engine_on(store, evaluations=8))
    operators_command([place, place], as_json=True)
    twice = json.loads(capsys.readouterr().out)["toy"]["toy_knob"]
    operators_command([place], as_json=True)
    once = json.loads(capsys.readouterr().out)["toy"]["toy_knob"]
    assert twice["asked"] == 2 * once["asked"] > 0
    assert twice["median"] == once["median"]
    operators_command([place], as_json=False)
    assert "toy_knob" in capsys.readouterr().out
