"""Reads TritonBench's files, from a folder that the user names: the calls that a file's scripts make; none of its code lives here.

A file has its kernels above one line of exactly 146 ``#``, and below it a test that calls them. The test is run in a sandbox, which
notes each call with its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evo.errors import TaskError, WorkerDied
from evo.suites.gone_modules import without_gone_modules
from evo.suites.recording import Recording
from evo.syntax import module_tree
from evo.tasks.base import Argument, Case, Task, TensorSpec

SEPARATOR = "#" * 146
ENTRY = "suite_entry"
"""What every module here defines: a function (or class) that makes one kind of call of the file's test."""


@dataclass(frozen=True)
class SuiteFile:
    """A file in its two parts, kernels and test, and the modules of an older Triton that the kernels import, replaced."""

    path: Path
    kernels: str
    test: str
    gone: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name without the ending."""
        return self.path.stem


@dataclass(frozen=True)
class Called:
    """One kind of call that a test makes: the module that makes it, the task whose training cases are its calls, and what is called."""

    label: str
    source: str
    task: Task


@dataclass(frozen=True)
class Recorded:
    """What a file's test does.

    Attributes:
        called: Its calls that launch kernels.
        unread: Calls that no task says, and why.
        module: What the kernel part raised on import, else empty.
        test: What ended the test before its end, else empty.
    """

    called: tuple[Called, ...]
    unread: tuple[tuple[str, str], ...]
    module: str
    test: str


def suite_files(folder: Path) -> list[Path]:
    """The files of the suite, sorted.

    Raises:
        TaskError: There are none.
    """
    found = sorted(folder.glob("*.py"))
    if not found:
        action = "give the folder TritonBench_G_v1 of a checkout"
        raise TaskError(str(folder), given="no *.py files", action=action)
    return found


def read_file(path: Path) -> SuiteFile:
    """Splits a file.

    Raises:
        TaskError: It has no separator or several, or a part does not parse.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        places = [place for place, line in enumerate(lines) if line.strip() == SEPARATOR]
        if len(places) != 1:
            raise TaskError(str(path), given=f"{len(places)} lines of 146 #", allowed="one, between kernels and test")
        kernels, test = ("\n".join(part) + "\n" for part in (lines[: places[0]], lines[places[0] + 1 :]))
        kernels, gone = without_gone_modules(kernels)
        module_tree(test)
    except (OSError, SyntaxError, ValueError) as error:
        raise TaskError(str(path), given=f"{type(error).__name__}: {error}", action="both parts must be Python") from error
    return SuiteFile(path, kernels, test, gone)


@dataclass(frozen=True)
class CallGroup:
    """Calls of one form, that differ in tensors and numbers alone.

    Attributes:
        label: What is called.
        text: Source of the entry that makes them.
        form, parameters, backward: See `evo.tasks.base.Task`.
        odd: Whether it gives what is no tensor, too, which a task leaves out.
        calls: Arguments of each, with the script that made it (``driver`` or ``perf``).
    """

    label: str
    text: str
    form: Literal["function", "module"]
    parameters: Mapping[str, TensorSpec]
    backward: bool
    odd: bool
    calls: tuple[tuple[str, tuple[Argument, ...]], ...]


def call_groups(answer: Mapping[str, Any]) -> tuple[tuple[CallGroup, ...], tuple[tuple[str, str], ...]]:
    """The calls in a recording's answer, by form; and those that no task says, with why."""
    groups: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    unread: list[tuple[str, str]] = []
    for call in answer["calls"]:
        problem = call["unread"] or _unfit(call)
        if problem:
            unread.append((call["label"], problem))
        else:
            groups.setdefault((call["text"], str(call["parameters"]), call["backward"]), []).append(call)
    return tuple(map(_group, groups.values())), tuple(unread)


def recorded_calls(recording: Recording, file: SuiteFile) -> Recorded:
    """What the file's test calls, as tasks without a reference: they say what is called, and on what. Never raises for a bad file."""
    try:
        answer = recording.answer(file.kernels, file.test)
    except WorkerDied as error:
        return Recorded((), (), "", str(error))
    groups, unread = call_groups(answer)
    called = tuple(_called(file, number, group) for number, group in enumerate(groups))
    return Recorded(called, unread, answer["module"], answer["driver"])


def _unfit(call: Mapping[str, Any]) -> str:
    """Why the arguments are none of a task, empty if they are."""
    try:
        for item in [*call["arguments"], *call["parameters"].values()]:
            _argument(item)
    except ValueError as error:
        return str(error)
    return ""


def _group(calls: Sequence[Mapping[str, Any]]) -> CallGroup:
    first = calls[0]
    return CallGroup(
        first["label"],
        first["text"],
        first["form"],
        {name: _specified(item) for name, item in first["parameters"].items()},
        first["backward"],
        any(call["odd"] for call in calls),
        tuple((call["script"], tuple(map(_argument, call["arguments"]))) for call in calls),
    )


def _called(file: SuiteFile, number: int, group: CallGroup) -> Called:
    given = [arguments for _, arguments in group.calls]
    task = Task(
        name=f"tritonbench_{file.name}_{number}",
        description=f"{group.label} of {file.path.name} of TritonBench-G, as its test calls it.",
        entry=ENTRY,
        reference=_unjudged,
        training_cases=tuple(plain_case(f"call_{place}", arguments) for place, arguments in enumerate(given)),
        held_out_cases=(),
        small_cases=(plain_case("small", given[0]),),
        starting_kernels=(),
        form=group.form,
        parameters=group.parameters,
        backward=group.backward,
        kind="tritonbench",
    )
    return Called(group.label, module_text(file.kernels, group.text), task)


def module_text(kernels: str, entry: str) -> str:
    """A kernel part with an entry."""
    return f"{kernels}\n\nimport torch\nimport triton\nimport triton.language\n\n\n{entry}"


def plain_case(name: str, arguments: Sequence[Argument], outputs: int = 0) -> Case:
    """A case whose operations are not known, with bytes of its outputs."""
    moved = sum(item.nbytes for item in arguments if isinstance(item, TensorSpec)) + outputs
    return Case(name, tuple(arguments), max(moved, 1), 0)


def _argument(item: Any) -> Argument:
    return _specified(item) if isinstance(item, dict) else item


def _specified(item: Mapping[str, Any]) -> TensorSpec:
    strides = None if item["strides"] is None else tuple(item["strides"])
    return TensorSpec(**{**item, "shape": tuple(item["shape"]), "strides": strides})


def _unjudged(*arguments: Any) -> Any:
    raise TaskError(
        "a call of TritonBench's tests", given="no reference", action="trace it; there is nothing to judge results by"
    )
