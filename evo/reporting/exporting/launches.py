"""What an exported module launches: traced again from the very text that is exported, and held against what was judged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.evaluation.ladder import searched_hash
from evo.knobs import Knobs
from evo.records import Configuration, Evaluation, Failure, Stage, TrustLevel, content_id
from evo.tasks.base import Case, Task
from evo.tracing.plan import Kernel, Launch, LaunchPlan
from evo.tracing.workbench import Job, Prepared, Workbench


@dataclass(frozen=True)
class Recorded:
    """Case name → the configuration an exported module is used in, and its plan (none for a hosted kernel, which cannot be traced)."""

    configurations: Mapping[str, Configuration]
    plans: Mapping[str, LaunchPlan]

    def to_json(self) -> dict[str, Any]:
        """Per case what `test_front.py` compares launches with."""
        return {
            name: {"configuration": dict(configuration), **_plan_json(self.plans.get(name))}
            for name, configuration in self.configurations.items()
        }


def _plan_json(plan: LaunchPlan | None) -> dict[str, Any]:
    if plan is None:
        return {"plan_hash": None, "triton": None, "target": None, "launches": None}
    return {
        "plan_hash": plan.plan_hash,
        "triton": plan.triton,
        "target": plan.target,
        "launches": [_launch_json(plan, launch) for launch in plan.launches],
    }


def record_launches(
    bench: Workbench,
    task: Task,
    source: str,
    evaluation: Evaluation,
    knobs: Knobs,
    configurations: Mapping[str, Configuration],
) -> Recorded | str:
    """Traces an exported text on all cases in the configurations it is used in.

    Args:
        bench: Of the target that the evaluation was for.
        task: Whose cases.
        source: The text as exported.
        evaluation: The verdict that the export rests on.
        knobs: What the text that was evaluated declares.
        configurations: Case name → configuration, for every case of the task.

    Returns:
        What to write down, or why this module must not be exported.
    """
    if evaluation.trust is TrustLevel.HOSTED:
        return Recorded(configurations, {})
    jobs = [Job(source, task, case, configurations[case.name], binaries=False) for case in task.cases]
    judged = _judged_configurations(task, evaluation, knobs.default, configurations)
    extra = [(case, conf) for case, conf in judged if conf != configurations[case.name]]
    jobs += [Job(source, task, case, conf, binaries=False) for case, conf in extra]
    plans: dict[tuple[str, Configuration], LaunchPlan] = {}
    for job, item in zip(jobs, bench.prepare(jobs), strict=True):
        if isinstance(item, Failure):
            return f"case {job.case.name}: {item.message.splitlines()[0]}"
        assert isinstance(item, Prepared)
        plans[job.case.name, job.configuration] = item.plan
    hashes = [plans[case.name, conf].plan_hash for case, conf in judged]
    traced = content_id(*hashes) if evaluation.stage is Stage.VERIFY else searched_hash(hashes, knobs)
    if traced != evaluation.plan_hash:
        return f"it launches something else (plan {traced}) than what was judged (plan {evaluation.plan_hash or 'unknown'})"
    return Recorded(configurations, {case.name: plans[case.name, configurations[case.name]] for case in task.cases})


def _judged_configurations(
    task: Task, evaluation: Evaluation, default: Configuration, chosen: Mapping[str, Configuration]
) -> Sequence[tuple[Case, Configuration]]:
    """What the evaluation's plan hash was made of: the chosen configurations where it is a verification, else the default one."""
    verified = evaluation.stage is Stage.VERIFY
    return [(case, chosen[case.name] if verified else default) for case in task.training_cases]


def code_hash(kernel: Kernel) -> str:
    """Identity of post-pass TTIR without function names, computed alike in the exported test."""
    return hashlib.sha256(kernel.anonymous_ttir.encode()).hexdigest()


def _launch_json(plan: LaunchPlan, launch: Launch) -> dict[str, Any]:
    kernel = plan.kernels[launch.kernel]
    return {
        "kernel": kernel.name,
        "grid": list(launch.grid),
        "options": dict(kernel.options),
        "signature": [list(item) for item in kernel.signature],
        "arguments": [_argument_json(plan, item) for item in launch.arguments],
        "code": code_hash(kernel),
        "warp_specialized": "warp_specialize" in kernel.ttir,
    }


def _argument_json(plan: LaunchPlan, item: Any) -> Any:
    if isinstance(item, Mapping) and "value" in item:
        value = plan.values[item["value"]]
        return {"dtype": value.dtype, "shape": list(value.shape), "strides": list(value.strides)}
    if isinstance(item, Mapping):
        described = item["descriptor"]
        return {key: described[key] for key in ("shape", "strides", "block")}
    if isinstance(item, list | tuple):
        return [_argument_json(plan, inner) for inner in item]
    return item
