"""The driver's side of a run: starts the engine and its crew, keeps the crew in step with the cluster, shows progress, ends everything."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evo.cluster.crew import Crew, reason
from evo.cluster.devices import evaluator_count as evaluator_count
from evo.cluster.engine_actor import EngineActor
from evo.cluster.session import Capacity, address_option
from evo.cluster.spec import RunSpec
from evo.errors import TritonEvolveError
from evo.search.progress import Progress

WAKE_S = 0.25
"""The driver looks this often whether it was interrupted or a worker ended."""

OBSERVE_S = 0.5
"""Time between two looks at progress."""

FOLLOW_S = 1.0
"""Time between two looks at the cluster's nodes."""

FINISH_GRACE_S = 10.0
"""How long workers have to end by themselves once nothing is out any more."""

INTERRUPT_GRACE_S = 10.0
"""How long work in hand may take after Ctrl-C; what is not recorded by then is done again on resume."""

SILENT_S = 30.0
"""An engine that leaves a call unanswered for so long is reported. It may only be busy: to read every variant of a long run takes
minutes, and a disk or a server may hang. So it is ended only where somebody wants the run to stop, and waits for that so long."""

SILENT = "the engine has not answered for {:g} s: it is busy, or its store hangs; Ctrl-C ends the run and loses nothing"


class _SilentError(TritonEvolveError):
    """The run was interrupted, and the engine does not answer."""


@dataclass
class Driver:
    """Runs one search to its end.

    Attributes:
        spec: The run.
        capacity: Of the cluster.
        observe: Called about twice a second with the engine's progress.
        interrupted: Polled; once it returns a reason, the run stops cleanly.
        silent_s: See `SILENT_S`.
    """

    spec: RunSpec
    capacity: Capacity
    observe: Callable[[Progress], None]
    interrupted: Callable[[], str | None]
    silent_s: float = SILENT_S
    _engine: Any = None
    _seen: Progress | None = None
    _silent: bool = False
    _grace_ends: float | None = None
    _last_observed: float = 0.0
    _last_followed: float = 0.0

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
            crew = Crew(self.spec, self.capacity, self._engine, self._call)
            try:
                crew.update()
                while crew.at_work and not self._overdue():
                    self._wake(crew)
                self._show(self._call("progress"))
                return self._call("finished") or self.interrupted() or "work in hand took too long"
            finally:
                crew.end()
                self._call("close")
        except _SilentError:
            return self.interrupted() or "interrupted"
        except RayActorError as error:
            # A signal to the whole process group (timeout, systemd, Slurm) ends Ray's processes as well as reaching us.
            why = self.interrupted()
            if why is not None:
                return why
            action = (
                f"what was recorded is safe: triton-evolve resume {self.spec.store}{address_option(self.spec.config.cluster)}"
            )
            raise TritonEvolveError(f"the engine's process ended ({reason(error)}); {action}") from error
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
        self._show(self._call("open"))

    def _wake(self, crew: Crew) -> None:
        changed = crew.wait(WAKE_S)
        why = self.interrupted()
        if why is not None and self._grace_ends is None:
            self._call("stop", why)
            self._grace_ends = time.monotonic() + INTERRUPT_GRACE_S
        if changed or time.monotonic() - self._last_observed >= OBSERVE_S:
            self._look(crew)  # raises what made the engine fail: then nobody is replaced
        if self._grace_ends is None and (changed or time.monotonic() - self._last_followed >= FOLLOW_S):
            if self._call("finished") is None:
                crew.update()
            self._last_followed = time.monotonic()

    def _look(self, crew: Crew) -> None:
        progress = self._call("progress")
        self._last_observed = time.monotonic()
        if progress.phase == "finished" and self._grace_ends is None:
            self._grace_ends = time.monotonic() + FINISH_GRACE_S
        elif self._grace_ends is None and crew.lacking:
            progress = dataclasses.replace(progress, failing=(*progress.failing, crew.lacking))
        self._show(progress)

    def _show(self, progress: Progress) -> None:
        self._seen = progress
        self.observe(progress)

    def _overdue(self) -> bool:
        return self._grace_ends is not None and time.monotonic() > self._grace_ends

    def _call(self, method: str, *arguments: Any) -> Any:
        """What a method of the engine answers; reports an engine that is silent.

        Raises:
            TritonEvolveError: What the method raised; or the run was interrupted, and there is no answer.
        """
        reference, told = getattr(self._engine, method).remote(*arguments), False
        asked, unwanted = time.monotonic(), float("inf")
        while not self._silent:
            try:
                return ray.get(reference, timeout=WAKE_S)
            except GetTimeoutError:
                now = time.monotonic()
                if self.interrupted() is not None:
                    unwanted = min(unwanted, now)
                self._silent = now - unwanted > self.silent_s
                if not told and self._seen is not None and now - asked > self.silent_s:
                    told = True
                    self.observe(dataclasses.replace(self._seen, failing=(*self._seen.failing, SILENT.format(self.silent_s))))
            except RayTaskError as error:
                if isinstance(error.cause, TritonEvolveError):
                    raise error.cause from None
                raise
        raise _SilentError(f"the engine does not answer: {method}")
