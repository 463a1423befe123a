"""A suite's workers: no problem takes a place from the others, time that is up is kept, and what a device spends on a problem is little."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray

from evo.cluster import searching_here, suite_workers
from evo.cluster.suite_workers import ProblemJob, SuiteWorker, _Work
from evo.commands.search import make_header
from evo.config import RunConfig
from evo.errors import BadDeviceError, DeviceError, StoreInUseError, TaskError, TritonEvolveError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.search.settings import Budget
from evo.suites.comparing import Comparing
from evo.suites.jobs import SEARCHED, Searched
from evo.tasks.loading import load_task
from population_store.base import EvaluationEntry, Purpose
from population_store.opening import open_store

CONFIG = RunConfig(name="it", tasks=("softmax",), target="cuda:90", evaluator="simulated", budget=Budget(evaluations=12))
HEADER = make_header(CONFIG, {"softmax": load_task("softmax")})


@dataclass
class Method:
    """A method of an actor."""

    call: Callable[..., object]

    def remote(self, *arguments: object) -> object:
        return self.call(*arguments)


@dataclass
class Actor:
    """Notes what it is asked; a job's folder says what comes of it."""

    asked: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    @property
    def work(self) -> Method:
        return Method(self._work)

    @property
    def stop(self) -> Method:
        return Method(self.stopped.append)

    def _work(self, job: ProblemJob) -> object:
        self.asked.append(job.folder)
        return (job.folder, len(self.asked))


FAULTS = {"key": KeyError("it"), "device": DeviceError("busy"), "bad": BadDeviceError("broken")}


class Cluster:
    """Ray's part of it: whatever is not called ``endless`` is done at once."""

    exceptions = ray.exceptions

    def wait(self, references: Sequence[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        done = [reference for reference in references if reference[0] != "endless"]
        if not done:
            time.sleep(timeout)
        return done[:num_returns], done[num_returns:]

    def get(self, reference: Any) -> str:
        if reference[0] == "garbled":
            raise ray.exceptions.RaySystemError("an exception cannot be read back")
        if reference[0] in FAULTS:
            raise ray.exceptions.RayTaskError("work", "a traceback", FAULTS[reference[0]]).as_instanceof_cause()
        return "done"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_workers, "ray", Cluster())
    monkeypatch.setattr(suite_workers, "LOOK_S", 0.01)
    monkeypatch.setattr(suite_workers, "LATE_S", 0.05)
    monkeypatch.setattr(suite_workers, "die_with_parent", lambda: None)


def jobs(*kinds: str, ends_at: float = 1e12) -> Iterator[tuple[str, ProblemJob]]:
    for number, kind in enumerate(kinds):
        yield f"{number} {kind}", ProblemJob(kind, CONFIG, HEADER, ends_at)


def worked(
    actor: Actor, *kinds: str, ends_at: float = 1e12, interrupted: Callable[[], str | None] = lambda: None
) -> dict[str, str]:
    told: dict[str, str] = {}
    work = _Work(jobs(*kinds, ends_at=ends_at), lambda name, what: told.update({name: what}), [actor, actor])
    work.go(interrupted)
    return told


def test_problems_that_fail_take_no_place_from_the_others() -> None:
    actor = Actor()
    told = worked(actor, "key", "fine", "device", "fine", "key", "fine", "fine", "garbled", "fine")
    assert sum(what == "done" for what in told.values()) == 5
    assert "not finished" in told["0 key"]
    assert actor.asked.count("key") == 4, "each was tried twice"


def test_failures_in_a_row_are_the_devices() -> None:
    with pytest.raises(TritonEvolveError, match="the workers of the suite fail"):
        worked(Actor(), *["device"] * 20)
    actor = Actor()
    with pytest.raises(TritonEvolveError, match="the workers of the suite fail"):
        worked(actor, "bad", "bad", "fine")
    assert "fine" not in actor.asked, "a bad device gets no more work"


def test_what_is_in_hand_when_time_is_up_is_cut_off() -> None:
    begun = time.monotonic()
    told = worked(Actor(), "fine", "endless", ends_at=time.time() + 0.1)
    assert "cut off" in told["1 endless"]
    assert time.monotonic() - begun < 5


def test_an_interruption_is_told_to_the_workers_and_waited_for_but_shortly() -> None:
    actor = Actor()
    told = worked(actor, "endless", "endless", "fine", interrupted=lambda: "interrupted by SIGINT" if actor.asked else None)
    assert actor.stopped == ["interrupted by SIGINT"]
    assert set(actor.asked) == {"endless"}, "nothing is begun"
    assert all("cut off" in what for what in told.values())


def job(folder: Path, comparing: Comparing | None = None, ends_at: float = 1e12) -> ProblemJob:
    folder.mkdir(exist_ok=True)
    return ProblemJob(str(folder), CONFIG, HEADER, ends_at, comparing)


def ended(folder: Path) -> Searched:
    return Searched.from_json(json.loads((folder / SEARCHED).read_text()))


def test_a_search_is_done_when_it_ended_by_itself_and_when_its_problem_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SuiteWorker("gpu", CONFIG)
    monkeypatch.setattr(worker, "_ready", lambda: None)
    outcomes: dict[str, Any] = {"budget": "the budget of 12 evaluations is used", "time": suite_workers.TIME_IS_UP}
    failures = {"task": TaskError("it", given="nothing"), "ours": KeyError("it"), "owned": StoreInUseError("it")}

    def search(*arguments: Any) -> str:
        if kind in failures:
            raise failures[kind]
        return str(outcomes[kind])

    monkeypatch.setattr(suite_workers, "search_here", search)
    monkeypatch.setattr(suite_workers, "open_store", lambda *arguments, **options: nullcontext())
    for kind, done in (("budget", True), ("time", False), ("task", True), ("owned", False)):
        worker.work(job(tmp_path / kind))
        assert ended(tmp_path / kind).done == done
    kind = "ours"
    with pytest.raises(KeyError):
        worker.work(job(tmp_path / kind))
    assert not ended(tmp_path / kind).done, "a later session tries it again"
    assert "KeyError" in ended(tmp_path / kind).reason
    kind, outcomes["stopped"] = "stopped", "interrupted by SIGINT"
    worker.stop("interrupted by SIGINT")
    worker.work(job(tmp_path / kind))
    assert not ended(tmp_path / kind).done
    worker.close()


def test_a_comparison_that_is_given_up_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(self: Comparing, folder: Path, device: str, alone: Any, given_up: Callable[[], bool]) -> dict[str, Any] | None:
        with alone():
            return None if given_up() else {"variant": "a", "cases": []}

    monkeypatch.setattr(Comparing, "measure", measure)
    worker = SuiteWorker("gpu", CONFIG)
    late = job(tmp_path / "late", Comparing(("kernel",)), ends_at=0.0)
    assert worker.work(late) == suite_workers.TIME_IS_UP
    assert not (tmp_path / "late" / "compared.json").exists()
    assert worker.work(job(tmp_path / "in time", Comparing(("kernel",)))) == "measured"
    assert (tmp_path / "in time" / "compared.json").exists()
    worker.close()


@pytest.mark.slow
def test_elites_are_verified_one_after_the_other_until_one_passes(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"budget": Budget(evaluations=6), "operators": ("widen_space", "launch_options")})
    assert config.search.verify_elites > 1
    with ThreadPoolExecutor(4) as threads, open_store(str(tmp_path / "a.sqlite"), write=True, header=HEADER) as store:
        reason = searching_here.search_here(config, store, SimulatedEvaluator(0), threads, lambda: None)
        entries = [entry for _, entry in store.journal() if isinstance(entry, EvaluationEntry)]
    assert reason == searching_here.VERIFIED
    assert sum(entry.purpose is Purpose.VERIFY for entry in entries) == 1


@contextmanager
def noted(order: list[str], name: str) -> Iterator[None]:
    order.append(name)
    yield


@pytest.mark.slow
def test_processes_that_compare_are_made_ahead_and_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports of one go on while another has the device."""
    from evo.suites import comparing

    program = (
        "import os, sys, pathlib; pathlib.Path(sys.argv[5]).touch(); os.read(0, 1); pathlib.Path(sys.argv[4]).write_text('{}')"
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {json.dumps(str(Path("/proc/self/exe").resolve()))} -c "{program}" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    order: list[str] = []
    request = {"device": "cuda"}
    assert comparing._asked(request, 30.0, lambda: noted(order, "alone"), lambda: False) == {}
    assert order == ["alone"]
    assert comparing._asked(request, 30.0, lambda: noted(order, "again"), lambda: bool(order)) is None, (
        "time was up before its turn"
    )
    breaking = program.replace(
        "pathlib.Path(sys.argv[4])", "print('Trace'); raise SystemExit('no  GPU'); pathlib.Path(sys.argv[4])"
    )
    (tmp_path / "python").write_text(
        f'#!/bin/sh\nexec {json.dumps(str(Path("/proc/self/exe").resolve()))} -c "{breaking}" "$@"\n'
    )
    broken = comparing._asked(request, 30.0, lambda: noted(order, "broken"), lambda: False)
    assert broken == {"failure": "its process ended with status 1: no GPU"}
    stopped = threading.Event()
    hanging = program.replace("os.read(0, 1)", "os.read(0, 1); __import__('time').sleep(600)")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {json.dumps(str(Path("/proc/self/exe").resolve()))} -c "{hanging}" "$@"\n')
    late = comparing._asked(request, 0.5, lambda: noted(order, "late"), stopped.is_set)
    assert late == {"failure": "it took more than 0.5 s"}
