"""A pool of tracers and compilers that prepares many candidates side by side; a thread of the caller waits on each process pair."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

from evo.records import Configuration, Failure, content_id
from evo.tasks.base import Case, Task
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer

T = TypeVar("T")

REMEMBERED = 1024
"""Plans, and binaries, that a workbench keeps."""


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


class Workbench:
    """Owns `workers` pairs of a tracer and a compiler for one target.

    Args:
        target: Key of `evo.tracing.targets.TARGETS`.
        workers: Pairs, and so jobs at a time.
        trace_deadline_s, compile_deadline_s: Per trace and per kernel.
        sass: Whether instructions are counted.
    """

    def __init__(
        self, target: str, *, workers: int, trace_deadline_s: float = 60.0, compile_deadline_s: float = 120.0, sass: bool = False
    ) -> None:
        self.workers = workers
        self._pairs = [
            (Tracer(target, deadline_s=trace_deadline_s), Compiler(target, deadline_s=compile_deadline_s, sass=sass))
            for _ in range(workers)
        ]
        self._free: SimpleQueue[tuple[Tracer, Compiler]] = SimpleQueue()
        for pair in self._pairs:
            self._free.put(pair)
        self._threads = ThreadPoolExecutor(2 * workers, thread_name_prefix="workbench")
        self._plans: OrderedDict[Hashable, LaunchPlan] = OrderedDict()
        self._binaries: OrderedDict[Hashable, Binary] = OrderedDict()
        self._lock = Lock()

    def start(self) -> None:
        """Starts all processes ahead of need, side by side, and returns at once."""
        for tracer, compiler in self._pairs:
            self._threads.submit(tracer.start)
            self._threads.submit(compiler.start)

    def prepare(self, jobs: Sequence[Job]) -> list[Prepared | Failure]:
        """Traces and compiles jobs, in order of completion inside, in order of `jobs` outside."""
        return list(self._threads.map(self._prepare, jobs))

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for tracer, compiler in self._pairs:
            tracer.close()
            compiler.close()

    def _prepare(self, job: Job) -> Prepared | Failure:
        tracer, compiler = pair = self._free.get()
        try:
            key = (content_id(job.source), job.task.name, job.case.name, job.configuration)
            plan = self._remembered(self._plans, key, lambda: tracer.trace(job.source, job.task, job.case, job.configuration))
            if isinstance(plan, Failure) or not job.binaries:
                return plan if isinstance(plan, Failure) else Prepared(plan, ())
            binaries = []
            for kernel in plan.kernels:
                binary = self._remembered(self._binaries, kernel.kernel_hash, lambda kernel=kernel: compiler.compile(kernel))  # type: ignore[misc]
                if isinstance(binary, Failure):
                    return binary
                binaries.append(binary)
            return Prepared(plan, tuple(binaries))
        finally:
            self._free.put(pair)

    def _remembered(self, cache: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T | Failure]) -> T | Failure:
        """Equal work is done once (twice if it is asked for at the same moment), the least recently used results are dropped.

        Failures are not kept: a deadline missed once on a busy machine must not fail everything that needs the same plan later.
        """
        with self._lock:
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
        made = make()
        if isinstance(made, Failure):
            return made
        with self._lock:
            cache[key] = made
            while len(cache) > REMEMBERED:
                cache.popitem(last=False)
        return made
