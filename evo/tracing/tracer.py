"""Traces variants in sandboxes: lint, two traces that must agree, the torch-operator allow-list."""

from __future__ import annotations

import ast
import importlib.metadata
import math
from typing import Any

from evo.errors import PlanError, WorkerDied
from evo.knobs import read_knobs
from evo.records import Configuration, Failure, Stage, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import Launch, LaunchPlan, Operator
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.targets import target_named

MAX_SOURCE_BYTES = 400_000
_SEEDS = (1, 77)


def lint(source: str, entry: str) -> Failure | None:
    """The cheapest rung: size, syntax, the entry's presence, the knob declarations. Runs nothing."""
    if len(source) > MAX_SOURCE_BYTES:
        return _failure(
            Status.REJECTED,
            Stage.LINT,
            f"the module has {len(source)} characters, at most {MAX_SOURCE_BYTES} are allowed",
            "size",
        )
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _failure(Status.REJECTED, Stage.LINT, f"the module does not parse: {error}", f"syntax:{type(error).__name__}")
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }
    if entry not in names:
        return _failure(Status.REJECTED, Stage.LINT, f"the module does not define {entry}", "entry")
    try:
        read_knobs(source)
    except ValueError as error:
        return _failure(Status.REJECTED, Stage.LINT, str(error), "knobs")
    return None


class Tracer:
    """Owns one tracer fork server for a target. Not thread-safe.

    Args:
        target: Key of `evo.tracing.targets.TARGETS`.
        deadline_s: Wall seconds per trace.
    """

    def __init__(self, target: str, *, deadline_s: float = 60.0) -> None:
        self.target = target_named(target)
        self._deadline_s = deadline_s
        self._server = ForkServer("trace", Limits(cpu_s=math.ceil(deadline_s)), preload=("evo.tracing.trace_child",))

    def start(self) -> None:
        """Starts the fork server ahead of need."""
        self._server.start()

    def trace(self, source: str, task: Task, case: Case, configuration: Configuration) -> LaunchPlan | Failure:
        """The plan of one variant on one case in one configuration.

        Traces twice, with other addresses and random states; plans that differ are NONDETERMINISTIC. Never raises for a bad module.
        """
        if (problem := lint(source, task.entry)) is not None:
            return problem
        plans: list[LaunchPlan] = []
        for seed in _SEEDS:
            answer = self._once(source, task, case, configuration, seed)
            if isinstance(answer, Failure):
                return answer
            plans.append(answer)
        if plans[0] != plans[1]:
            text = "two calls on equal shapes launch different things: a result must depend on the arguments alone"
            return _failure(Status.NONDETERMINISTIC, Stage.TRACE, text, "plans differ")
        return refused_operators(plans[0], task) or plans[0]

    def close(self) -> None:
        """Ends the fork server."""
        self._server.close()

    def _once(self, source: str, task: Task, case: Case, configuration: Configuration, seed: int) -> LaunchPlan | Failure:
        request = {
            "source": source,
            "entry": task.entry,
            "form": task.form,
            "configuration": dict(configuration),
            "arguments": [spec_json(item) if isinstance(item, TensorSpec) else item for item in case.arguments],
            "parameters": {name: spec_json(spec) for name, spec in task.parameters.items()},
            "init_arguments": list(task.init_arguments),
            "backward": task.backward,
            "target": self.target.key,
            "seed": seed,
        }
        try:
            answer = self._server.call("evo.tracing.trace_child:trace", request, deadline_s=self._deadline_s)
        except WorkerDied as error:
            status = Status.TIMEOUT if error.reason == "deadline" else Status.TRACE_ERROR
            return _failure(
                status,
                Stage.TRACE,
                f"importing the module and calling {task.entry} ended the tracer: {error.reason}",
                error.reason,
            )
        plan = _read_answer(answer)
        return plan if isinstance(plan, Failure) else self._unfit(plan, task, case) or plan

    def _unfit(self, plan: LaunchPlan, task: Task, case: Case) -> Failure | None:
        """REJECTED where a plan, valid in itself, is not one for this target and these inputs, as a forged one may be."""
        specs: dict[tuple[str, int | str], object] = {("argument", index): item for index, item in enumerate(case.arguments)}
        specs |= {("parameter", name): spec for name, spec in task.parameters.items()}
        problem = "" if plan.target == self.target.key else f"it is for {plan.target}"
        installed = importlib.metadata.version("triton")
        if plan.triton.partition("+")[0] != installed.partition("+")[0]:
            problem = f"it is of triton {plan.triton}, not {installed}"
        for source in plan.sources:
            value, spec = plan.values[source.value], specs.get((source.kind, source.key))
            fits = isinstance(spec, TensorSpec) and (value.dtype, value.shape) == (spec.dtype, tuple(spec.shape))
            if source.kind != "gradient" and not fits:
                problem = f"{source.kind} {source.key} is not such a tensor in case {case.name}"
        if not problem:
            return None
        return _failure(Status.REJECTED, Stage.TRACE, f"the launch plan is not valid: {problem}", "invalid plan")


def spec_json(spec: TensorSpec) -> dict[str, Any]:
    """What the tracer child needs to know of an input."""
    return {
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "strides": list(spec.element_strides),
        "offset": spec.offset,
        "requires_grad": spec.requires_grad,
    }


def refused_operators(plan: LaunchPlan, task: Task) -> Failure | None:
    """REJECTED where the plan runs torch operators the task does not allow, or launches no kernel of its own."""
    steps = [step for phase in plan.steps.values() for step in phase]
    names = sorted({step.name for step in steps if isinstance(step, Operator) and step.name not in task.operators})
    if names:
        text = f"torch computes {', '.join(names)}; write it in Triton (a task may list allowed operators)"
        return _failure(Status.REJECTED, Stage.TRACE, text, f"operators:{','.join(names)}")
    if not any(isinstance(step, Launch) for step in steps):
        return _failure(Status.REJECTED, Stage.TRACE, "no Triton kernel is launched", "no launch")
    return None


def _read_answer(answer: dict[str, Any]) -> LaunchPlan | Failure:
    if "failure" in answer:
        try:
            return Failure.from_json(answer["failure"])
        except (TypeError, ValueError, KeyError) as error:
            return _failure(Status.REJECTED, Stage.TRACE, f"the tracer's answer is not valid: {error}", "answer")
    try:
        return LaunchPlan.from_json(answer.get("plan"))
    except PlanError as error:
        return _failure(Status.REJECTED, Stage.TRACE, str(error), "invalid plan")


def _failure(status: Status, stage: Stage, message: str, signature: str) -> Failure:
    return Failure(status, stage, message, f"{status.value}:{signature}")
