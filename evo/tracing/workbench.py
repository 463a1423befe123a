"""Prepares many candidates side by side: traces and compiles each thing once, the most urgent first, on a bounded number of cores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from evo.records import Configuration, Failure, Stage, Status, content_id
from evo.tasks.base import Case, Task
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import Kernel, LaunchPlan
from evo.tracing.pool import Pool
from evo.tracing.shelf import Closed, Shelf
from evo.tracing.tracer import Tracer
from evo.tracing.zygote import Zygote

T = TypeVar("T")

REMEMBERED_BYTES = 128 << 20
"""Of plans that a workbench keeps, and again of binaries."""
MAX_BATCH = 8
"""Cases that one process traces: starting the process costs as much as tracing one."""
_TRACING, _COMPILING = 1, 0
"""Among equally urgent work, what is nearer to its end goes first."""


@dataclass(frozen=True)
class Job:
    """One candidate to prepare: a module on a case in a configuration; `binaries` asks for compilation too."""

    source: str
    task: Task
    case: Case
    configuration: Configuration
    binaries: bool = True


@dataclass(frozen=True)
class Prepared:
    """What a job gave."""

    plan: LaunchPlan
    binaries: tuple[Binary, ...]


Outer = Future[Prepared | Failure]
"""What an asker waits for; the futures of plans and binaries, which askers share, stay inside."""


@dataclass(frozen=True)
class Bench:
    """The processes of one thread: it traces or compiles, one thing at a time."""

    tracer: Tracer
    compiler: Compiler

    def start(self) -> None:
        """Starts both servers ahead of need."""
        self.tracer.start()
        self.compiler.start()

    def close(self) -> None:
        """Ends both."""
        self.tracer.close()
        self.compiler.close()


class Workbench:
    """Owns `workers` threads, each with a tracer and a compiler for one target. Thread-safe.

    Jobs of one variant are traced together; kernels are compiled one by one, wherever a core is free. Equal plans and kernels are made
    once, whoever asks.

    Args:
        target: Key of `evo.tracing.targets.TARGETS`.
        workers: Cores to use.
        trace_deadline_s, compile_deadline_s: Per trace and per kernel.
        sass: Whether instructions are counted.
        remembered_bytes: Of plans to keep, and again of binaries.
    """

    def __init__(
        self,
        target: str,
        *,
        workers: int,
        trace_deadline_s: float = 60.0,
        compile_deadline_s: float = 120.0,
        sass: bool = False,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self.workers = workers
        self._zygotes = tracing, compiling = Zygote("trace"), Zygote("compile")
        benches = [
            Bench(
                Tracer(target, deadline_s=trace_deadline_s, zygote=tracing),
                Compiler(target, deadline_s=compile_deadline_s, sass=sass, zygote=compiling),
            )
            for _ in range(workers)
        ]
        self._pool = Pool("workbench", benches)
        self._plans: Shelf[LaunchPlan | Failure] = Shelf(remembered_bytes, _weight, _lasting)
        self._binaries: Shelf[Binary | Failure] = Shelf(remembered_bytes, _weight, _lasting)

    def start(self) -> None:
        """Starts all processes ahead of need, side by side, and returns at once."""
        self._pool.start()

    def submit(self, jobs: Sequence[Job], *, priority: int = 0) -> list[Outer]:
        """Queues jobs and returns at once.

        Args:
            jobs: In any number; those of one source are traced together, so ask for them together.
            priority: Smaller goes first, whoever asks and whatever was asked before; among equals, what was asked first. Give work that
                the device waits for a smaller number than work for later.

        Returns:
            A future per job. Its result never says more than the job asked: a Failure names the case. To cancel it drops the work
            unless it was begun or others want it. It raises SandboxError where processes cannot be started, and CancelledError where
            the workbench was closed before it was there.

        Raises:
            RuntimeError: The workbench is closed.
        """
        outers: list[Outer] = [Future() for _ in jobs]
        named = {source: content_id(source) for source in {job.source for job in jobs}}
        batches: dict[Hashable, list[tuple[Hashable, Job]]] = {}
        inners: list[Future[LaunchPlan | Failure]] = []
        for job, outer in zip(jobs, outers, strict=True):
            key = (named[job.source], job.task.name, job.case.name, job.configuration)
            inner, new = self._plans.ask(key, priority)
            inners.append(inner)
            outer.add_done_callback(partial(_give_up, self._plans, key, inner))
            if new:
                batches.setdefault((named[job.source], job.task.name), []).append((key, job))
        for batch in batches.values():
            for part in _parts(batch):
                self._pool.submit(partial(self._trace, part, priority), (priority, _TRACING))
        for job, outer, inner in zip(jobs, outers, inners, strict=True):
            inner.add_done_callback(partial(_guarded, outer, partial(self._traced, job, priority, outer)))
        return outers

    def prepare(self, jobs: Sequence[Job], *, priority: int = 0) -> list[Prepared | Failure]:
        """As `submit`, and waits: results in order of `jobs`."""
        futures = self.submit(jobs, priority=priority)
        try:
            return [future.result() for future in futures]
        finally:
            _cancel(futures)

    def prepare_each(self, jobs: Sequence[Job], *, priority: int = 0) -> Iterator[tuple[Job, Prepared | Failure]]:
        """As `submit`, and gives each job with its result as soon as it is there. To close the iterator cancels the rest."""
        futures = self.submit(jobs, priority=priority)
        places = {id(future): job for future, job in zip(futures, jobs, strict=True)}
        try:
            for future in as_completed(futures):
                yield places[id(future)], future.result()
        finally:
            _cancel(futures)

    def close(self) -> None:
        """Ends all processes and cancels what is not done. Idempotent."""
        for shelf in (self._plans, self._binaries):
            shelf.close()  # first: that a process was ended is no verdict
        for zygote in self._zygotes:
            zygote.close()
        self._pool.close()

    def _trace(self, batch: Sequence[tuple[Hashable, Job]], priority: int, bench: Bench) -> None:
        wanted = [(key, job) for key, job in batch if self._plans.begin(key)]
        if not wanted:
            return
        try:
            source, task = wanted[0][1].source, wanted[0][1].task
            verdicts = bench.tracer.trace_each(source, task, [(job.case, job.configuration) for _, job in wanted])
            for (key, job), verdict in zip(wanted, verdicts, strict=True):
                if verdict is None:  # a process of its own must tell, and they go side by side
                    self._plans.reopen(key)
                    self._pool.submit(partial(self._trace, [(key, job)], priority), (priority, _TRACING))
                else:
                    self._plans.settle(key, verdict)
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it, whatever it is
            for key, _ in wanted:
                self._plans.fail(key, error)

    def _traced(self, job: Job, priority: int, outer: Outer, inner: Future[LaunchPlan | Failure]) -> None:
        """A plan is there: asks for its kernels."""
        plan = inner.result()
        if isinstance(plan, Failure) or not job.binaries:
            _deliver(outer, _of_case(plan, job.case) if isinstance(plan, Failure) else Prepared(plan, ()))
            return
        asked: list[Future[Binary | Failure]] = []
        for kernel in plan.kernels:
            key = kernel.kernel_hash
            binary, new = self._binaries.ask(key, priority)
            asked.append(binary)
            outer.add_done_callback(partial(_give_up, self._binaries, key, binary))
            if new:
                self._pool.submit(partial(self._compile, key, kernel), (priority, _COMPILING))
        done = itertools.count(1)  # its next() is atomic: the last binary, and no other, brings the answer
        for binary in asked:
            binary.add_done_callback(partial(_guarded, outer, partial(_compiled, job, plan, asked, done, outer)))

    def _compile(self, key: str, kernel: Kernel, bench: Bench) -> None:
        if not self._binaries.begin(key):
            return
        try:
            self._binaries.settle(key, bench.compiler.compile(kernel))
        except Exception as error:  # noqa: BLE001  as above
            self._binaries.fail(key, error)


def _compiled(
    job: Job, plan: LaunchPlan, asked: Sequence[Future[Binary | Failure]], done: Iterator[int], outer: Outer, inner: object
) -> None:
    if next(done) < len(asked):
        return
    binaries: list[Binary] = []
    for future in asked:
        binary = future.result()
        if isinstance(binary, Failure):
            _deliver(outer, _of_case(binary, job.case))
            return
        binaries.append(binary)
    _deliver(outer, Prepared(plan, tuple(binaries)))


def _guarded(outer: Outer, then: Callable[[Future[T]], None], inner: Future[T]) -> None:
    """Calls `then` when `inner` is done; what it raises, and cancellation, is what `outer` gives."""
    if outer.done():
        return
    try:
        then(inner)
    except (CancelledError, Closed):  # a plan may have come just before its kernels could not be asked for any more
        outer.cancel()
        outer.set_running_or_notify_cancel()
    except Exception as error:  # noqa: BLE001  raised where the result is asked for
        if outer.set_running_or_notify_cancel():
            outer.set_exception(error)


def _deliver(outer: Outer, result: Prepared | Failure) -> None:
    if outer.set_running_or_notify_cancel():
        outer.set_result(result)


def _give_up(shelf: Shelf[T], key: Hashable, inner: Future[T], outer: Outer) -> None:
    if outer.cancelled():
        shelf.give_up(key, inner)


def _cancel(futures: Sequence[Outer]) -> None:
    for future in futures:
        future.cancel()


def _of_case(failure: Failure, case: Case) -> Failure:
    """Says which case it is of, where that is not all the same."""
    return (
        failure if failure.stage is Stage.LINT else dataclasses.replace(failure, message=f"case {case.name}: {failure.message}")
    )


def _parts(batch: list[tuple[Hashable, Job]]) -> Iterator[list[tuple[Hashable, Job]]]:
    """Equal parts of at most `MAX_BATCH`."""
    count = -(-len(batch) // MAX_BATCH)
    for index in range(count):
        yield batch[index::count]


def _lasting(result: object) -> bool:
    """A deadline missed once on a busy machine must not fail everything that needs the same later; a kernel that is too large stays so."""
    return not isinstance(result, Failure) or result.status is Status.OUT_OF_RESOURCES


def _weight(result: LaunchPlan | Binary | Failure) -> int:
    """Bytes, roughly."""
    if isinstance(result, Binary):
        return len(result.data) + 4096
    if isinstance(result, Failure):
        return len(result.message) + 1024
    parts = len(result.values) + sum(map(len, result.steps.values()))
    return sum(len(kernel.ttir) + 2048 for kernel in result.kernels) + 1024 * parts
