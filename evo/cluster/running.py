"""The driver's side of a run: starts the actors, replaces the dead, shows progress, ends everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evo.cluster.engine_actor import EngineActor
from evo.cluster.evaluating import EvaluatorActor
from evo.cluster.proposing import ProposerActor
from evo.cluster.session import Capacity
from evo.cluster.spec import RunSpec
from evo.errors import BadDeviceError, ConfigError, DeviceError, InputError, SandboxError, TritonEvolveError
from evo.search.progress import Progress

WAKE_S = 0.25
"""The driver looks this often whether it was interrupted or a worker ended."""

OBSERVE_S = 0.5
"""Time between two looks at progress."""

FINISH_GRACE_S = 120.0
"""How long work in hand may still take when the budget is spent; a reply of a model is paid for and worth recording."""

INTERRUPT_GRACE_S = 10.0
"""The same after Ctrl-C; what is not recorded by then is done again on resume."""

MAX_STRIKES = 5
"""A worker that ends so often without one result in between is not started again."""


@dataclass
class _Worker:
    name: str
    role: str
    handle: Any
    strikes: int = 0


@dataclass
class Driver:
    """Runs one search to its end.

    Attributes:
        spec: The run.
        capacity: Of the cluster.
        observe: Called about twice a second with the engine's progress.
        interrupted: Polled; once it returns a reason, the run stops cleanly.
    """

    spec: RunSpec
    capacity: Capacity
    observe: Callable[[Progress], None]
    interrupted: Callable[[], str | None]
    _engine: Any = None
    _working: dict[Any, _Worker] = field(default_factory=dict)
    _grace_ends: float | None = None
    _last_observed: float = 0.0

    def run(self) -> str:
        """Starts everything and waits for the end.

        Returns:
            Why the run ended, as the engine says it.

        Raises:
            InputError: The store, a task or a starting kernel cannot be used.
            DeviceError: Every evaluator failed repeatedly.
            TritonEvolveError: The engine's process ended.
        """
        try:
            self._open()
            try:
                self._start_workers()
                while self._working and not self._overdue():
                    self._wake()
                self.observe(self._call("progress"))
                return self._call("finished") or self.interrupted() or "work in hand took too long"
            finally:
                self._end_workers()
                self._call("close")
        except RayActorError as error:
            # A signal to the whole process group (timeout, systemd, Slurm) ends Ray's processes as well as reaching us.
            reason = self.interrupted()
            if reason is not None:
                return reason
            action = f"what was recorded is safe: triton-evolve resume {self.spec.store}"
            raise TritonEvolveError(f"the engine's process ended ({_reason(error)}); {action}") from error
        finally:
            # It would live, and keep its name from the next run of this process, for as long as anything refers to its handle.
            if self._engine is not None:
                ray.kill(self._engine, no_restart=True)

    def _open(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {
            "name": f"engine-{self.spec.config.name}",
            "num_cpus": 0,
            "max_concurrency": 10_000,
            "scheduling_strategy": here,
        }
        self._engine = ray.remote(EngineActor).options(**options).remote(self.spec)
        self.observe(self._call("open"))

    def _start_workers(self) -> None:
        gpu = self.spec.device == "gpu"
        resources = {"num_gpus": 1, "num_cpus": 0} if gpu else {"num_cpus": 1}
        for number in range(evaluator_count(self.spec, self.capacity)):
            self._start("evaluator", number, EvaluatorActor, resources)
        for number in range(self.spec.config.cluster.proposers):
            self._start("proposer", number, ProposerActor, {"num_cpus": 0})

    def _start(self, role: str, number: int, cls: type, resources: dict[str, int]) -> None:
        name = f"{role}-{number}"
        options = {"max_restarts": -1, "max_task_retries": 0, **resources}
        handle = ray.remote(cls).options(**options).remote(name)
        self._send_to_work(_Worker(name, role, handle))

    def _send_to_work(self, worker: _Worker) -> None:
        self._working[worker.handle.work.remote(self._engine, self.spec)] = worker

    def _wake(self) -> None:
        done, _ = ray.wait(list(self._working), num_returns=1, timeout=WAKE_S)
        for reference in done:
            self._ended(self._working.pop(reference), reference)
        reason = self.interrupted()
        if reason is not None and self._grace_ends is None:
            self._call("stop", reason)
            self._grace_ends = time.monotonic() + INTERRUPT_GRACE_S
        if time.monotonic() - self._last_observed >= OBSERVE_S:
            progress = self._call("progress")
            self._last_observed = time.monotonic()
            if progress.phase == "finished" and self._grace_ends is None:
                self._grace_ends = time.monotonic() + FINISH_GRACE_S
            self.observe(progress)

    def _overdue(self) -> bool:
        return self._grace_ends is not None and time.monotonic() > self._grace_ends

    def _ended(self, worker: _Worker, reference: Any) -> None:
        """Takes a worker's end: the normal one, a failure after which it is sent to work again, or one of its device, which is then
        left alone while the others go on."""
        try:
            ray.get(reference)
            return
        except RayActorError as error:
            failure: Exception = error
        except RayTaskError as error:
            failure = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(failure, InputError):
            raise failure
        self._call("progress")  # raises what made the engine fail, which then explains the worker's failure
        if isinstance(failure, BadDeviceError):
            self._call("quarantine", worker.name, str(failure))
            ray.kill(worker.handle, no_restart=True)
            self._give_up_without(worker, f"the last {worker.role}'s device is in quarantine: {failure}", failure)
            return
        if isinstance(failure, DeviceError | SandboxError):  # of the machine, not of the work
            self._call("release", worker.name)
        delivered = self._call("lost", worker.name, _reason(failure))
        worker.strikes = 1 if delivered else worker.strikes + 1
        if worker.strikes < MAX_STRIKES:
            self._send_to_work(worker)
        else:
            text = f"every {worker.role} failed {MAX_STRIKES} times without a result; last: {_reason(failure)}"
            self._give_up_without(worker, text, failure)

    def _give_up_without(self, worker: _Worker, reason: str, failure: Exception) -> None:
        """Ends the run where nobody else does the work of a worker that is not started again."""
        if not any(other.role == worker.role for other in self._working.values()):
            self._call("stop", f"every {worker.role} failed")
            raise DeviceError(reason) from failure

    def _end_workers(self) -> None:
        for worker in self._working.values():
            ray.kill(worker.handle, no_restart=True)
        self._working.clear()

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._engine, method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, TritonEvolveError):
                raise error.cause from None
            raise


def evaluator_count(spec: RunSpec, capacity: Capacity) -> int:
    """How many evaluators to start.

    Raises:
        ConfigError: More GPU evaluators than GPUs, or more CPU evaluators than cores.
    """
    wanted = spec.config.cluster.evaluators
    unit, available = ("GPU", capacity.gpus) if spec.device == "gpu" else ("CPU", capacity.cpus)
    if wanted == "auto":
        return available if unit == "GPU" else max(1, available - 1)
    if wanted > available:
        raise ConfigError(
            "cluster.evaluators", given=wanted, allowed=f"auto, or at most {available}: the cluster has {available} {unit}s"
        )
    return wanted


def _reason(error: Exception) -> str:
    """One line: the last one says what went wrong, in Ray's errors too."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]
