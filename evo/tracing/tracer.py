"""Traces variants in sandboxes: lint, two traces that must agree, the torch-operator allow-list."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import math
from collections.abc import Sequence
from typing import Any

from evo.errors import PlanError, WorkerDied
from evo.knobs import read_knobs
from evo.records import Configuration, Failure, Stage, Status
from evo.syntax import module_tree
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import Launch, LaunchPlan, Operator
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.targets import target_named
from evo.tracing.zygote import Zygote

MAX_SOURCE_BYTES = 400_000
BATCH_SHARE = 0.25
"""Part of the deadline after which a child that traces several cases is given up; then each case has the whole deadline for itself."""
_SEEDS = (1, 77)

Run = tuple[Case, Configuration]
"""What a variant is traced on."""


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
        tree = module_tree(source)
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
        zygote: Forks its server, see `ForkServer`.
    """

    def __init__(self, target: str, *, deadline_s: float = 60.0, zygote: Zygote | None = None) -> None:
        self.target = target_named(target)
        self._deadline_s = deadline_s
        self._server = ForkServer(
            "trace", Limits(cpu_s=math.ceil(deadline_s)), preload=("evo.tracing.trace_child",), zygote=zygote
        )

    def start(self) -> None:
        """Starts the fork server ahead of need."""
        self._server.start()

    def trace(self, source: str, task: Task, case: Case, configuration: Configuration) -> LaunchPlan | Failure:
        """The plan of one variant on one case in one configuration.

        Traces twice, with other addresses and random states; plans that differ are NONDETERMINISTIC. Never raises for a bad module.
        """
        verdict = self.trace_each(source, task, [(case, configuration)])[0]
        assert verdict is not None
        return verdict

    def trace_each(self, source: str, task: Task, runs: Sequence[Run]) -> list[LaunchPlan | Failure | None]:
        """The plans of one variant on several cases or in several configurations, for the price of two processes.

        As `trace`, and each of the two processes takes the runs in the opposite order of the other, so that what one run leaves for
        the next makes the plans differ too.

        Returns:
            A verdict per run; None where only a process of its own can tell (`trace`), since a process of several runs ended or hung,
            or a run failed in it that was not the first.
        """
        if (problem := lint(source, task.entry)) is not None:
            return [problem] * len(runs)
        firsts = self._answers(source, task, runs, _SEEDS[0])
        verdicts = [
            first if first is None or isinstance(first, Failure) else self._validated(first, task, case)
            for first, (case, _) in zip(firsts, runs, strict=True)
        ]
        again = [index for index in reversed(range(len(runs))) if isinstance(verdicts[index], LaunchPlan)]
        seconds = self._answers(source, task, [runs[index] for index in again], _SEEDS[1])
        for index, second in zip(again, seconds, strict=True):
            if second is None or isinstance(second, Failure):
                verdicts[index] = second
            elif not _same(firsts[index], second):  # an equal plan need not be validated twice
                text = "two calls on equal shapes launch different things: a result must depend on the arguments alone"
                differ = _failure(Status.NONDETERMINISTIC, Stage.TRACE, text, "plans differ")
                other = self._validated(second, task, runs[index][0])
                verdicts[index] = other if isinstance(other, Failure) else differ
        return [
            (refused_operators(verdict, task) or verdict) if isinstance(verdict, LaunchPlan) else verdict for verdict in verdicts
        ]

    def close(self) -> None:
        """Ends the fork server."""
        self._server.close()

    def _answers(self, source: str, task: Task, runs: Sequence[Run], seed: int) -> list[Any]:
        """Per run a plan in JSON form, a Failure, or None as `trace_each` says."""
        if not runs:
            return []
        request = {
            "source": source,
            "entry": task.entry,
            "form": task.form,
            "cases": [
                {
                    "arguments": [spec_json(item) if isinstance(item, TensorSpec) else item for item in case.arguments],
                    "configuration": dict(configuration),
                }
                for case, configuration in runs
            ],
            "parameters": {name: spec_json(spec) for name, spec in task.parameters.items()},
            "init_arguments": list(task.init_arguments),
            "backward": task.backward,
            "target": self.target.key,
            "seed": seed,
        }
        deadline_s = self._deadline_s if len(runs) == 1 else BATCH_SHARE * self._deadline_s
        try:
            answer = self._server.call("evo.tracing.trace_child:trace_each", request, deadline_s=deadline_s)
        except WorkerDied as error:
            status = Status.TIMEOUT if error.reason == "deadline" else Status.TRACE_ERROR
            text = f"importing the module and calling {task.entry} ended the tracer: {error.reason}"
            return [_failure(status, Stage.TRACE, text, error.reason)] if len(runs) == 1 else [None] * len(runs)
        items = answer.get("answers")
        if not isinstance(items, list) or len(items) != len(runs):
            items = [None] * len(runs)
        answers = [_read_item(item) for item in items]
        first = answers[0].signature if isinstance(answers[0], Failure) else None
        return [
            None if isinstance(item, Failure) and place and item.signature != first else item
            for place, item in enumerate(answers)
        ]

    def _validated(self, data: Any, task: Task, case: Case) -> LaunchPlan | Failure:
        try:
            plan = LaunchPlan.from_json(data)
        except PlanError as error:
            return _failure(Status.REJECTED, Stage.TRACE, str(error), "invalid plan")
        return self._unfit(plan, task, case) or plan

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
        asked = sum(isinstance(spec, TensorSpec) and spec.requires_grad for spec in specs.values()) if task.backward else 0
        if len(plan.gradients) != asked:
            problem = f"it has {len(plan.gradients)} gradients of {asked}"
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


def _read_item(item: Any) -> Any:
    """The plan of one answer, still to be validated, or its failure."""
    try:
        return Failure.from_json(item["failure"]) if "failure" in item else item["plan"]
    except (TypeError, ValueError, KeyError) as error:
        return _failure(Status.REJECTED, Stage.TRACE, f"the tracer's answer is not valid: {error}", "answer")


def _same(one: Any, other: Any) -> bool:
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except RecursionError:  # nested just deep enough to be read but not written
        return False


def _failure(status: Status, stage: Stage, message: str, signature: str) -> Failure:
    return Failure(status, stage, message, f"{status.value}:{signature}")
