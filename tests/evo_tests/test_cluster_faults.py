"""Processes and devices of a search on a cluster fail: it goes on, or resumes with one command, and says what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.records import EventKind, Status
from tests.evo_tests.faulty_evaluators import POISON, VICTIM
from tests.evo_tests.faulty_runs import Fault, Search, breaks
from tests.evo_tests.machines import Machines, busy_sign
from tests.evo_tests.running_processes import kill, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A head with an evaluator, and two more machines; whatever is killed on them, Ray itself lives on."""
    with Machines(tmp_path_factory.mktemp("machines")) as made:
        made.start_head(2)
        made.join("a")
        made.join(VICTIM)
        yield made


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    found: Fault = request.function.fault
    return found


@breaks("an evaluator is killed", "another one takes its place; what it had in hand is done again", 30)
def test_an_evaluator_is_killed(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "brisk", 40)
    with search.running():
        search.reach(10)
        (victim,) = machines.machines[VICTIM].titled("ray::EvaluatorActor")
        machines.machines[VICTIM].busy()
        search.broken()
        kill(victim)
        search.recovers(fault)
        wait_until(lambda: bool(machines.machines[VICTIM].titled("ray::EvaluatorActor")), "new evaluator on the same machine", 60)
        search.finish()
    search.tells(rf"cluster : evaluator-\d+ on {VICTIM} .* was lost")


@breaks("a tracer is killed", "its evaluator starts another one; no variant is blamed", 90)
def test_a_tracer_is_killed(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "tracing", 40)
    with search.running():
        search.reach(4)
        machines.machines[VICTIM].busy()
        tracers = machines.machines[VICTIM].titled("evo.tracing.zygote")
        assert tracers
        search.broken()
        for pid in tracers:
            kill(pid)
        search.recovers(fault)
        search.finish()
    assert not search.events(EventKind.WORKER_LOST), "no variant is to blame"


@breaks("a proposer is killed", "another one takes its place, beside the engine; what it was asked is asked again", 30)
def test_a_proposer_is_killed(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "brisk", 40)
    with search.running():
        search.reach(10)
        (victim,) = machines.head.titled("ray::ProposerActor")
        search.broken()
        kill(victim)
        search.recovers(fault)
        search.finish()
    search.tells(r"cluster : proposer-0 on head .* was lost")


@breaks("the engine is killed", "the command ends and says how to go on; everything recorded is there", 120, resumed=True)
def test_the_engine_is_killed(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "brisk", 40)
    with search.running() as driver:
        search.reach(10)
        search.broken()
        (victim,) = machines.head.titled("ray::EngineActor")
        kill(victim)
        assert driver.wait(timeout=60) == 1
    assert f"triton-evolve resume {search.store} --address {machines.address}" in machines.said
    search.leaves_nothing()
    with search.resumed():
        search.recovers(fault)
        search.finish()
    search.tells("resumed : session 2 of this run; the one before was cut off")


@breaks("the driver is killed", "Ray ends its actors on all machines; everything recorded is there", 120, resumed=True)
def test_the_driver_is_killed(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "brisk", 40)
    with search.running() as driver:
        search.reach(10)
        search.broken()
        for pid in machines.head.titled("evo.main"):
            kill(pid)
        driver.wait()
        search.leaves_nothing()
    with search.resumed():
        search.recovers(fault)
        search.finish()
    search.tells("resumed : session 2 of this run; the one before was cut off")


@breaks(
    "a GPU turns bad (health kernel fails)",
    "it is named and put in quarantine, and its actor keeps it from others; no variant is blamed",
    30,
)
def test_a_device_turns_bad(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "bad_device_there", 60)
    with search.running():
        search.reach(1)
        search.broken()
        search.recovers(fault)
        search.finish()
    search.tells(rf"quarantined : evaluator-\d+: {VICTIM} .*GPU 1 \(NVIDIA H200, GPU-5a1d\) fails its health check twice")
    assert not search.events(EventKind.WORKER_LOST), "no variant is to blame"
    assert len(search.events(EventKind.QUARANTINED)) == 1


@breaks(
    "a node is slow (ten minutes for what takes others less than one)",
    "it holds one evaluation, which whoever is idle does again; nobody waits for it",
    120,
)
def test_a_node_is_slow(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "slow_there", 40)
    with search.running():
        wait_until(busy_sign(machines.machines[VICTIM].owner).exists, "work of the slow one", 120)
        search.broken()
        search.recovers(fault)
        search.finish()


@breaks(
    "a node has another device model",
    "its evaluators are not used, and the status says so: figures of two models do not compare",
    30,
)
def test_a_node_has_another_device_model(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "other_model_there", 40)
    config = tmp_path / "run.yaml"
    config.write_text(config.read_text().replace("{device: cpu,", "{device: cpu, device_model: simulated,"))
    with search.running():
        search.reach(10)
        search.broken()
        search.recovers(fault)
        search.finish()
    search.tells(rf"cluster : evaluator-\d+ on {VICTIM} .* is not used: this run optimises for simulated, this device is")
    assert {entry.evaluation.device for entry in search.journal().searched} == {"simulated"}


@breaks("a variant takes all memory, each time", "after three lost evaluators it is recorded as failed; the others go on", 90)
def test_out_of_memory(tmp_path: Path, fault: Fault) -> None:
    with Machines(tmp_path) as machines:
        if not machines.limits_memory:
            pytest.skip("memory of a machine can only be limited as root, with control groups")
        machines.start_head()
        for name in ("a", VICTIM):
            machines.join(name, memory_bytes=1 << 30)
        search = Search(machines, tmp_path, "hungry", 40)
        with search.running():
            search.reach(1)
            wait_until(lambda: POISON in search.journal().outcomes, "the variant that takes all memory", 120)
            search.broken()
            search.recovers(fault)
            search.finish()
        search.tells(r"worker_lost softmax .*: evaluator: ", r"cluster : evaluator-\d+ on .* was lost")
        (poison,) = [entry.evaluation for entry in search.journal().searched if entry.number == POISON]
        assert poison.status is Status.RUNTIME_ERROR
        assert poison.signature == "evaluator killed"


@breaks("Ctrl-C on the driver", "what is in hand is recorded, and the command says how to go on", 90, resumed=True)
def test_ctrl_c(machines: Machines, tmp_path: Path, fault: Fault) -> None:
    search = Search(machines, tmp_path, "brisk", 40)
    with search.running():
        search.reach(10)
        search.broken()
        search.interrupt()
        search.finish(130)
        search.broken()
    with search.resumed():
        search.recovers(fault)
        search.finish()
