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
from evo.errors import BadDeviceError, InputError, StoreError, TritonEvolveError
from evo.evaluation.base import Evaluator
from evo.registry import evaluator_factory
from evo.suites.comparing import Comparing
from evo.suites.jobs import COMPARED, SEARCHED, STORE, Searched, write_whole
from evo.tasks.base import Task
from population_store.base import RunHeader
from population_store.opening import open_store

LOOK_S = 1.0
MAX_TRIES, MAX_FAILURES = 2, 10
"""Of a problem whose worker failed; and of failures in a row, after which it is not the problems that are at fault."""
SIDE_BY_SIDE = 4
"""Problems that one GPU works at: while one is traced and compiled, others have the device."""
LATE_S = 5.0
"""What is still in hand so long after its time is cut off: an evaluation may take minutes, and is done again."""
CLOSE_S = 10.0
TIME_IS_UP = "the time for this session is up"


@dataclass(frozen=True)
class ProblemJob:
    """One problem to work at.

    Attributes:
        folder: Of the problem.
        config: Of its search, one task, target resolved.
        header: Makes its store where there is none.
        ends_at: `time.time` after which nothing more is begun, and soon nothing is left in hand.
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
        self._stopped: str | None = None
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
            return self._compare(job, job.comparing)
        except InputError as error:  # of this problem alone; a store may be a killed run's for another second, or the disk full
            return self._failed(job, " ".join(str(error).split()), done=not isinstance(error, StoreError))
        except Exception as error:
            # Not of the problem for certain: a later session tries it again, and until then the tables say why.
            self._failed(job, f"{type(error).__name__}: {' '.join(str(error).split())}"[:400], done=False)
            raise

    def stop(self, reason: str) -> None:
        """Nothing more is begun."""
        self._stopped = reason

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
            reason = search_here(config, opened, self._ready(), self._threads, lambda: self._why_stop(job))
        done = reason not in (TIME_IS_UP, self._stopped)
        ended = Searched(reason, done, config.budget.evaluations, config.budget.gpu_s, self._device)
        write_whole(folder / SEARCHED, ended.to_json())
        return reason

    def _compare(self, job: ProblemJob, comparing: Comparing) -> str:
        found = comparing.measure(Path(job.folder), self._device, self._alone, given_up=lambda: self._why_stop(job) is not None)
        if found is None:
            return self._why_stop(job) or TIME_IS_UP
        write_whole(Path(job.folder) / COMPARED, found)
        return str(found.get("failure") or "measured")

    def _why_stop(self, job: ProblemJob) -> str | None:
        return self._stopped or (TIME_IS_UP if time.time() > job.ends_at else None)

    def _failed(self, job: ProblemJob, reason: str, *, done: bool) -> str:
        if job.comparing is None:
            budget = job.config.budget
            ended = Searched(reason, done, budget.evaluations, budget.gpu_s, self._device)
            write_whole(Path(job.folder) / SEARCHED, ended.to_json())
        elif done:
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
        interrupted: Polled; once it returns a reason, no job is begun, and what is in hand is cut off soon.
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
        cls = ray.remote(SuiteWorker).options(max_concurrency=slots + 2, max_restarts=-1, **resources)
        evaluation = dataclasses.replace(
            self.config.evaluation, cores=max(1, self.capacity.cpus // max(1, count)) if gpu else None
        )
        config = self.config.model_copy(update={"evaluation": evaluation})
        workers = [cls.remote(self.device, config) for _ in range(count)]
        work = _Work(jobs, told, [worker for _ in range(slots) for worker in workers])
        try:
            work.go(self.interrupted)
        finally:
            if not work.running:  # else there is no waiting: what a killed worker started ends with it
                ray.wait([worker.close.remote() for worker in workers], num_returns=count, timeout=CLOSE_S)
            for worker in workers:
                ray.kill(worker, no_restart=True)


class _Work:
    """Jobs among workers.

    Args:
        jobs, told: See `SuiteCrew.run`.
        idle: Workers, each as often as it takes jobs at a time.
    """

    def __init__(self, jobs: Iterator[tuple[str, ProblemJob]], told: Callable[[str, str], None], idle: list[Any]) -> None:
        self._jobs, self._told, self._idle = jobs, told, idle
        self.running: dict[Any, tuple[str, ProblemJob, Any]] = {}
        self._again: deque[tuple[str, ProblemJob]] = deque()
        self._tried: Counter[str] = Counter()
        self._in_a_row = 0

    def go(self, interrupted: Callable[[], str | None]) -> None:
        """Until all is done or cut off."""
        stopped_at: float | None = None
        while True:
            if stopped_at is None and (reason := interrupted()) is not None:
                stopped_at = time.time()
                for worker in {id(worker): worker for _, _, worker in self.running.values()}.values():
                    worker.stop.remote(reason)
            while stopped_at is None and self._idle and (job := self._next()) is not None:
                worker = self._idle.pop()
                self.running[worker.work.remote(job[1])] = *job, worker
            if not self.running:
                return
            done, _ = ray.wait(list(self.running), num_returns=1, timeout=LOOK_S)
            for reference in done:
                self._end(reference)
            latest = max((job.ends_at for _, job, _ in self.running.values()), default=0.0)
            if self.running and time.time() > min(latest, stopped_at or latest) + LATE_S:
                for name, _, _ in self.running.values():
                    self._told(name, "cut off, since time is up; what was finished is recorded")
                return

    def _next(self) -> tuple[str, ProblemJob] | None:
        while self._again:
            if (job := self._again.popleft())[1].ends_at > time.time():
                return job
        return next(self._jobs, None)

    def _end(self, reference: Any) -> None:
        name, job, worker = self.running.pop(reference)
        try:
            self._told(name, ray.get(reference))
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            self._told(name, f"not finished: {reason}")
            self._in_a_row += 1
            self._tried[name] += 1
            if isinstance(error, BadDeviceError):
                self._idle = [item for item in self._idle if item is not worker]
            else:  # a worker that died is started again
                self._idle.append(worker)
            if self._in_a_row >= MAX_FAILURES or not (self._idle or self.running):
                raise TritonEvolveError(f"the workers of the suite fail; the last: {reason}") from error
            if self._tried[name] < MAX_TRIES:
                self._again.append((name, job))
        else:
            self._in_a_row = 0
            self._idle.append(worker)
