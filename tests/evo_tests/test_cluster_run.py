"""Searches on a real local Ray and a real store: they come to an end, go on, and survive the loss of workers."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.cluster.devices import evaluator_count
from evo.cluster.engine_actor import EngineActor
from evo.cluster.running import Driver
from evo.cluster.session import Capacity
from evo.cluster.spec import RunSpec
from evo.commands.search import make_header
from evo.config import RunConfig
from evo.errors import ConfigError, DeviceError, TaskError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import EventKind
from evo.search.progress import Progress
from evo.search.settings import Budget
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal

pytestmark = pytest.mark.usefixtures("local_ray")
CAPACITY = Capacity(cpus=2, gpus=0, local=True)


def spec_of(config: RunConfig, store: Path, *, resume: bool = False) -> RunSpec:
    from evo.cluster.setup import load_tasks

    return RunSpec(config, str(store), None if resume else make_header(config, load_tasks(config)), "cpu:cuda:90")


def drive(spec: RunSpec, observe: Callable[[Progress], None] = lambda progress: None) -> str:
    return Driver(spec, CAPACITY, observe, lambda: None).run()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def test_a_run_uses_its_budget_and_then_goes_on_with_a_larger_one(
    simulated_config: Callable[..., RunConfig], store: Path
) -> None:
    seen: list[Progress] = []
    config = simulated_config(evaluations=12)
    reason = drive(spec_of(config, store), seen.append)
    assert "12 evaluations" in reason
    assert seen[-1].phase == "finished"
    assert seen[-1].tasks[0].best_fitness >= 1.0
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        first = read_journal(opened)
        assert opened.events()[-1].kind is EventKind.STOPPED
    larger = config.model_copy(update={"budget": dataclasses.replace(config.budget, evaluations=20)})
    assert "20 evaluations" in drive(spec_of(larger, store, resume=True))
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        second = read_journal(opened)
    assert second.evaluations.items() >= first.evaluations.items()
    assert second.requests.items() >= first.requests.items()


def test_workers_that_are_killed_are_replaced_and_nothing_is_lost(
    simulated_config: Callable[..., RunConfig], store: Path, evaluator_module: str, own_seed: int
) -> None:
    config = simulated_config(seed=own_seed, evaluations=15).model_copy(update={"evaluator": f"{evaluator_module}:stuck_once"})
    killed: dict[str, list[int]] = {}
    frozen: list[int] = []

    def kill_each_once(progress: Progress) -> None:
        for role, busy in (("Evaluator", progress.leased and progress.spent.evaluations >= 1), ("Proposer", progress.lent)):
            if busy and role not in killed:
                killed[role] = send(signal.SIGKILL, workers_named(f"ray::{role}Actor"))
        if "Proposer" not in killed:  # it is frozen in turns, so that what it is lent is seen in its hands
            thawed = send(signal.SIGCONT, frozen)
            frozen[:] = [] if thawed else send(signal.SIGSTOP, workers_named("ray::ProposerActor"))

    assert "15 evaluations" in drive(spec_of(config, store), kill_each_once)
    assert killed["Evaluator"]
    assert killed["Proposer"]
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        lost = [event for event in opened.events() if event.kind is EventKind.WORKER_LOST]
    assert len(lost) <= 1, "one lease was in hand at most, and only it counts against its variant"


def test_a_device_that_fails_every_time_ends_the_run_with_its_message(
    simulated_config: Callable[..., RunConfig], store: Path, broken_device: str
) -> None:
    config = simulated_config().model_copy(update={"evaluator": broken_device})
    with pytest.raises(DeviceError, match="the health kernel gave wrong values"):
        drive(spec_of(config, store))
    with open_store(str(store)) as opened:
        assert check_journal(opened) == []
        assert not [event for event in opened.events() if event.kind is EventKind.WORKER_LOST], "no variant is to blame"


def test_a_starting_kernel_that_fails_is_reported_as_the_tasks_fault(
    simulated_config: Callable[..., RunConfig], store: Path, failing_start: str
) -> None:
    config = simulated_config().model_copy(update={"evaluator": failing_start})
    with pytest.raises(TaskError, match=r"softmax: no starting kernel passes.*wrong_values"):
        drive(spec_of(config, store))


@pytest.mark.slow
def test_a_proposer_that_was_given_up_and_is_refused_money_ends_nothing(
    simulated_config: Callable[..., RunConfig], store: Path
) -> None:
    import ray

    engine = ray.remote(EngineActor).remote(spec_of(simulated_config(), store))
    try:
        ray.get(engine.open.remote())
        (start,) = ray.get(engine.ask_evaluations.remote("e", 1, "simulated", 1.0)).items
        verdict = SimulatedEvaluator(0).evaluate(start.item, lambda plan, variant: None)
        assert ray.get(engine.tell_evaluations.remote("e", ((start.token, verdict),))) == (True,)
        (work,) = ray.get(engine.ask_proposals.remote("lost", 1, 1.0)).items
        ray.get(engine.lost.remote("lost", "it was killed"))
        ray.get(engine.cannot_pay.remote("lost", work.request.number, "whoever asked has gone"))
        (again,) = ray.get(engine.ask_proposals.remote("next", 1, 1.0)).items
        assert again.request == work.request
        ray.get(engine.cannot_pay.remote("next", again.request.number, "no dollars are left"))
        assert not ray.get(engine.ask_proposals.remote("next", 1, 0.2)).items
    finally:
        ray.kill(engine)


@pytest.mark.slow
def test_an_engine_that_hangs_is_reported_and_does_not_keep_ctrl_c_waiting(
    simulated_config: Callable[..., RunConfig], store: Path, slow_evaluator: str
) -> None:
    config = simulated_config(evaluations=100_000).model_copy(update={"evaluator": slow_evaluator})
    engines: list[int] = []
    said: list[str] = []

    def stop(progress: Progress) -> None:
        said.extend(progress.failing)
        if not engines and progress.spent.evaluations >= 3:
            engines.extend(workers_named("ray::EngineActor"))
            for pid in engines:
                os.kill(pid, signal.SIGSTOP)

    driver = Driver(spec_of(config, store), CAPACITY, stop, lambda: "Ctrl-C" if said else None, silent_s=2.0)
    try:
        assert driver.run() == "Ctrl-C"
        assert "the engine has not answered for 2 s" in said[0]
    finally:
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
    assert "8 evaluations" in drive(spec_of(config.model_copy(update={"budget": Budget(evaluations=8)}), store, resume=True))
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []


def test_evaluators_fill_the_machine_but_never_more_than_it(simulated_config: Callable[..., RunConfig], store: Path) -> None:
    spec = spec_of(simulated_config(), store)
    assert evaluator_count(spec, CAPACITY) == 1
    assert evaluator_count(spec, Capacity(1, 0, local=True)) == 1
    assert evaluator_count(dataclasses.replace(spec, device="gpu"), Capacity(16, 4, local=False)) == 4
    many = spec.config.model_copy(update={"cluster": spec.config.cluster.model_copy(update={"evaluators": 3})})
    with pytest.raises(ConfigError, match="has 2 CPUs"):
        evaluator_count(dataclasses.replace(spec, config=many), CAPACITY)


def send(number: signal.Signals, pids: list[int]) -> list[int]:
    for pid in pids:
        os.kill(pid, number)
    return pids


def workers_named(name: str) -> list[int]:
    """Processes of this test's Ray with that title."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if title.startswith(name) and grandparent == os.getpid():
            found.append(int(folder.name))
    return found
