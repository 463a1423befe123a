"""Kills processes of a run at seeded moments, resumes, and looks for lost, double and contradictory records."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import alive, descendants, kill, spent_of, started, titled, wait_until

VICTIMS = {"evaluator": "ray::EvaluatorActor", "proposer": "ray::ProposerActor", "tracer": "evo.tracing.zygote"}
GONE_WITHIN_S = 30.0


def run_and_kill(folder: Path, config: Path, store: Path, *, victim: str, after: int, delay_s: float) -> None:
    """Starts a run and kills a worker, or the driver, some time after `after` evaluations; then the driver in any case."""
    with started(folder, "run", str(config), "--store", str(store)) as driver:
        wait_until(lambda: spent_of(store).evaluations >= after or driver.poll() is not None, f"evaluation {after}")
        time.sleep(delay_s)
        below = descendants(driver.pid)
        if victim != "driver":
            for pid in titled(below, VICTIMS[victim]):
                kill(pid)
            reached = spent_of(store).evaluations
            wait_until(lambda: spent_of(store).evaluations > reached or driver.poll() is not None, "evaluation after the kill")
        below = without_agents(descendants(driver.pid))
        kill(driver.pid)
        driver.wait()
        wait_until(lambda: not alive(below), "end of all processes of the killed run", GONE_WITHIN_S)


def without_agents(pids: list[int]) -> list[int]:
    """All but the two small agents of Ray's own, which look for their lost cluster for a minute before they end themselves."""
    return sorted(set(pids) - set(titled(pids, "ray::DashboardAgent")) - set(titled(pids, "ray::RuntimeEnvAgent")))


def finish(folder: Path, store: Path) -> None:
    with started(folder, "resume", str(store), "--no-export") as driver:
        assert driver.wait() == 0, (folder / "out.txt").read_text()


def check_resumed(folder: Path, store: Path) -> None:
    with open_store(str(store)) as opened:
        assert check_journal(opened) == []
        before = read_journal(opened)
    finish(folder, store)
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        after = read_journal(opened)
    assert after.requests.items() >= before.requests.items(), "a recorded decision was changed"
    assert after.outcomes.items() >= before.outcomes.items(), "a recorded proposal was changed"
    assert after.evaluations.items() >= before.evaluations.items(), "a recorded verdict was changed"


@pytest.mark.timeout(900)
def test_a_run_that_lost_its_evaluator_and_then_its_driver_goes_on_exactly(
    tmp_path: Path, simulated_file: Callable[..., Path], slow_evaluator: str
) -> None:
    config = simulated_file(evaluations=16, evaluator=slow_evaluator)
    store = tmp_path / "run.sqlite"
    run_and_kill(tmp_path, config, store, victim="evaluator", after=4, delay_s=0.1)
    check_resumed(tmp_path, store)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_records_what_is_in_hand_and_says_how_to_go_on(
    tmp_path: Path, simulated_file: Callable[..., Path], slow_evaluator: str
) -> None:
    config = simulated_file(evaluations=500, evaluator=slow_evaluator)
    store = tmp_path / "run.sqlite"
    with started(tmp_path, "run", str(config), "--store", str(store)) as driver:
        wait_until(lambda: spent_of(store).evaluations >= 3 or driver.poll() is not None, "evaluation")
        below = descendants(driver.pid)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=60) == 130
        wait_until(lambda: not alive(below), "end of all processes of the stopped run", GONE_WITHIN_S)
    said = (tmp_path / "out.txt").read_text()
    assert f"triton-evolve resume {store}" in said
    assert "Traceback" not in said
    with open_store(str(store), write=True) as opened:
        assert check_journal(opened) == []
        assert opened.events()[-1].reason == "interrupted by SIGINT"


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(20))
def test_any_process_may_be_killed_at_any_moment(tmp_path: Path, simulated_file: Callable[..., Path], seed: int) -> None:
    rng = random.Random(seed)
    victim = ("driver", "evaluator", "tracer", "proposer")[seed % 4]
    config = simulated_file(evaluations=20, seed=seed, evaluator="kernels")
    store = tmp_path / "run.sqlite"
    run_and_kill(tmp_path, config, store, victim=victim, after=rng.randrange(0, 16), delay_s=rng.uniform(0, 2))
    check_resumed(tmp_path, store)
