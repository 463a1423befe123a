"""The actors of a suite's run: each owns one device, on which it searches and measures the problems that it is given."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from evo.cluster.processes import die_with_parent
from evo.cluster.searching_here import AT_ONCE, search_here
from evo.cluster.session import Capacity
from evo.cluster.setup import load_tasks
from evo.config import RunConfig
from evo.errors import InputError, TritonEvolveError
from evo.evaluation.base import Evaluator
from evo.registry import evaluator_factory
from evo.suites.comparing import Comparing
from evo.suites.jobs import COMPARED, SEARCHED, STORE, Searched, write_whole
from evo.tasks.base import Task
from population_store.base import RunHeader
from population_store.opening import open_store

LOOK_S = 1.0
MAX_TRIES, MAX_FAILURES = 2, 10
"""Of a problem whose worker died, and of all workers together."""
SIDE_BY_SIDE = 3
"""Problems that one GPU works at: while one is traced and compiled, others have the device."""


@dataclass(frozen=True)
class ProblemJob:
    """One problem to work at.

    Attributes:
        folder: Of the problem.
        config: Of its search, one task, target resolved.
        header: Makes its store where there is none.
        ends_at: `time.time` after which nothing more is begun.
        comparing: What its best variant is measured beside; None: it is searched.
    """

    folder: str
    config: RunConfig
    header: RunHeader
    ends_at: float
    comparing: Comparing | None = None


class SuiteWorker:
    """Runs as a Ray actor with several calls at a time.

    Args:
        device: ``gpu``, or ``cpu:TARGET``.
        config: Of any problem: what evaluators ask of it is the same for all.
    """

    def __init__(self, device: str, config: RunConfig) -> None:
        die_with_parent()
        self._device = device
        self._config = config
        self._tasks: dict[str, Task] = {}
        self._evaluator: Evaluator | None = None
        self._making = threading.Lock()
        self._turns = threading.Condition()
        self._searching, self._measuring = 0, False
        self._threads = ThreadPoolExecutor(AT_ONCE * SIDE_BY_SIDE)

    def work(self, job: ProblemJob) -> str:
        """Searches a problem, or measures what its search found.

        Returns:
            What came of it, in one line.

        Raises:
            DeviceError: The device is unusable.
        """
        try:
            if job.comparing is None:
                with self._among_searches():
                    return self._search(job)
            with self._alone():
                return self._compare(job, job.comparing)
        except InputError as error:  # of this problem alone
            name = SEARCHED if job.comparing is None else COMPARED
            return self._failed(job, name, " ".join(str(error).split()))

    def close(self) -> None:
        """Ends the evaluator's processes."""
        if self._evaluator is not None:
            self._evaluator.close()
        self._threads.shutdown()

    def _search(self, job: ProblemJob) -> str:
        config, folder = job.config, Path(job.folder)
        self._tasks.update(load_tasks(config, check=False))
        store = folder / STORE
        header = None if store.exists() else job.header
        with open_store(str(store), write=True, header=header) as opened:
            reason = search_here(
                config,
                opened,
                self._ready(),
                self._threads,
                lambda: "the time for this session is up" if time.time() > job.ends_at else None,
            )
        done = time.time() <= job.ends_at or "budget" in reason or "exhausted" in reason
        ended = Searched(reason, done, config.budget.evaluations, config.budget.gpu_s, self._device)
        write_whole(folder / SEARCHED, ended.to_json())
        return reason

    def _compare(self, job: ProblemJob, comparing: Comparing) -> str:
        if time.time() > job.ends_at:
            return "the time for this session is up"
        found = comparing.measure(Path(job.folder), self._device)
        write_whole(Path(job.folder) / COMPARED, found)
        return str(found.get("failure") or "measured")

    def _failed(self, job: ProblemJob, name: str, reason: str) -> str:
        if name == SEARCHED:
            budget = job.config.budget
            ended = Searched(reason, True, budget.evaluations, budget.gpu_s, self._device)
            write_whole(Path(job.folder) / SEARCHED, ended.to_json())
        else:
            write_whole(Path(job.folder) / COMPARED, {"failure": reason})
        return reason

    def _ready(self) -> Evaluator:
        with self._making:
            if self._evaluator is None:
                config = self._config
                settings = dataclasses.replace(config.evaluation, target=config.target, seed=config.seed)
                self._evaluator = evaluator_factory(config.evaluator)(self._tasks, settings, self._device)
            return self._evaluator

    @contextmanager
    def _among_searches(self) -> Iterator[None]:
        with self._turns:
            self._turns.wait_for(lambda: not self._measuring)
            self._searching += 1
        try:
            yield
        finally:
            with self._turns:
                self._searching -= 1
                self._turns.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing else has the device while latencies are compared."""
        with self._turns:
            self._turns.wait_for(lambda: not self._measuring and self._searching == 0)
            self._measuring = True
        try:
            yield
        finally:
            with self._turns:
                self._measuring = False
                self._turns.notify_all()


@dataclass
class SuiteCrew:
    """One worker per device, and jobs among them.

    Args:
        device: See `SuiteWorker`.
        config: See `SuiteWorker`.
        capacity: Of the cluster.
        interrupted: Polled; once it returns a reason, no job is begun.
    """

    device: str
    config: RunConfig
    capacity: Capacity
    interrupted: Callable[[], str | None]

    def run(self, jobs: Iterator[tuple[str, ProblemJob]], told: Callable[[str, str], None]) -> None:
        """Works through jobs in their order.

        Args:
            jobs: Name of a problem, and what to do.
            told: Called with a problem's name and what came of it.

        Raises:
            TritonEvolveError: Every worker's device failed.
        """
        gpu = self.device == "gpu"
        resources: Mapping[str, Any] = {"num_gpus": 1, "num_cpus": 0} if gpu else {"num_cpus": 1}
        count = self.capacity.gpus if gpu else 1
        slots = SIDE_BY_SIDE if gpu else 1
        cls = ray.remote(SuiteWorker).options(max_concurrency=slots + 1, max_restarts=-1, **resources)
        evaluation = dataclasses.replace(
            self.config.evaluation, cores=max(1, self.capacity.cpus // max(1, count)) if gpu else None
        )
        config = self.config.model_copy(update={"evaluation": evaluation})
        workers = [cls.remote(self.device, config) for _ in range(count)]
        idle = [worker for _ in range(slots) for worker in workers]
        running: dict[Any, tuple[str, ProblemJob, Any]] = {}
        again: deque[tuple[str, ProblemJob]] = deque()
        tried: Counter[str] = Counter()
        failures: list[str] = []
        try:
            while True:
                while idle and self.interrupted() is None and (job := again.popleft() if again else next(jobs, None)) is not None:
                    worker = idle.pop()
                    running[worker.work.remote(job[1])] = *job, worker
                if not running:
                    break
                done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_S)
                for reference in done:
                    name, item, worker = running.pop(reference)
                    try:
                        told(name, ray.get(reference))
                        idle.append(worker)
                    except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
                        failures.append(str(error).strip().splitlines()[-1])
                        tried[name] += 1
                        told(name, f"not finished: {failures[-1]}")
                        if isinstance(error, ray.exceptions.RayActorError) and len(failures) < MAX_FAILURES:
                            idle.append(worker)  # it is started again
                            if tried[name] < MAX_TRIES:
                                again.append((name, item))
            if failures and not idle:
                raise TritonEvolveError(f"every worker of the suite failed; the last: {failures[-1]}")
        finally:
            closing = [worker.close.remote() for worker in workers]
            ray.wait(closing, num_returns=len(closing), timeout=30.0)
            for worker in workers:
                ray.kill(worker, no_restart=True)
