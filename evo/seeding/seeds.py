"""Starting kernels from a task's reference alone: runs the compiler in a process of its own, and writes the modules."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import WorkerDied
from evo.seeding.warm import warm_process
from evo.tasks.base import Task
from operators.inductor import Entry, NotApplicableError, seed_module

DEADLINE_S = 180.0
_OF_A_FOLDER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
CAUGHT = 500
"""Characters of what a process said that ended without an answer."""


@dataclass(frozen=True)
class CompilerSeed:
    """What the compiler gave for a task.

    Attributes:
        form: ``triton``: all of it is Triton, products by templates or sums. ``extern``: products and convolutions are operators of torch.
        source: The module; empty where there is none.
        failure: Why there is none, in one line.
        operators: Of torch that it calls besides what every task allows.
    """

    form: str
    source: str = ""
    failure: str = ""
    operators: tuple[str, ...] = ()


def compiler_seeds(task: Task, target: str, *, deadline_s: float = DEADLINE_S) -> tuple[CompilerSeed, ...]:
    """Modules that do what a task's reference does, as Inductor writes them; no GPU is needed. Never raises because of the reference.

    Args:
        task: Loaded from a file, which a process of its own loads again.
        target: Key of `evo.tracing.targets.TARGETS` that code is generated for.
        deadline_s: Wall seconds for each form.

    Returns:
        The form in Triton and, where the task allows operators that do something else, the form with those.
    """
    seeds = [_seed(task, target, "template", deadline_s)]
    if task.allowed_operators:
        extern = _seed(task, target, "extern", deadline_s)
        if extern.failure or extern.operators:
            seeds.append(extern)
    return tuple(seeds)


def _seed(task: Task, target: str, products: str, deadline_s: float) -> CompilerSeed:
    form = "extern" if products == "extern" else "triton"
    if task.path is None:
        return CompilerSeed(form, failure="the task has no file")
    answer = _ask({"task": str(task.path), "target": target, "products": products}, deadline_s)
    if "failure" in answer:
        return CompilerSeed(form, failure=str(answer["failure"]))
    parameters = {name: (spec.shape, spec.dtype) for name, spec in task.parameters.items()} if task.form == "module" else None
    entry = Entry(task.entry, tuple(answer["names"]), parameters, f"{task.name}, as torch.compile writes its reference.")
    try:
        made = seed_module(answer["forms"], answer["library"], entry)
    except (NotApplicableError, SyntaxError) as error:
        return CompilerSeed(form, failure=" ".join(str(error).split()))
    wanting = sorted(made.operators - task.operators)
    if wanting:
        return CompilerSeed(form, failure=f"it calls {', '.join(wanting)}, which the task does not allow")
    return CompilerSeed(form, made.source, operators=tuple(sorted(made.operators)))


def _ask(request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Runs `evo.seeding.child` in a folder that is gone afterwards, with all that it started."""
    with tempfile.TemporaryDirectory(prefix="triton-evolve-inductor-", ignore_cleanup_errors=True) as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(request), encoding="utf-8")
        environment = _environment(folder)
        try:
            with warm_process({**environment, **dict.fromkeys(_OF_A_FOLDER, tempfile.gettempdir())}) as process:
                status = process.call(question, answer, environment, deadline_s)
        except WorkerDied as error:
            return {"failure": str(error)}
        if status is None:
            return {"failure": f"Inductor took more than {deadline_s:g} s"}
        if not answer.exists():
            text = " ".join(Path(folder, "said.txt").read_text(encoding="utf-8", errors="replace").split())[-CAUGHT:]
            return {"failure": f"Inductor's process ended with status {status}: {text}"}
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _environment(folder: str) -> dict[str, str]:
    """Caches and temporary files in the folder, no pool of compiling processes, and our packages as they are imported here."""
    path = [*_paths(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
        "TRITON_CACHE_DIR": str(Path(folder, "triton")),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _paths() -> Sequence[str]:
    """Folders that tasks and our packages are imported from, made absolute as the child works elsewhere."""
    return [str(Path(item).resolve()) for item in sys.path]
