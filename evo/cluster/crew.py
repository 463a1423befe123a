"""The workers of a run: evaluators on every node that has room for them, proposers beside the engine; the dead are replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evo.cluster.devices import evaluator_count
from evo.cluster.evaluating import EvaluatorActor
from evo.cluster.nodes import Node, live_nodes
from evo.cluster.places import MAX_STRIKES, Place, Places
from evo.cluster.proposing import ProposerActor
from evo.cluster.session import Capacity
from evo.cluster.spec import RunSpec
from evo.cluster.wishes import Wishes
from evo.errors import BadDeviceError, DeviceError, InputError, OtherDeviceError, SandboxError

Call = Callable[..., Any]
"""(method of the engine's actor, arguments) → its answer."""


@dataclass
class Worker:
    """One actor at work.

    Attributes:
        name: Nobody has had it before.
        role: ``evaluator`` or ``proposer``.
        handle: Of the actor.
        node: Where it is.
        place: Of an evaluator.
        dismissed: It gets no more work, because its node leaves.
    """

    name: str
    role: str
    handle: Any
    node: Node
    place: Place | None = None
    dismissed: bool = False


class Crew:
    """See the module's docstring. Everything that happens to it is recorded by the engine.

    Args:
        spec: The run.
        capacity: Of the cluster at the start.
        engine: Handle of the `EngineActor`.
        call: Calls it.

    Raises:
        ConfigError: More evaluators than this machine has GPUs or cores.
    """

    def __init__(self, spec: RunSpec, capacity: Capacity, engine: Any, call: Call) -> None:
        self._spec = spec
        self._engine = engine
        self._call = call
        self._gpu = spec.device == "gpu"
        self._wanted = None if spec.config.cluster.evaluators == "auto" else spec.config.cluster.evaluators
        if capacity.local:
            evaluator_count(spec, capacity)
        self._wishes = Wishes({"GPU": 1} if self._gpu else {"CPU": 1})
        self._places = Places(gpu=self._gpu, wanted=self._wanted)
        self._working: dict[Any, Worker] = {}
        self._with_bad_device: list[Worker] = []
        self._nodes: tuple[Node, ...] = ()
        self._numbers: Counter[str] = Counter()
        self._proposer_strikes = 0
        self._last_failure = ""

    @property
    def at_work(self) -> bool:
        """Somebody is."""
        return bool(self._working)

    @property
    def lacking(self) -> str:
        """What the run waits for, in words for a person; empty while there is an evaluator."""
        if any(self._evaluators()):
            return ""
        return f"no evaluator is at work: waiting for a node with a free {'GPU' if self._gpu else 'core'}"

    def update(self) -> None:
        """Follows the cluster: starts evaluators where there is room, takes them from nodes that leave, replaces proposers.

        Raises:
            DeviceError: No evaluator is left, and none can be started.
        """
        before, self._nodes = self._nodes, live_nodes()
        self._tell_of_nodes({node.node_id: node for node in before})
        leaving = {node.node_id for node in self._nodes if node.leaving}
        for worker in self._evaluators():
            if worker.node.node_id in leaving and not worker.dismissed:
                worker.dismissed = True
                self._call("dismiss", worker.name)
        nodes = {node.node_id: node for node in self._nodes}
        taken = {worker.place for worker in self._evaluators() if worker.place is not None and not worker.dismissed}
        free = self._places.free(self._nodes, taken)
        for place in free:
            resources = {"num_gpus": 1, "num_cpus": 0} if self._gpu else {"num_cpus": 1}
            node = nodes[place.node_id]
            self._start("evaluator", EvaluatorActor, node, resources, place, self._places.cores(node))
        if self._wanted is not None:
            self._wishes.ask(max(0, self._wanted - len(taken) - len(free)))
        proposers = sum(worker.role == "proposer" for worker in self._working.values())
        for _ in range(self._spec.config.cluster.proposers - proposers):
            # Beside the engine: the keys of models are there, and no other node's end takes requests with it that cost money.
            self._start("proposer", ProposerActor, self._nodes[0], {"num_cpus": 0})
        if not any(self._evaluators()) and self._places.hopeless(self._nodes):
            self._call("stop", "every evaluator failed")
            raise DeviceError(self._last_failure)

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of a worker, and takes note of it; False if none came.

        Raises:
            InputError: The store, a task or a model cannot be used.
            DeviceError: Every proposer failed repeatedly.
        """
        done, _ = ray.wait(list(self._working), num_returns=1, timeout=timeout_s)
        for reference in done:
            self._ended(self._working.pop(reference), reference)
        return bool(done)

    def end(self) -> None:
        """Ends all workers."""
        for worker in (*self._working.values(), *self._with_bad_device):
            ray.kill(worker.handle, no_restart=True)
        self._working.clear()
        self._with_bad_device.clear()
        self._wishes.ask(0)

    def _evaluators(self) -> list[Worker]:
        return [worker for worker in self._working.values() if worker.role == "evaluator"]

    def _start(
        self, role: str, cls: type, node: Node, resources: dict[str, int], place: Place | None = None, *further: object
    ) -> None:
        name = f"{role}-{self._numbers[role]}"
        self._numbers[role] += 1
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        options = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": there, **resources}
        handle = ray.remote(cls).options(**options).remote(name, *further)
        self._working[handle.work.remote(self._engine, self._spec)] = Worker(name, role, handle, node, place)

    def _tell_of_nodes(self, before: dict[str, Node]) -> None:
        if not before:
            if len(self._nodes) > 1:
                self._call("note", f"{len(self._nodes)} nodes at the start: {', '.join(node.name for node in self._nodes)}")
            return
        now = {node.node_id: node for node in self._nodes}
        for node in (node for node_id, node in now.items() if node_id not in before):
            self._call("note", f"node {node.name} joined")
        for node in (node for node_id, node in before.items() if node_id not in now):
            self._call("note", f"node {node.name} is gone; what was under way there is done elsewhere")
        for node in (node for node_id, node in now.items() if node.leaving and node_id in before and not before[node_id].leaving):
            self._call("note", f"node {node.name} is being drained: its evaluators end after what they have in hand")

    def _ended(self, worker: Worker, reference: Any) -> None:
        """Takes a worker's end: the normal one, or a failure, which is recorded with what follows from it."""
        try:
            ray.get(reference)
        except RayTaskError as error:
            self._failed(worker, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:
            self._failed(worker, error)
        else:
            ray.kill(worker.handle, no_restart=True)

    def _failed(self, worker: Worker, failure: Exception) -> None:
        if isinstance(failure, InputError) and worker.node.here:  # on another node a file may be missing that is here
            raise failure
        self._call("progress")  # raises what made the engine fail, which then explains the worker's failure
        who = f"{worker.name} on {worker.node.name}"
        if isinstance(failure, BadDeviceError) and worker.place is not None:
            self._call("quarantine", worker.name, f"{worker.node.name}: {failure}")
            self._places.close(worker.place)
            self._with_bad_device.append(worker)  # it does nothing, but nobody else is given its device
            self._last_failure = f"the last evaluator's device is in quarantine: {failure}"
            return
        ray.kill(worker.handle, no_restart=True)
        if isinstance(failure, DeviceError | SandboxError):  # of the machine, not of the work
            self._call("release", worker.name)
        delivered = self._call("lost", worker.name, reason(failure))
        if worker.place is None:
            self._proposer_lost(who, failure, delivered)
        elif isinstance(failure, OtherDeviceError):
            self._places.close(worker.place)
            self._last_failure = f"no device of the run's model is in the cluster; last: {failure}"
            self._call("note", f"{who} is not used: {failure}")
        else:
            strikes = self._places.failed(worker.place, delivered)
            self._last_failure = f"every evaluator failed {MAX_STRIKES} times without a result; last: {reason(failure)}"
            rest = "" if strikes < MAX_STRIKES else f"; {strikes} times in a row without a result, so its place rests"
            self._call("note", f"{who} was lost ({reason(failure)}){rest}")

    def _proposer_lost(self, who: str, failure: Exception, delivered: int) -> None:
        self._proposer_strikes = 1 if delivered else self._proposer_strikes + 1
        self._call("note", f"{who} was lost ({reason(failure)})")
        if self._proposer_strikes >= MAX_STRIKES:
            self._call("stop", "every proposer failed")
            text = f"every proposer failed {MAX_STRIKES} times without a result; last: {reason(failure)}"
            raise DeviceError(text) from failure


def reason(error: Exception) -> str:
    """One line: the last one says what went wrong, in Ray's errors too, whose guesses at a cause are left out."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1].partition(" Some common causes include")[0] if lines else ""
    return f"{type(error).__name__}: {said}"[:500]
