"""`triton-evolve trace`: the launch plan of a kernel and what its binaries use, for a person, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evo.commands.console import make_console
from evo.commands.given import read_kernel
from evo.errors import TaskError
from evo.knobs import read_knobs
from evo.records import Configuration, Failure
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import Allocate, Copy, Fill, Launch, LaunchPlan, Operator, Step
from evo.tracing.targets import target_named
from evo.tracing.tracer import Tracer

TOP_INSTRUCTIONS = 6


def trace_command(file: Path, task: str, target: str, case: str | None) -> int:
    """Prints steps, kernels and resources.

    Returns:
        0, or 1 where the kernel cannot be traced or compiled; then it prints why.

    Raises:
        InputError: The file, the task, the case or the target cannot be used.
    """
    target_named(target)
    loaded = load_task(task)
    chosen = _case(loaded, case)
    source = read_kernel(file)
    console = make_console()
    configuration = _configuration(source)
    plan = _trace(target, source, loaded, chosen, configuration)
    if isinstance(plan, Failure):
        return _failed(console, plan)
    compiler = Compiler(target, sass=True)
    try:
        binaries = compiler.compile_plan(plan)
    finally:
        compiler.close()
    console.print(f"{file} on {loaded.name}, case {chosen.name}, for {target} (triton {plan.triton})")
    console.print(f"configuration: {configuration}; plan {plan.plan_hash}")
    console.print(_steps(plan))
    if isinstance(binaries, Failure):
        return _failed(console, binaries)
    console.print(_kernels(plan, binaries))
    return 0


def _case(task: Task, name: str | None) -> Case:
    if name is None:
        return task.training_cases[0]
    try:
        return task.case(name)
    except KeyError:
        allowed = [case.name for case in task.cases]
        raise TaskError(f"task {task.name}: case", given=name, allowed=allowed) from None


def _configuration(source: str) -> Configuration:
    try:
        return read_knobs(source).default
    except ValueError:
        return Configuration()  # the tracer's lint says what is wrong


def _trace(target: str, source: str, task: Task, case: Case, configuration: Configuration) -> LaunchPlan | Failure:
    tracer = Tracer(target)
    try:
        return tracer.trace(source, task, case, configuration)
    finally:
        tracer.close()


def _failed(console: Console, failure: Failure) -> int:
    console.print(f"{failure.status} at {failure.stage}: {failure.message}", style="red")
    return 1


def _steps(plan: LaunchPlan) -> Table:
    table = Table("phase", "step", "what", box=None, header_style="bold", pad_edge=False)
    for phase, steps in plan.steps.items():
        for number, step in enumerate(steps):
            table.add_row(phase, str(number), _described(plan, step))
    return table


def _described(plan: LaunchPlan, step: Step) -> str:
    match step:
        case Launch():
            grid = " × ".join(map(str, step.grid))
            return f"launch {plan.kernels[step.kernel].name} on a grid of {grid}"
        case Allocate():
            return f"allocate storage {step.storage}, {plan.storages[step.storage]} bytes"
        case Fill():
            return f"fill value {step.value} with {step.scalar}"
        case Copy():
            return f"copy value {step.source} to value {step.target}"
        case Operator():
            return f"torch {step.name}"


def _kernels(plan: LaunchPlan, binaries: Sequence[Binary]) -> Table:
    columns = ("kernel", "warps", "stages", "registers", "spills", "shared", "binary", "most frequent instructions")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for kernel, binary in zip(plan.kernels, binaries, strict=True):
        used = binary.resources
        frequent = sorted(used.instructions.items(), key=lambda item: -item[1])[:TOP_INSTRUCTIONS]
        table.add_row(
            kernel.name,
            str(kernel.options.get("num_warps", "")),
            str(kernel.options.get("num_stages", "")),
            str(used.registers),
            f"{used.spill_bytes} B",
            f"{used.shared_bytes} B",
            f"{len(binary.data)} B",
            ", ".join(f"{name} {count}" for name, count in frequent),
        )
    return table
