"""What is judged is what is used: the module itself runs once more, unfaked, and must launch what its judged plan says.

A module could behave when it is traced and differently in use. So at the verification of an elite it runs in a hosted process, on real
tensors, called as a user calls it: nothing claims to be a GPU that is not one, no variable names a role, no module of ours can be imported
by name, and the working folder, arguments and call count are not those of a trace. A recording driver, which wraps the real one, records
its second call and one after many more. The recorded plan must be the judged one, and outputs must have the bits of its replay.

Not covered: a module that recognises the recording itself (by walking the stack, say), and one that waits longer than we call it. What
an exported package launches on a user's machine is recorded again by the package's own test.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from evo.errors import DeviceError
from evo.evaluation.examination import Examination
from evo.evaluation.hosted import Host
from evo.evaluation.hosted_host import Observed
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.tier import Candidate
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tasks.draws import Draw
from evo.tracing.plan import Launch, LaunchPlan, Operator, Step

NAME = "recorded use"
CALLS = 200
"""Unrecorded calls between the two recorded ones."""
_OF_CALLS_ALONE = {"device", "pin_memory", "layout", "memory_format"}
"""Keywords of operators that a fake device answers otherwise without doing anything else."""


class RecordedUse(Examination):
    """Runs modules in a process of their own and compares what they launch.

    Args:
        device: ``cuda``, or ``cpu``: under Triton's interpreter, where launches are compared without code and outputs not at all.
        deadline_s: For all calls of one case.
        calls: See `CALLS`.
        host: Another hosting process; closed with this.
    """

    def __init__(self, device: str = "cuda", *, deadline_s: float = 120.0, calls: int = CALLS, host: Host | None = None) -> None:
        self._compiled = device == "cuda"
        self._calls = calls
        self._host = host or Host(device, deadline_s)
        self._turn = Lock()

    def examine(self, task: Task, candidates: Sequence[Candidate]) -> tuple[str, ...] | Failure:
        """See `Examination`: every training case (the others too where all are small ones) in the verified configuration."""
        with self._turn:
            try:
                _ = self._host.name
            except DeviceError as error:  # of this machine, for no module has been loaded yet
                return (f"{NAME} not applied: {error}",)
            for candidate in [item for item in candidates if item.case in task.training_cases] or candidates:
                problem = self._observed(task, candidate)
                if problem is not None:
                    return problem
            return (NAME,)

    def close(self) -> None:
        """Ends all processes."""
        self._host.close()

    def _observed(self, task: Task, candidate: Candidate) -> Failure | None:
        """As `_observe`. A host that ends while a module is in use is tried again, once and anew; then the module is refused, for one
        that could end its host, say by taking all of the device's memory, would never be looked at."""
        try:
            return self._observe(task, candidate)
        except DeviceError:
            self._host.fresh()
        try:
            return self._observe(task, candidate)
        except DeviceError as error:
            self._host.fresh()
            text = f"case {candidate.case.name}: what the module launches in use could not be recorded, twice: {error}"
            return Failure(Status.REJECTED, Stage.VERIFY, text, "rejected:observed:host")

    def _observe(self, task: Task, candidate: Candidate) -> Failure | None:
        reference = str(task.path) if task.path else task.name
        work = HostedWork(reference, candidate.source, dict(candidate.configuration), target=candidate.plan.target)
        draw, case = Draw(secrets.randbits(48)), candidate.case.name
        seen: Observed | Failure = self._host.call("observe", work, case, draw, self._calls, candidate.plan, candidate.binaries)
        if isinstance(seen, Failure):
            return seen
        text = difference(seen.plan, candidate.plan, code=self._compiled)
        if text is None and seen.same_bits is False:
            text = "it returned other bits than the judged launch plan gives on the same inputs"
        if text is None:
            return None
        message = f"case {case}: in use the module does something else than when it was traced: {text}"
        return Failure(Status.REJECTED, Stage.VERIFY, message, "rejected:observed:differs")


def difference(seen: LaunchPlan, judged: LaunchPlan, *, code: bool = True) -> str | None:
    """What the first difference is between a plan recorded in use and the judged one; None for none.

    Args:
        seen, judged: Plans of one case.
        code: Compare what kernels compute and how they are compiled; else their names alone.
    """
    for phase in ("prepare", "forward", "backward"):
        ours, theirs = (_steps(plan, phase) for plan in (seen, judged))
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
            text = _step_difference(seen, mine, judged, other, code)
            if text is not None:
                return f"step {number + 1} of its {phase} phase {text}"
        if len(ours) != len(theirs):
            more = (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))]
            who = "more" if len(ours) > len(theirs) else "less"
            plan = seen if len(ours) > len(theirs) else judged
            return (
                f"it does {who} in its {phase} phase: {_words(plan, more)}, one of {len(ours)} steps; judged with {len(theirs)}"
            )
    if _listed(seen.outputs) != _listed(judged.outputs) or seen.gradients != judged.gradients:
        return "it returns other tensors"
    if seen.storages != judged.storages or seen.values != judged.values:
        return "its tensors have other sizes, types or strides"
    return None


def _steps(plan: LaunchPlan, phase: str) -> tuple[Step, ...]:
    return plan.steps.get(phase, ())


def _step_difference(seen: LaunchPlan, mine: Step, judged: LaunchPlan, other: Step, code: bool) -> str | None:
    if type(mine) is not type(other):
        return f"is {_words(seen, mine)}; judged with {_words(judged, other)}"
    if isinstance(mine, Launch) and isinstance(other, Launch):
        return _launch_difference(seen, mine, judged, other, code)
    if isinstance(mine, Operator) and isinstance(other, Operator):
        same = (mine.name, mine.overload, _listed(mine.arguments), mine.results, _kept(mine.keywords)) == (
            other.name, other.overload, _listed(other.arguments), other.results, _kept(other.keywords),
        )  # fmt: skip
        return None if same else f"is {_words(seen, mine)}; judged with {_words(judged, other)}, or on other tensors"
    return None if mine == other else f"is {_words(seen, mine)} of another tensor than judged"


def _launch_difference(seen: LaunchPlan, mine: Launch, judged: LaunchPlan, other: Launch, code: bool) -> str | None:
    kernel, expected = seen.kernels[mine.kernel], judged.kernels[other.kernel]
    if (kernel.kernel_hash if code else kernel.name) != (expected.kernel_hash if code else expected.name):
        same_name = (
            "other code or options under the same name" if kernel.name == expected.name else f"judged with {expected.name}"
        )
        return f"launches {kernel.name}; {same_name}"
    if tuple(mine.grid) != tuple(other.grid):
        return f"launches {kernel.name} on the grid {tuple(mine.grid)}; judged with {tuple(other.grid)}"
    kinds = zip(kernel.signature, expected.signature, mine.arguments, other.arguments, strict=False)
    for (name, kind), (_, judged_kind), given, wanted in kinds:
        if "constexpr" not in (kind, judged_kind) and _listed(given) != _listed(wanted):
            return f"launches {kernel.name} with {name} = {given}; judged with {wanted}"
    return None


def _words(plan: LaunchPlan, step: Step) -> str:
    if isinstance(step, Launch):
        return f"the launch of {plan.kernels[step.kernel].name}"
    return (
        step.name
        if isinstance(step, Operator)
        else {"Allocate": "an allocation", "Fill": "a fill"}.get(type(step).__name__, "a copy")
    )


def _kept(keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _listed(item) for key, item in keywords.items() if key not in _OF_CALLS_ALONE and item not in (None, False)}


def _listed(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _listed(inner) for key, inner in item.items()}
    return [_listed(inner) for inner in item] if isinstance(item, list | tuple) else item
