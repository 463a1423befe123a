"""A pool of tracers and compilers that prepares many candidates side by side; a thread of the caller waits on each process pair."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from evo.records import Configuration, Failure
from evo.tasks.base import Case, Task
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer


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
        self._pairs = [
            (Tracer(target, deadline_s=trace_deadline_s), Compiler(target, deadline_s=compile_deadline_s, sass=sass))
            for _ in range(workers)
        ]
        self._free: SimpleQueue[tuple[Tracer, Compiler]] = SimpleQueue()
        for pair in self._pairs:
            self._free.put(pair)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="workbench")

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
            plan = tracer.trace(job.source, job.task, job.case, job.configuration)
            if isinstance(plan, Failure):
                return plan
            binaries = compiler.compile_plan(plan) if job.binaries else ()
            return binaries if isinstance(binaries, Failure) else Prepared(plan, binaries)
        finally:
            self._free.put(pair)
