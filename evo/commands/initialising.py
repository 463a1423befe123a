"""`triton-evolve init`: writes a task file from a reference in PyTorch, an example of its inputs and one run of it."""

from __future__ import annotations

import keyword
import os
import re
from dataclasses import dataclass
from pathlib import Path

import typer

from evo.errors import InputError, TaskError
from evo.initialising.deriving import derive
from evo.initialising.reading import Given, checked_count, line_of, read_inputs, read_reference
from evo.initialising.writing import task_file_text
from evo.tasks.loading import load_task
from evo.tracing.tracer import lint


@dataclass(frozen=True)
class InitOptions:
    """What the command line gives.

    Attributes:
        reference: ``FILE:NAME``.
        inputs: Example inputs in words, instead of those of the file's `get_inputs`.
        kernel: ``FILE:NAME`` of a kernel's wrapper to start from.
        name: Of the task.
        out: File to write.
    """

    reference: str | None
    inputs: str | None = None
    kernel: str | None = None
    name: str | None = None
    out: Path | None = None


def init_command(options: InitOptions) -> int:
    """Writes the file and says what to do next.

    Returns:
        0.

    Raises:
        InputError: Something given cannot be used, the reference fails on its inputs, or the file exists.
    """
    if options.reference is None:
        action = "give the operator in PyTorch as well: what a kernel computes is judged against that"
        raise InputError("--reference", given="none", allowed="FILE:NAME, such as model.py:Model", action=action)
    given, own = read_reference(options.reference)
    if options.inputs is None and own is None:
        action = 'give --inputs, such as "f32[1024,512], i64[1024], 3", or a function get_inputs in the file'
        raise InputError(f"{given.path}: {given.name}", given="no inputs", action=action)
    arguments = read_inputs(options.inputs) if options.inputs is not None else own or ()
    names = checked_count(given, arguments)
    task = options.name or _identifier(given)
    if not task.isidentifier() or keyword.iskeyword(task):
        raise InputError("--name", given=task, allowed="a name as Python has them, such as fused_norm")
    out = options.out or Path(f"{task}_task.py")
    _check_free(out)
    kernel = _kernel(options.kernel, out, stateful=bool(given.state)) if options.kernel is not None else None
    derived = derive(given, arguments)
    stateful = bool(given.state)
    entry = kernel[1] if kernel else given.name if stateful else _entry(given)
    text = task_file_text(given, names, derived, task=task, kernel=kernel, entry=entry)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: {out}", given=error.strerror, action="give a file in a folder that you may write to") from error
    try:
        loaded = load_task(str(out.resolve()))
    except TaskError:
        typer.echo(f"{out}: written, but not a task yet", err=True)
        raise
    cases = (
        f"{len(loaded.training_cases)} training, {len(loaded.held_out_cases)} held-out and {len(loaded.small_cases)} small cases"
    )
    typer.echo(f"{out}: the task {task}, {cases}; look at the lines marked CHECK")
    typer.echo(f"next: triton-evolve doctor --task {out}")
    return 0


def _check_free(out: Path) -> None:
    if out.exists():
        raise InputError(str(out), given="a file that exists", action="give another --out, or remove it")
    if out.suffix != ".py":
        raise InputError(f"--out: {out}", given="not a Python file", allowed="a file that ends in .py")
    if not out.parent.is_dir():
        raise InputError(f"--out: {out}", given="a folder that is not there", action="make it, or give another --out")


def _identifier(given: Given) -> str:
    name = given.name if given.name not in ("Model", "forward", "main") else given.path.stem
    text = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()
    return text if text.isidentifier() else f"task_{text}"


def _entry(given: Given) -> str:
    return "forward" if given.is_module else given.name


def _kernel(text: str, out: Path, *, stateful: bool) -> tuple[str, str]:
    """Path of a kernel module relative to the task file, and the name of its function; of its class where the task has parameters."""
    kind = "class that is made and called as the reference's is" if stateful else "function that launches the kernel"
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError("--kernel", given=text, allowed="FILE:NAME, such as kernel.py:softmax", action=f"name a {kind}")
    path = Path(place)
    if not path.is_file():
        raise InputError(f"--kernel: {path}", given="no such file")
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--kernel: {path}", given=line_of(error), allowed="a file of text in UTF-8") from error
    found = re.search(rf"^(def|class) {name}\b", source, re.MULTILINE)
    if found is None or (found[1] == "class" and not stateful):
        what = "no such name" if found is None else "a class"
        raise InputError(f"--kernel: {path}: {name}", given=what, action=f"name the {kind}")
    problem = lint(source, name)
    if problem is not None:
        raise InputError(f"--kernel: {path}", given=problem.message)
    return os.path.relpath(path.resolve(), out.resolve().parent), name
