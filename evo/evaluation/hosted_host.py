"""The host of hosted candidates: a trusted process with clock, inputs, seeds and judge; each candidate is in a process of its own.

A checked run: fresh inputs from a secret draw, lent between guard bands; three calls must agree bit for bit, leave guard bands and inputs
alone, stay within the task's torch operators and launch a kernel of their own; the judge says whether outputs are right.

A timed run (by the host's clock, of a call as a user makes it: wrapper, launches and one copy of the outputs): the process is stopped,
fresh input sets are lent, the clock starts, the process goes on and is asked for all sets in random order; at its answer, randomly
chosen pieces of the outputs are copied, and then the clock is read. What the same request to a module that does nothing takes is
subtracted. All outputs must still hold the pieces seen at first, and those of some sets, chosen only then, are judged. So returning early,
caching, threads, side streams and working ahead give wrong outputs or save no time. What this does not cover: kernels that were left
running on the device and wait there for their inputs (they slow the host's own kernels, which is looked for), and processes that a
candidate started and detached, which are not stopped with it.

The judge may live here because nothing of a candidate does: its process can reach no memory of this one but the blocks it was lent, which
hold nothing else, and this process opens nothing that a candidate made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from evo.errors import PlanError
from evo.evaluation.failed import Failed
from evo.evaluation.graphs import prepare
from evo.evaluation.hosted_checks import check, same_bits
from evo.evaluation.hosted_lending import InvalidAnswer
from evo.evaluation.hosted_sides import HostedWork, Sides
from evo.evaluation.hosted_timing import Stopwatch
from evo.evaluation.inputs import make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs, flatten_outputs
from evo.evaluation.runner import Execution, PlainMemory, load_plan, set_scratch_allocator
from evo.evaluation.tier import Checked, Timing
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.compiler import Binary
from evo.tracing.plan import LaunchPlan

ORACLE_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}
"""Only answers for checks are asked for twice; those for timed calls never are."""


@dataclasses.dataclass(frozen=True)
class Observed:
    """A module's real calls: the plan that was recorded, and whether the last call's outputs have the bits that replaying the judged
    plan gives (None where it was not replayed)."""

    plan: LaunchPlan
    same_bits: bool | None


class HostProcess:
    """Served by `evo.evaluation.worker`; see `CudaHost` and `CpuHost`.

    Args:
        device: ``cuda``, or ``cpu``: candidates run under Triton's interpreter, for machines without a GPU and for tests.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._described: dict[str, Any] = {}
        self._sides = Sides(device)
        self._judge = Judge(device, ORACLE_BYTES[device])
        self._stopwatch = Stopwatch(self._sides, self._judge)

    def describe(self, deadline_s: float) -> dict[str, Any]:
        """The device's name, and whether candidates get memory by CUDA IPC; else it is copied through the host's, which takes time on both
        sides of a comparison and so brings speedups nearer to 1."""
        if not self._described:
            by_ipc = self._device == "cuda" and self._sides.ipc_works(deadline_s)
            self._described = {"name": torch.cuda.get_device_name(0) if self._device == "cuda" else "cpu", "ipc": by_ipc}
        return self._described

    def check(self, work: HostedWork, case: str, draws: Sequence[Draw], deadline_s: float) -> Checked | Failure:
        """Runs the module on the inputs of each draw (seeds already secret) and judges what it computed; the first failure ends it."""
        worst = Checked(0.0, 0)
        try:
            side = self._sides.open("candidate", work, deadline_s)
            side.process.thaw()
            described = side.task.case(case)
            lending = self._sides.lend(side, described, 1)
            for draw in draws:
                checked = check(side, lending, described, draw, self._judge)
                worst = Checked(max(worst.error_ratio, checked.error_ratio), max(worst.peak_bytes, checked.peak_bytes))
        except Failed as error:
            return self._failed(case, error.failure)
        return worst

    def latency_us(self, work: HostedWork, case: str, calls: int, deadline_s: float) -> float | Failure:
        """See `Stopwatch.latency_us`."""
        try:
            return self._stopwatch.latency_us(work, case, calls, deadline_s)
        except Failed as error:
            return self._failed(case, error.failure, Stage.TIME)

    def compare(
        self, work: HostedWork, baseline: HostedWork, case: str, pairs: int, incumbent: float, deadline_s: float
    ) -> Timing | Failure:
        """See `Stopwatch.compare`."""
        try:
            return self._stopwatch.compare(work, baseline, case, pairs, incumbent, deadline_s)
        except Failed as error:
            return self._failed(case, error.failure, Stage.TIME)

    def observe(
        self,
        work: HostedWork,
        case: str,
        draw: Draw,
        calls: int,
        judged: LaunchPlan,
        binaries: Sequence[Binary],
        deadline_s: float,
    ) -> Observed | Failure:
        """Records real calls of a module (`work.target` says for what), the last one after `calls` unrecorded ones, in a new process.

        No judge's answers are in a process that only observes: kernels of the judged plan run in it, to compare outputs.
        """
        self._sides.shut("candidate")
        try:
            side = self._sides.open("candidate", work, deadline_s)
            described = side.task.case(case)
            lending = self._sides.lend(side, described, 1)
            lending.fill([draw])
            plan = LaunchPlan.from_json(side.process.ask("observe", calls=calls).get("plan"))
            snapshot = lending.snapshot()
            seen = lending.read(side.process.ask("describe"), [0], snapshot, gradients=False)[0]
            self._sides.shut("candidate")  # the device's memory that it holds must not keep its plan from being replayed
            same = self._same_as_replayed(side.task, described, draw, judged, binaries, seen) if self._device == "cuda" else None
        except Failed as error:
            return self._failed(case, error.failure, Stage.VERIFY)
        except (PlanError, InvalidAnswer) as error:
            failure = Failure(
                Status.REJECTED, Stage.VERIFY, f"what it recorded is not valid: {error}", "rejected:observed:answer"
            )
            return self._failed(case, failure, Stage.VERIFY)
        return Observed(plan, same)

    def shut(self) -> None:
        """Ends the candidate's process. Idempotent."""
        self._sides.shut("candidate")

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        self._sides.close()

    def _same_as_replayed(
        self, task: Task, case: Case, draw: Draw, plan: LaunchPlan, binaries: Sequence[Binary], seen: Outputs
    ) -> bool:
        device = torch.device("cuda:0")
        set_scratch_allocator(device)
        inputs = make_inputs(task, case, draw.seed, device, draw.variation)
        execution = Execution(plan, load_plan(plan, binaries, device), PlainMemory(device), device)
        with torch.no_grad():
            prepare(execution, inputs)
            execution.run("forward")
            positions = {source.key: source.value for source in plan.sources if source.kind == "argument"}
            mutated = [execution.value(positions[position]) for position in task.mutates]
            replayed = flatten_outputs(execution.outputs(), mutated)
        torch.cuda.synchronize()
        return same_bits(replayed, seen)

    def _failed(self, case: str, failure: Failure, stage: Stage | None = None) -> Failure:
        """The failure with its place; the process that failed is ended."""
        self._sides.shut("candidate")
        text = failure.message if failure.message.startswith("case ") else f"case {case}: {failure.message}"
        return Failure(failure.status, stage or failure.stage, text, failure.signature)


class CudaHost(HostProcess):
    """On this machine's GPU."""

    def __init__(self) -> None:
        super().__init__("cuda")


class CpuHost(HostProcess):
    """Under Triton's interpreter."""

    def __init__(self) -> None:
        super().__init__("cpu")
