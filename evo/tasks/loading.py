"""Loads a task by name, module or path, and checks it so that a broken one is refused in one clear line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from evo.errors import TaskError
from evo.knobs import read_knobs
from evo.records import content_id
from evo.syntax import module_tree
from evo.tasks.base import JUDGED_DTYPES, Case, Task, TensorSpec, Tolerance
from evo.tasks.inputs import Inputs, make_inputs, to_float64
from evo.tasks.names import builtin_tasks, check_reference, is_path, task_modules
from evo.tasks.narrowing import narrowings
from evo.tasks.text import reference_source, task_text

__all__ = ["builtin_tasks", "check_task", "load_task", "reference_source", "starting_sources", "task_text"]

_FIELDS = {cls.__name__: tuple(field.name for field in dataclasses.fields(cls)) for cls in (Task, Case, TensorSpec, Tolerance)}


def load_task(reference: str, base: Path | None = None, *, check: bool = True) -> Task:
    """Loads and checks a task.

    Args:
        reference: A builtin name (``softmax``), a path of a Python file, or a dotted module; it must define `TASK`.
        base: Folder that relative paths start from; the working directory if None.
        check: See `check_task`; processes of an evaluator are given tasks that whoever began the run has checked.

    Raises:
        TaskError: No such task, or it is broken; see `check_task`.
    """
    check_reference(reference, base)
    if reference in builtin_tasks():
        module = importlib.import_module(task_modules()[reference])
    elif is_path(reference):
        module = _run_file((base or Path.cwd()) / Path(reference).expanduser())
    else:
        module = _import_dotted(reference)
    where = str(module.__file__)
    task = getattr(module, "TASK", None)
    if task is None:
        raise TaskError(where, given="no TASK", action="define TASK = Task(...) from evo.tasks.base at module level")
    if not isinstance(task, Task):
        raise TaskError(where, given=f"TASK of type {type(task).__name__}", allowed="an evo.tasks.base.Task")
    task = dataclasses.replace(task, path=Path(where).resolve())
    if check:
        check_task(task)
    return task


def check_task(task: Task) -> None:
    """Checks starting kernels without running them, and runs the reference on CPU tensors of every small case.

    Raises:
        TaskError: A starting kernel is missing or lacks the entry, or the reference fails, returns something else than
            tensors, modifies its arguments undeclared, or does not depend on its inputs.
    """
    sources = starting_sources(task)
    for name, source in zip(_labels(task), sources, strict=True):
        _check_kernel(task, name, source)
    for position in task.mutates:
        for case in task.cases:
            if not (0 <= position < len(case.arguments) and isinstance(case.arguments[position], TensorSpec)):
                raise TaskError(f"{_where(task)}: mutates", given=position, allowed=f"positions of tensors in case {case.name}")
    cases = sorted(task.small_cases, key=_case_size)
    for case in cases:
        _check_reference(task, case)
    # A constant passes any test of such a task, so a search on it would find just that.
    if any(map(_is_random, cases)) and not any(_depends_on_inputs(task, case) for case in cases):
        where = f"{_where(task)}: reference on case {cases[-1].name}"
        raise TaskError(where, given="equal outputs for different inputs", action="return something that depends on the inputs")


def starting_sources(task: Task) -> tuple[str, ...]:
    """Source text of every starting kernel.

    Raises:
        TaskError: A file is missing or not readable as UTF-8.
    """
    sources = []
    for item in task.starting_kernels:
        if "\n" in item:
            sources.append(item)
            continue
        path = (task.path.parent if task.path else Path.cwd()) / item
        try:
            sources.append(path.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            missing = f"there is no {path}" if isinstance(error, FileNotFoundError) else f"{path} cannot be read ({_line(error)})"
            action = f"{missing}; paths are relative to the task file"
            raise TaskError(f"{_where(task)}: starting_kernels", given=item, action=action) from error
    return tuple(sources)


def _run_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"triton_evolve_task_{content_id(str(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(str(path), given="not a Python file", allowed="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Registered while it runs: dataclasses and pickling in the task file look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        action = _nearest_field(error) or "the file must import without errors"
        raise TaskError(str(path), given=_line(error), action=action) from error
    return module


def _import_dotted(reference: str) -> ModuleType:
    try:
        module = importlib.import_module(reference)
    except Exception as error:
        raise TaskError(f"task {reference}", given=_line(error), action="the module must import without errors") from error
    if module.__file__ is None:
        raise TaskError(f"task {reference}", given="a package without a file", allowed="a module that defines TASK")
    return module


def _check_kernel(task: Task, name: str, source: str) -> None:
    where = f"{_where(task)}: starting kernel {name}"
    try:
        tree = module_tree(source)
        read_knobs(source)
    except (SyntaxError, ValueError) as error:
        raise TaskError(where, given=_line(error), action="mend the kernel module") from error
    if task.entry not in set(_top_level_names(tree.body)):
        raise TaskError(where, given=f"no {task.entry}", action=f"define the entry {task.entry}, or change entry in the task")


def _top_level_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)


def _check_reference(task: Task, case: Case) -> None:
    where = f"{_where(task)}: reference on case {case.name}"
    try:
        inputs = make_inputs(task, case, 0, "cpu")
    except (RuntimeError, MemoryError) as error:
        raise TaskError(where, given=_line(error), action="the inputs of a small case must fit in memory") from error
    results = _call(task, inputs, where)
    for item in results:
        if str(item.dtype).removeprefix("torch.") not in JUDGED_DTYPES:
            raise TaskError(where, given=f"an output of {item.dtype}", allowed=", ".join(JUDGED_DTYPES))
    if task.oracle == "pytorch64":
        wide = _call(task, to_float64(inputs), f"{where} in float64")
        if [item.shape for item in wide] != [item.shape for item in results]:
            raise TaskError(f"{where} in float64", given="other shapes than in the task's dtypes")
        if any(a.dtype.is_floating_point and b.dtype != torch.float64 for a, b in zip(results, wide, strict=True)):
            places = "; ".join(narrowings(task))
            raise TaskError(
                f"{where} in float64",
                given="an output that is not float64" + (f" (it narrows at {places})" if places else ""),
                action="widen with x.to(torch.promote_types(x.dtype, torch.float32)), not with .float()",
            )


def _depends_on_inputs(task: Task, case: Case) -> bool:
    where = f"{_where(task)}: reference on case {case.name}"
    results = [_call(task, make_inputs(task, case, seed, "cpu"), where) for seed in (0, 1)]
    return any(not torch.equal(a, b) for a, b in zip(*results, strict=False))


def _call(task: Task, inputs: Inputs, where: str) -> list[torch.Tensor]:
    arguments: tuple[Any, ...] = inputs.clone().arguments
    before = [item.detach().clone() if isinstance(item, torch.Tensor) else item for item in arguments]
    parameters: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
    try:
        # References may write in place into leaves that ask for a gradient only without autograd.
        with torch.no_grad():
            result = task.reference(*parameters, *arguments)
    except (Exception, SystemExit) as error:
        raise TaskError(where, given=_line(error), action="the reference must run on CPU tensors of every small case") from error
    for position, (old, new) in enumerate(zip(before, arguments, strict=True)):
        changed = isinstance(old, torch.Tensor) and not torch.equal(old.nan_to_num(), new.nan_to_num())
        if changed and position not in task.mutates:
            raise TaskError(where, given=f"argument {position} modified", action=f"copy it first, or add {position} to mutates")
    tensors = _tensors(result, where) + [arguments[position] for position in task.mutates]
    if not tensors:
        raise TaskError(where, given="no output", allowed="a tensor, a tuple, list or dict of tensors, or mutated arguments")
    return tensors


def _tensors(value: Any, where: str) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu":
            given = f"a tensor of layout {value.layout} on {value.device}"
            raise TaskError(where, given=given, allowed="dense tensors on the device of the inputs")
        return [value.detach()]
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item, where)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item, where)]
    raise TaskError(where, given=f"an output of type {type(value).__name__}", allowed="tensors, or tuples, lists, dicts of them")


def _is_random(case: Case) -> bool:
    return any(isinstance(item, TensorSpec) and item.distribution not in ("zeros", "ones") for item in case.arguments)


def _case_size(case: Case) -> int:
    return sum(item.numel for item in case.arguments if isinstance(item, TensorSpec))


def _labels(task: Task) -> tuple[str, ...]:
    return tuple(f"{n} (inline)" if "\n" in item else item for n, item in enumerate(task.starting_kernels, 1))


def _where(task: Task) -> str:
    return str(task.path or f"task {task.name}")


def _nearest_field(error: BaseException) -> str:
    """What to write instead of a field that there is none of; empty for other errors."""
    named = re.fullmatch(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'.*", str(error), re.DOTALL)
    if not isinstance(error, TypeError) or named is None or named[1] not in _FIELDS:
        return ""
    near = difflib.get_close_matches(named[2], _FIELDS[named[1]], 1)
    return f"did you mean {near[0]}?" if near else f"fields of {named[1]}: {', '.join(_FIELDS[named[1]])}"


def _line(error: BaseException) -> str:
    """The error in one line, with the line number of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} in line {error.lineno}: {error.msg}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
