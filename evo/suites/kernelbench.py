"""The levels of KernelBench as suites: problems in PyTorch, whose kernels start from what torch.compile makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from evo.errors import TaskError
from evo.suites.base import Against, Described, Problem, Suite, Tools, digest_of, problem_file
from evo.suites.families import family_of
from evo.suites.kernelbench_problems import ENTRY, ModelCall, Setting, make_model, read_problem, run_problem, shapes_of
from evo.suites.kernelbench_problems import Problem as ReadProblem
from evo.suites.kernelbench_sizes import reduced
from evo.suites.specs import case_to_json, cases_from_json, literal
from evo.suites.torch_reference import mutated_by
from evo.tasks.base import Task, Tolerance

LARGER = 1 << 24
"""Elements of a small case where none of few can be found: a GPU checks it, the interpreter does not."""


class _KernelBench(Suite):
    """What the levels have in common.

    Attributes:
        level: Number.
    """

    level: ClassVar[int]
    against = Against.TORCH
    generated = True
    speedup = (
        "eager's time over ours, of calls; fast_p is the share of all problems that are correct and more than p times as fast"
    )

    def problems(self, root: Path) -> tuple[Problem, ...]:
        """See `Suite`."""
        folder = f"KernelBench/level{self.level}"
        found = [path for path in (root / folder).glob("*.py") if re.match(r"\d+_", path.name)]
        if not found:
            action = f"give the root of a checkout of KernelBench, which holds {folder}"
            raise TaskError(str(root), given=f"no problems in {folder}", action=action)
        return tuple(self._problem(folder, path) for path in sorted(found, key=lambda path: int(path.name.split("_")[0])))

    def _problem(self, folder: str, path: Path) -> Problem:
        family, gain = family_of(path.stem)
        number = path.name.split("_")[0]
        return Problem(f"kernelbench_{self.level}_{number}", path.stem.strip("_"), f"{folder}/{path.name}", family, gain)

    def describe(self, root: Path, problem: Problem, tools: Tools) -> Described:
        """See `Suite`."""
        path = root / problem.file
        read, constants, gpu_only = _reduced(path)
        small, training = read.small[0], read.training
        mutated = mutated_by(ModelCall(small.model), [small.case], problem.file)
        if mutated:
            raise TaskError(
                problem.file, given=f"a model that updates its argument {mutated[0]}", allowed="inputs that stay as they are"
            )
        words = " ".join(problem.title.split("_")[1:])
        title = f"{words} of KernelBench, level {self.level}, number {problem.title.split('_')[0]}"
        spec = {
            "name": problem.name,
            "description": f"{title}, in the dtypes of its inputs; parameters follow the inputs.",
            "kind": problem.family,
            "constants": {name: list(value) if isinstance(value, tuple) else value for name, value in constants.items()},
            "one_model": same_model(small, training),
            "small": [case_to_json(setting.case) for setting in read.small],
            "training": [case_to_json(training.case)],
        }
        text = (
            f'"""{problem.title} of {self.title} as a task."""\n\nfrom evo.suites.kernelbench import problem_task\n\n'
            f"TASK = problem_task(\n    __file__,\n    {problem.file!r},\n    {digest_of(path)!r},\n    {literal(spec)},\n)\n"
        )
        return Described(text, read.notes, gpu_only)

    def own_speedup(self, theirs_us: Sequence[float], ours_us: Sequence[float]) -> float:
        """Eager over ours; there is one size."""
        return theirs_us[0] / ours_us[0]


class KernelBench1(_KernelBench):
    """Single operators."""

    name, title, level = "kernelbench-1", "KernelBench level 1", 1


class KernelBench2(_KernelBench):
    """Several operators in a row."""

    name, title, level = "kernelbench-2", "KernelBench level 2", 2


class KernelBench3(_KernelBench):
    """Whole networks."""

    name, title, level = "kernelbench-3", "KernelBench level 3", 3


def problem_task(task_file: str, file: str, digest: str, spec: Mapping[str, Any]) -> Task:
    """The task of a problem; what task files call.

    Raises:
        TaskError: The file is missing or changed.
    """
    path = problem_file(task_file, file, digest)
    small, training = (cases_from_json(spec[kind]) for kind in ("small", "training"))
    constants = {name: tuple(value) if isinstance(value, list) else value for name, value in spec["constants"].items()}
    whole = _call(path, {})
    reference: ModelCall | _ByShapes = whole
    if not spec["one_model"]:
        narrow = _call(path, constants)
        reference = _ByShapes({**{shapes_of(case.arguments): narrow for case in small}, shapes_of(training[0].arguments): whole})
    return Task(
        name=spec["name"],
        description=spec["description"],
        entry=ENTRY,
        reference=reference,
        training_cases=training,
        held_out_cases=(),
        small_cases=small,
        starting_kernels=(),
        tolerance=Tolerance(),
        oracle=spec.get("oracle", "pytorch64"),
        kind=spec["kind"],
    )


class _ByShapes:
    """The model of whichever case has the shapes that it is called with."""

    def __init__(self, calls: Mapping[tuple[Any, ...], ModelCall]) -> None:
        self._calls = calls

    def __call__(self, *arguments: Any) -> Any:
        """See `ModelCall`."""
        return self._calls[shapes_of(arguments)](*arguments)

    def bound(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """See `ModelCall`."""
        return self._calls[shapes_of(arguments)].bound(arguments)

    def split(self, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """See `ModelCall`."""
        return self._calls[shapes_of(arguments)].split(arguments)


def _call(path: Path, constants: Mapping[str, object]) -> ModelCall:
    """The model of a problem with some constants. It is made on the device without memory, since the task gives its parameters; where its
    constructor or its buffers need values, on the CPU."""
    module = run_problem(path, constants)
    try:
        with torch.device("meta"):
            model = make_model(module)
    except Exception:  # noqa: BLE001  whatever a constructor does that needs values; on the CPU it may well work
        model = make_model(module)
    if any(item.is_meta for item in model.buffers()):
        model = make_model(module)
    return ModelCall(model.requires_grad_(False))


def _reduced(path: Path) -> tuple[ReadProblem, Mapping[str, object], str]:
    """Read with smaller constants, these, and why it cannot be checked without a GPU."""
    as_it_is = read_problem(path, [])
    try:
        return *reduced(path, as_it_is=as_it_is), ""
    except TaskError:
        return *reduced(path, LARGER, as_it_is), "no constants make a case of few elements, which the interpreter would need"


def same_model(one: Setting, other: Setting) -> bool:
    """Whether two settings have the same model: sizes of inputs differ alone."""
    return str(one.model) == str(other.model) and _traits(one.model) == _traits(other.model)


def _traits(model: torch.nn.Module) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    plain = {key: value for key, value in vars(model).items() if isinstance(value, int | float | str | tuple)}
    return [tuple(item.shape) for item in model.parameters()], plain
