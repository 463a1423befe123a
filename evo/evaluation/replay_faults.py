"""What a replayed run that went wrong is called, and whether the candidate, the task, or the device is to blame."""

from __future__ import annotations

import re
from collections.abc import Callable

from evo.errors import BadDeviceError, DeviceError, TaskError, WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.evaluation.checking import Differs
from evo.evaluation.crew import Crew, JudgeFailed
from evo.evaluation.replay_messages import Ran
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task

_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_CAPACITY = re.compile(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")


class Faults:
    """Blames of one tier.

    Args:
        identity: Names the device.
        deadline_s: Of runs.
    """

    def __init__(self, identity: str, deadline_s: float) -> None:
        self.identity = identity
        self._deadline_s = deadline_s

    def died(self, crew: Crew, case: Case, error: WorkerDied, stage: Stage = Stage.GATE) -> Failure:
        """The verdict on a candidate that took the replay process with it; the device is proved well first, twice if need be.

        Raises:
            BadDeviceError: It is not well.
            DeviceError: It is well, and yet no process could begin with the work, or prove it.
        """
        if self._ailment(crew):
            self.look_again(crew, f"after {error}")
        if isinstance(error, WorkerNotReady):
            raise DeviceError(f"{self.identity}: {error}")
        if error.reason == "deadline":
            text = f"case {case.name}: the kernels did not end within {self._deadline_s:g} s"
            return Failure(Status.TIMEOUT, stage, text, "timeout:replay")
        return Failure(Status.RUNTIME_ERROR, stage, f"case {case.name}: {error.reason}", f"runtime_error:{error.reason[:80]}")

    def look_again(self, crew: Crew, when: str) -> None:
        """The second look at a device that failed its health check once.

        Raises:
            BadDeviceError: It fails again.
        """
        found = self._ailment(crew)
        if found:
            raise BadDeviceError(f"{self.identity} fails its health check twice {when}: {found}")

    def too_large(self, task: Task, case: Case, error: WorkerOutOfMemory, stage: Stage, without: Callable[[], object]) -> Failure:
        """The verdict on a candidate for which all of the device's memory is too little.

        Args:
            task, case: What was run.
            error: How that ended.
            stage: Of the verdict.
            without: Needs the memory that every candidate needs, and raises WorkerOutOfMemory where that is too much already.

        Raises:
            TaskError: The case does not fit into the device, whatever the candidate.
            DeviceError: That could not be found out.
        """
        try:
            without()
        except WorkerOutOfMemory as inner:
            where = f"task {task.name}: case {case.name}, which moves {_words(case.bytes)}"
            action = "take a smaller case, a device with more memory, or end what else uses this one"
            raise TaskError(f"{where}, does not fit into {self.identity}: {shortage(inner)}", action=action) from error
        except (WorkerDied, JudgeFailed) as inner:
            raise DeviceError(f"{self.identity}: whether case {case.name} fits into its memory is not known: {inner}") from inner
        text = (
            f"case {case.name}: too large for the memory of the device, though inputs and expected values fit: {shortage(error)}"
        )
        return Failure(Status.OUT_OF_RESOURCES, stage, text, "out_of_resources:device memory")

    def _ailment(self, crew: Crew) -> str:
        try:
            return crew.ailment()
        except WorkerOutOfMemory as error:  # says nothing of its health
            raise DeviceError(f"{self.identity} has no memory left for a health check: {shortage(error)}") from error


def shortage(error: WorkerOutOfMemory) -> str:
    """How much was asked for and free, where the device said so."""
    asked, capacity = _ASKED.search(error.reason), _CAPACITY.search(error.reason)
    if asked is None or capacity is None:
        return error.reason
    return f"{asked[1]} asked for, {capacity[2]} of {capacity[1]} free"


def memory_problem(case: Case, ran: Ran) -> Failure | None:
    """The verdict on what a run did to memory; None where it did as it should."""
    where = f"case {case.name}: "
    if ran.violations:
        text = f"{where}writes outside its buffers ({ran.violations} guard bands changed)"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:bands")
    if ran.changed_inputs:
        key = ran.changed_inputs[0]
        what = f"argument {key}" if isinstance(key, int) else f"parameter {key}"
        text = f"{where}changes {what}, or memory around it, which the task does not update in place"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:inputs")
    if ran.differs is Differs.RACE:
        text = f"{where}equal calls give different bits: a race, or atomics whose order matters"
        return Failure(Status.NONDETERMINISTIC, Stage.GATE, text, "nondeterministic:bits")
    if ran.differs is Differs.BEYOND:
        text = f"{where}the outputs depend on what lies beyond the buffers: it reads out of bounds; mask the loads"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:reads")
    if ran.differs is Differs.UNDEFINED:
        text = (
            f"{where}the outputs depend on memory that nothing wrote: an output or scratch buffer is not filled before it is read"
        )
        return Failure(Status.WRONG_VALUES, Stage.GATE, text, "wrong_values:undefined memory")
    return None


def _words(nbytes: int) -> str:
    """Bytes as torch words them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"
