"""Reads TritonBench-G, from a folder that the user names: the calls a file's test makes, as tasks; none of its code lives here.

A file has its kernels above one line of exactly 146 ``#``, and below it a test that calls them. The test is run in a sandbox, which
notes each call with its arguments. There is no reference to judge results by: these tasks say what is called, and on what.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import TaskError, WorkerDied
from evo.tasks.base import Argument, Case, Task, TensorSpec
from evo.tracing.sandbox import ForkServer, Limits

SEPARATOR = "#" * 146
ENTRY = "suite_entry"
"""What every module here defines: a function (or class) that makes one kind of call of the file's test."""
RECORDING_S = 90.0
"""Wall seconds that a file's test may take."""


@dataclass(frozen=True)
class SuiteFile:
    """A file in its two parts: kernels and test."""

    path: Path
    kernels: str
    test: str

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
        ast.parse(kernels)
        ast.parse(test)
    except (OSError, SyntaxError, ValueError) as error:
        raise TaskError(str(path), given=f"{type(error).__name__}: {error}", action="both parts must be Python") from error
    return SuiteFile(path, kernels, test)


class Recording:
    """Owns a sandbox in which tests run. Not thread-safe.

    Args:
        target: What the GPU claims to be, e.g. ``cuda:90``.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        preload = ("evo.suites.recording_child",)
        self._server = ForkServer("record", Limits(cpu_s=int(RECORDING_S)), preload=preload)

    def calls(self, file: SuiteFile) -> Recorded:
        """What the file's test calls. Never raises for a bad file."""
        request = {"source": file.kernels, "driver": file.test, "target": self._target}
        try:
            answer = self._server.call("evo.suites.recording_child:record", request, deadline_s=RECORDING_S)
        except WorkerDied as error:
            return Recorded((), (), "", str(error))
        return _read_answer(file, answer)

    def close(self) -> None:
        """Ends the sandbox."""
        self._server.close()


def _read_answer(file: SuiteFile, answer: Mapping[str, Any]) -> Recorded:
    groups: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    unread: list[tuple[str, str]] = []
    for call in answer["calls"]:
        problem = call["unread"] or _unfit(call)
        if problem:
            unread.append((call["label"], problem))
        else:
            key = (call["text"], str(call["parameters"]), call["backward"])
            groups.setdefault(key, []).append(call)
    called = tuple(_called(file, number, calls) for number, calls in enumerate(groups.values()))
    return Recorded(called, tuple(unread), answer["module"], answer["driver"])


def _unfit(call: Mapping[str, Any]) -> str:
    """Why the arguments are none of a task, empty if they are."""
    try:
        for item in [*call["arguments"], *call["parameters"].values()]:
            _argument(item)
    except ValueError as error:
        return str(error)
    return ""


def _called(file: SuiteFile, number: int, calls: list[Mapping[str, Any]]) -> Called:
    first = calls[0]
    cases = tuple(_case(f"call_{place}", call["arguments"]) for place, call in enumerate(calls))
    task = Task(
        name=f"tritonbench_{file.name}_{number}",
        description=f"{first['label']} of {file.path.name} of TritonBench-G, as its test calls it.",
        entry=ENTRY,
        reference=_unjudged,
        training_cases=cases,
        held_out_cases=(),
        small_cases=(_case("small", first["arguments"]),),
        starting_kernels=(),
        form=first["form"],
        parameters={name: _specified(item) for name, item in first["parameters"].items()},
        backward=first["backward"],
        kind="tritonbench",
    )
    return Called(
        first["label"], f"{file.kernels}\n\nimport torch\nimport triton\nimport triton.language\n\n\n{first['text']}", task
    )


def _case(name: str, arguments: list[Any]) -> Case:
    given = tuple(map(_argument, arguments))
    moved = sum(item.nbytes for item in given if isinstance(item, TensorSpec))
    return Case(name, given, max(moved, 1), 0)


def _argument(item: Any) -> Argument:
    return _specified(item) if isinstance(item, dict) else item


def _specified(item: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(**{**item, "shape": tuple(item["shape"]), "strides": tuple(item["strides"])})


def _unjudged(*arguments: Any) -> Any:
    raise TaskError(
        "a call of TritonBench's tests", given="no reference", action="trace it; there is nothing to judge results by"
    )
