"""Writes one task's folder: kernels with their JSON, the reference, the dispatcher and what the exported test needs to know."""

from __future__ import annotations

import ast
import json
import keyword
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from typing import Any

from evo.errors import InputError
from evo.records import Configuration
from evo.reporting.exporting.ancestry import Ancestor
from evo.reporting.exporting.guards import guard_table, input_bytes, judged_cases, related_sizes
from evo.reporting.exporting.kernel_text import kind_text
from evo.reporting.exporting.launches import Recorded
from evo.reporting.exporting.literals import literal
from evo.reporting.exporting.selection import Member
from evo.syntax import module_tree
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.text import reference_source
from evo.tracing.tracer import spec_json
from population_store.base import RunHeader

_OWN_PACKAGES = {"evo", "operators", "population_store"}


@dataclass(frozen=True)
class Written:
    """A kernel ready to be written.

    Attributes:
        name: Module name, ``kernel_RANK_ID``.
        member: Whose.
        text: The module.
        launches: What it launches on every case.
        descent: From the starting kernel to it.
    """

    name: str
    member: Member
    text: str
    launches: Recorded
    descent: tuple[Ancestor, ...]


def template(name: str) -> str:
    """Text of a template file of this package."""
    return (files("evo.reporting.exporting") / name).read_text(encoding="utf-8")


def folder_name(task: str) -> str:
    """Of a task's package. The folder above it comes first on Python's path where an export's test runs, so a package there must not
    have the name of another module, which it would hide from all that import it."""
    taken = keyword.iskeyword(task) or task in sys.stdlib_module_names or task in packages_distributions()
    return f"{task}_kernels" if taken else task


def write_package(folder: Path, task: Task, kernels: Sequence[Written], header: RunHeader) -> None:
    """Writes the folder of a task, which must not exist."""
    folder.mkdir()
    for kernel in kernels:
        (folder / f"{kernel.name}.py").write_text(kernel.text, encoding="utf-8")
        _write_json(folder / f"{kernel.name}.json", _kernel_json(kernel, header))
    (folder / "reference.py").write_text(reference_text(task), encoding="utf-8")
    (folder / "__init__.py").write_text(_dispatcher(task, kernels), encoding="utf-8")
    _write_json(folder / "task.json", _task_json(task, kernels))


def reference_text(task: Task) -> str:
    """A module with the reference and what it uses of its file.

    Raises:
        InputError: It has no source of its own, or uses modules of this project, which an export must do without.
    """
    where = f"{task.path or task.name}: reference"
    try:
        source = reference_source(task)
        name = task.reference.__name__
    except (OSError, TypeError, AttributeError) as error:
        raise InputError(where, given="no source of its own", allowed="a function defined in the task file") from error
    for node in ast.walk(module_tree(source)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = ["." * node.level + str(node.module or "")]
        own = [item for item in imported if item.startswith(".") or item.split(".")[0] in _OWN_PACKAGES]
        if own:
            raise InputError(where, given=f"the import of {own[0]}", action="an exported reference must run without it")
    return f'"""The PyTorch reference of {task.name}: `{name}`."""\n\nfrom __future__ import annotations\n\n{source}'


def _dispatcher(task: Task, kernels: Sequence[Written]) -> str:
    tables = {
        "ENTRY": (task.entry, "What every kernel module defines."),
        "MUTATES": (tuple(task.mutates), "Arguments updated in place."),
        "BACKWARD": (task.backward, "Whether kernels have gradients, which were judged too."),
        "SCRATCH": (
            any(map(_takes_scratch, kernels)),
            "Whether a kernel takes scratch memory from Triton's allocator, which load() sets.",
        ),
        "RELATED": (related_sizes(task), "Sizes in a fixed ratio, as (argument, dimension, unit)."),
        "GUARDS": (guard_table(task), "Inputs that kernels were judged on, by kind; sizes are ranges, both ends included."),
        "CASES": (_routes(task, kernels), "What was judged, with the kernel that is fastest there and its configuration."),
    }
    text = "\n".join(f"# {comment}\n{name} = {literal(value, column=len(name) + 3)}" for name, (value, comment) in tables.items())
    filled = template("dispatcher.txt").replace("@@TASK@@", task.name).replace("@@REFERENCE@@", task.reference.__name__)
    return filled.replace("@@TABLES@@", text)


def _takes_scratch(kernel: Written) -> bool:
    """Descriptors that a kernel makes lie in scratch memory; without an allocator of the user's, Triton refuses to launch it."""
    return "make_tensor_descriptor" in kernel.text


def _routes(task: Task, kernels: Sequence[Written]) -> dict[str, Any]:
    return {case.name: _route(task, case, kernels) for case in judged_cases(task)}


def _route(task: Task, case: Case, kernels: Sequence[Written]) -> dict[str, Any]:
    """The fastest verified kernel on the case (or on the training case it takes its configuration from)."""
    trained = task.nearest_training_case(case).name
    eligible = [kernel for kernel in kernels if kernel.member.verified] or kernels
    best = min(eligible, key=lambda kernel: kernel.member.case(trained).latency_us)
    return {
        "kernel": best.name,
        "configuration": dict(best.launches.configurations[case.name]),
        "bytes": input_bytes(case),
        "shapes": [item.shape for item in case.arguments if isinstance(item, TensorSpec)],
    }


def _kernel_json(kernel: Written, header: RunHeader) -> dict[str, Any]:
    evaluation = kernel.member.evaluation
    cases = [
        {**{key: value for key, value in case.to_json().items() if key != "log_ratios"}, "latency": kind}
        for case in evaluation.cases
        for kind in [kind_text(evaluation.latency_kind, evaluation.device, case.pairs)]
    ]
    return {
        "kernel": kernel.name,
        "task": kernel.member.row.variant.task,
        "variant_id": evaluation.variant_id,
        "run": {"name": header.name, "seed": header.seed, "created": header.created, "versions": json.loads(header.versions)},
        "device": evaluation.device,
        "trust": evaluation.trust,
        "latency_kind": evaluation.latency_kind,
        "verified": kernel.member.verified,
        "checks": list(evaluation.checks),
        "fitness": evaluation.fitness,
        "error_ratio": evaluation.error_ratio,
        "peak_bytes": evaluation.peak_bytes,
        "noise_floor": evaluation.noise_floor,
        "plan_hash": evaluation.plan_hash,
        "cases": cases,
        "descent": [step.to_json() for step in kernel.descent],
        "launches": kernel.launches.to_json(),
    }


def _task_json(task: Task, kernels: Sequence[Written]) -> dict[str, Any]:
    """What `test_front.py` knows of the task."""
    groups = {"small": task.small_cases, "training": task.training_cases, "held_out": task.held_out_cases}
    return {
        "task": task.name,
        "description": task.description,
        "reference": task.reference.__name__,
        "oracle": task.oracle,
        "tolerance": asdict(task.tolerance),
        "operators": sorted(task.operators),
        "kernels": [kernel.name for kernel in kernels],
        "cases": [
            {"name": case.name, "group": group, "arguments": [_argument_json(item) for item in case.arguments]}
            for group, cases in groups.items()
            for case in cases
        ],
    }


def _argument_json(item: Any) -> dict[str, Any]:
    if not isinstance(item, TensorSpec):
        return {"value": item}
    drawn = {"distribution": item.distribution, "scale": item.scale, "low": item.low, "high": item.high}
    return {**spec_json(item), **drawn}


def case_configurations(task: Task, member: Member) -> dict[str, Configuration]:
    """Case name → the configuration a kernel is used in there, for every case of the task."""
    return {case.name: member.case(task.nearest_training_case(case).name).configuration for case in task.cases}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
