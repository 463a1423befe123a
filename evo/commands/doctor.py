"""`triton-evolve doctor`: what this machine offers a search, and what stands in its way."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from rich.table import Table

from evo.commands.console import make_console
from evo.commands.measured import driver_says

PACKAGES = ("triton-evolve", "torch", "triton", "ray", "optuna", "anthropic", "SQLAlchemy", "libcst", "numpy")
OTHER_EVO = "evo"
"""A distribution on PyPI (trajectory evaluation) whose import package has the same name as ours."""

KEYS = ("ANTHROPIC_API_KEY",)


def doctor_command(task: str | None = None) -> int:
    """Prints the findings.

    Args:
        task: Name or path of a task that known cheats are turned on as well.

    Returns:
        0, or 1 where something keeps searches from working here, or a cheat would pass the task.

    Raises:
        TaskError: There is no such task, or it is broken.
    """
    console = make_console()
    if task is not None:
        from evo.commands.weak_tasks import load_named_task, show_task

        loaded = load_named_task(task)  # a mistake is answered before anything is printed
    table = Table("what", "found", "note", box=None, header_style="bold")
    problems = [*_versions(table), *_sandbox(table), *_probes(table)]
    _machine(table)
    console.print(table)
    if task is not None:
        console.print(f"\nKnown cheats on the task {loaded.name}:\n")
        problems += show_task(console, loaded)
    for problem in problems:
        console.print(f"problem: {problem}", style="red")
    console.print(
        ("A search can run here." if task is None else f"No known cheat passes {task}. A run checks its starting kernels first.")
        if not problems
        else "Mend the above first."
    )
    return 1 if problems else 0


def conflict() -> str | None:
    """What to do where PyPI's other `evo` is installed beside us, else None."""
    try:
        other = importlib.metadata.distribution(OTHER_EVO)
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"the package {OTHER_EVO} {other.version} is installed too and has our import name: use a fresh environment"


def _versions(table: Table) -> list[str]:
    problems = []
    table.add_row("Python", platform.python_version(), "")
    for name in PACKAGES:
        try:
            table.add_row(name, importlib.metadata.version(name), "")
        except importlib.metadata.PackageNotFoundError:
            table.add_row(name, "not installed", "run from a checkout" if name == "triton-evolve" else "")
            if name != "triton-evolve":
                problems.append(f"{name} is not installed: pip install triton-evolve")
    other = conflict()
    return [*problems, other] if other else problems


def _sandbox(table: Table) -> list[str]:
    from evo.tracing.sandbox import abilities

    for ability, there in abilities().items():
        table.add_row(
            f"sandbox: {ability}", "yes" if there else "no", "" if there else "untrusted code is isolated less; see README"
        )
    return []


def _probes(table: Table) -> list[str]:
    """Hostile actions tried in a real sandbox."""
    from evo.errors import SandboxError
    from evo.tracing.probes import run_probes
    from evo.tracing.sandbox import abilities

    lacking = [ability for ability, there in abilities().items() if not there]
    problems = []
    for kind in ("sandbox", "sandbox with a GPU") if _gpus() else ("sandbox",):
        try:
            results = run_probes(gpu=kind != "sandbox")
        except SandboxError as error:
            problems.append(f"{kind}: {error}")
            continue
        for result in results:
            table.add_row(f"{kind} that {result.name}", "contained" if result.contained else "not contained", result.how)
            # What this machine cannot do is no fault that anybody could mend here.
            if not result.contained and not lacking:
                problems.append(f"{kind}: untrusted code {result.name}: {result.how}")
    return problems


def _machine(table: Table) -> None:
    table.add_row("CPU cores", str(len(os.sched_getaffinity(0))), "")
    found = _gpus()
    for number, gpu in enumerate(found):
        table.add_row(f"GPU {number}", gpu, "")
    if not found:
        table.add_row("GPU", "none", "kernels are interpreted, latencies are modelled estimates")
    for key in KEYS:
        given = bool(os.environ.get(key))
        table.add_row(key, "set" if given else "not set", "" if given else "only needed for `models:` of that provider")


def _gpus() -> list[str]:
    """Names from the driver's own tool: no CUDA context is made for a look."""
    return driver_says("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
