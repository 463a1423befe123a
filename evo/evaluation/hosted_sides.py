"""The candidate processes of a host, by name (``candidate``, ``baseline``), each forked by a server of its own, and what they were lent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo.errors import DeviceError
from evo.evaluation.failed import Failed
from evo.evaluation.hosted_lending import Lending
from evo.evaluation.hosted_memory import GUARD_BYTES, PATTERN, SharedBlock
from evo.evaluation.hosted_session import HostedProcess
from evo.records import KnobValue
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task
from evo.tracing.sandbox import ForkServer, Limits

PROBED_BYTES = 64
"""How many bytes of a block `hosted_child` adds up."""


NO_CUDA_BEFORE_FORKS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Torch then answers whether there is a GPU without CUDA, which a process must not have touched whose forks will use it."""


@dataclass(frozen=True)
class HostedWork:
    """A module in a configuration (task as a reference that `load_task` takes).

    Attributes:
        target: What its launches are recorded for; None where nothing will be recorded.
        does_nothing: It stands for no kernel: it is called like a function, whatever the task's form, and nothing is asked of its outputs.
    """

    task: str
    source: str
    configuration: Mapping[str, KnobValue]
    target: str | None = None
    does_nothing: bool = False


@dataclass
class Side:
    """One candidate process, and what it was lent, by case and number of input sets."""

    work: HostedWork
    task: Task
    process: HostedProcess
    lendings: dict[tuple[str, int], Lending] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    present: Lending | None = None

    def fill(self, draws: list[Draw]) -> Lending:
        """Puts fresh inputs into what is lent at present, and has the module made where it has parameters."""
        assert self.present is not None
        self.present.fill(draws)
        self.process.ask("prepare")
        return self.present


class Sides:
    """Owns servers and processes until `close`. Not thread-safe.

    Args:
        device: ``cuda``, or ``cpu`` for Triton's interpreter.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.by_ipc = False
        self._tasks: dict[str, Task] = {}
        self._servers: dict[str, ForkServer] = {}
        self._sides: dict[str, Side] = {}

    def task(self, reference: str) -> Task:
        """The task of that reference."""
        if reference not in self._tasks:
            self._tasks[reference] = load_task(reference, Path.cwd(), check=False)
        return self._tasks[reference]

    def open(self, name: str, work: HostedWork, deadline_s: float) -> Side:
        """The process of that name with that module loaded; another module's is ended first.

        Raises:
            Failed: The module cannot be loaded.
            SandboxError: No process can be started.
        """
        if name in self._sides and self._sides[name].work == work:
            return self._sides[name]
        self.shut(name)
        task = self.task(work.task)
        side = Side(work, task, self._process(name, _request(work, task, self.device), deadline_s))
        self._sides[name] = side
        side.process.load()
        return side

    def lend(self, side: Side, case: Case, count: int) -> Lending:
        """Memory for `count` input sets of a case, known to the process; its contents are still to be filled in."""
        key = (case.name, count)
        if key not in side.lendings:
            side.lendings[key] = Lending(side.task, case, count, self.device, by_ipc=self.by_ipc)
        lending = side.lendings[key]
        if side.present is not lending:
            fresh = [block for block in (lending.inputs, lending.outputs) if block.key not in side.known]
            files = [block.descriptor for block in fresh if block.descriptor is not None]
            side.process.ask("lend", files=files, **lending.request())
            side.known.update(block.key for block in fresh)
            side.present = lending
        return lending

    def shut(self, name: str) -> None:
        """Ends a side's process and frees what it was lent. Idempotent."""
        side = self._sides.pop(name, None)
        if side is not None:
            side.process.end()
            for lending in side.lendings.values():
                lending.close()

    def ipc_works(self, deadline_s: float) -> bool:
        """Whether a candidate's process can open memory of this one by CUDA IPC; tried before there is a candidate, and remembered."""
        self.shut("candidate")
        try:
            block = SharedBlock(GUARD_BYTES, by_ipc=True)
        except DeviceError:
            return False
        try:
            block.tensor.fill_(PATTERN)
            request = {
                "device": self.device, "source": "def entry():\n    return None\n", "entry": "entry", "form": "function",
                "configuration": {}, "init_arguments": [], "backward": False, "mutates": [], "target": None,
            }  # fmt: skip
            process = self._process("candidate", request, deadline_s)
            try:
                process.load()
                answer = process.ask("lend", blocks=[block.handle], sets=[], slot_bytes=0)
                self.by_ipc = answer.get("sum") == PROBED_BYTES * PATTERN
            finally:
                process.end()
        except Failed:
            self.by_ipc = False
        finally:
            block.close()
        return self.by_ipc

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        for name in list(self._sides):
            self.shut(name)
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def _process(self, name: str, request: Mapping[str, Any], deadline_s: float) -> HostedProcess:
        if name not in self._servers:
            # Of the sandbox's two kinds the one with a GPU may open unix sockets, which a hosted process needs on any device.
            self._servers[name] = ForkServer(
                f"hosted-{name}",
                Limits(cpu_s=3600),
                preload=("evo.evaluation.hosted_child",),
                environment={"TRITON_INTERPRET": "1"} if self.device == "cpu" else NO_CUDA_BEFORE_FORKS,
                gpu=True,
            )
        self._servers[name].start()  # from this thread, whose end the server would not survive
        return HostedProcess(self._servers[name], request, deadline_s=deadline_s)


def _request(work: HostedWork, task: Task, device: str) -> dict[str, Any]:
    """See `evo.evaluation.hosted_child.serve`."""
    real = not work.does_nothing
    return {
        "device": device,
        "source": work.source,
        "entry": task.entry,
        "form": task.form if real else "function",
        "configuration": dict(work.configuration),
        "init_arguments": list(task.init_arguments),
        "backward": task.backward and real,
        "mutates": list(task.mutates) if real else [],
        "target": work.target,
    }
