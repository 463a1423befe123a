"""Workers hang, die and answer late in real processes; whoever called is told in time, and the next call is served."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from evo.errors import WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.evaluation.worker import READY, START_DEADLINE_S, Nursery, Worker
from evo.tracing.sandbox import search_path
from tests.evo_tests.running_processes import alive, wait_until

SERVED = "tests.evo_tests.served_objects"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def made(nursery: Nursery) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(name: str = "Served", *, spare: bool = False) -> Worker:
        workers.append(Worker(nursery, "replay", f"{SERVED}:{name}", spare=spare))
        return workers[-1]

    yield make
    for worker in workers:
        worker.stop()


def test_a_hanging_worker_is_ended_at_its_deadline_and_replaced(made: Callable[..., Worker]) -> None:
    worker = made()
    first = worker.call("pid", deadline_s=DEADLINE_S)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="deadline"):
        worker.call("refuse_to_end", deadline_s=0.2)
    assert time.monotonic() - started < 60, "it would hang for ten minutes"
    wait_until(lambda: not alive([first]), "end of the hanging process", 60)
    assert worker.call("pid", deadline_s=DEADLINE_S) != first
    assert worker.generation == 2


@pytest.mark.parametrize(("method", "reason"), [("die", "died"), ("crash", "died"), ("fail", "illegal memory access")])
def test_a_worker_that_dies_says_so_and_is_replaced(made: Callable[..., Worker], method: str, reason: str) -> None:
    worker = made()
    with pytest.raises(WorkerDied, match=reason):
        worker.call(method, deadline_s=DEADLINE_S)
    assert worker.call("pid", deadline_s=DEADLINE_S) != os.getpid()


def test_a_spare_takes_over_at_once(made: Callable[..., Worker]) -> None:
    worker = made("SlowToStart", spare=True)
    worker.call("pid", deadline_s=DEADLINE_S)
    spare = worker._spare
    assert spare is not None
    worker._ask(spare, (READY, ()), DEADLINE_S)
    ready = time.monotonic()
    with pytest.raises(WorkerDied):
        worker.call("die", deadline_s=DEADLINE_S)
    assert worker.call("pid", deadline_s=DEADLINE_S) == spare.pid
    since_ready_s = time.monotonic() - ready
    assert worker.call("age_s", deadline_s=DEADLINE_S) > since_ready_s, "it waited with its context ready"
    with pytest.raises(WorkerDied):
        worker.call("die", deadline_s=DEADLINE_S)
    assert worker.call("pid", deadline_s=DEADLINE_S), "the spare was replaced too"


def test_a_spare_that_died_while_it_waited_blames_nobody(made: Callable[..., Worker]) -> None:
    worker = made(spare=True)
    first = worker.call("pid", deadline_s=DEADLINE_S)
    with pytest.raises(WorkerDied):
        worker.call("die", deadline_s=DEADLINE_S)
    second = worker.call("pid", deadline_s=DEADLINE_S)
    assert worker._spare is not None
    os.kill(worker._spare.pid, 9)
    wait_until(lambda: worker._spare is None or worker._spare.ended, "end of the spare", 60)
    with pytest.raises(WorkerDied):
        worker.call("die", deadline_s=DEADLINE_S)
    assert worker.call("pid", deadline_s=DEADLINE_S) not in (first, second)


def test_who_tells_where_it_is_gets_time_for_each_step(made: Callable[..., Worker]) -> None:
    worker = made()
    assert worker.call("steps", 10, 0.25, deadline_s=2.0) == 10, "2.5 s in all, 0.25 s each"
    with pytest.raises(WorkerDied, match="deadline"):
        worker.call("hang_at", "4096x4096", deadline_s=1.0)
    assert worker.told == "4096x4096"


def test_what_cannot_be_made_says_why(made: Callable[..., Worker]) -> None:
    with pytest.raises(WorkerNotReady, match="cannot start: RuntimeError: no CUDA-capable device"):
        made("Unmakeable").call("pid", deadline_s=DEADLINE_S)


def test_a_deadline_begins_when_a_process_is_ready(made: Callable[..., Worker]) -> None:
    assert made("SlowToStart").call("pid", deadline_s=0.9)


@pytest.mark.parametrize("how", ["torch", "driver"])
def test_too_little_memory_is_told_as_such(made: Callable[..., Worker], how: str) -> None:
    worker = made()
    with pytest.raises(WorkerOutOfMemory, match="out of memory"):
        worker.call("need_memory", how, deadline_s=DEADLINE_S)
    assert worker.call("pid", deadline_s=DEADLINE_S), "the next process has the memory that this one held"


def test_stopping_leaves_no_process(made: Callable[..., Worker]) -> None:
    worker = made(spare=True)
    pids = [worker.call("pid", deadline_s=DEADLINE_S)]
    assert worker._spare is not None
    pids.append(worker._spare.pid)
    worker.stop()
    worker.stop()
    wait_until(lambda: not alive(pids), "end of both processes", 60)


def test_a_nursery_outlives_the_thread_that_made_it() -> None:
    made: list[Nursery] = []
    workers: list[Worker] = []
    leave, used = threading.Event(), threading.Event()

    def ask() -> object:
        workers.append(Worker(made[0], "replay", f"{SERVED}:Served"))
        return workers[-1].call("pid", deadline_s=DEADLINE_S)

    def use() -> None:
        made.append(Nursery())
        ask()
        used.set()
        leave.wait(2 * START_DEADLINE_S)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        assert used.wait(START_DEADLINE_S)
        leave.set()
        thread.join()
        assert ask()
    finally:
        for worker in workers:
            worker.stop()
        made[0].close()


def test_a_nursery_ends_with_its_owner() -> None:
    program = (
        "import sys, os; from evo.evaluation.worker import Nursery, Worker; nursery = Nursery(); "
        f"worker = Worker(nursery, 'replay', '{SERVED}:Served'); "
        f"print(nursery._process.pid, worker.call('pid', deadline_s={DEADLINE_S}), flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": search_path()}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) == 2, ended.stderr
    wait_until(lambda: not alive(pids), "end of the nursery and its worker", 60)
