"""Makes a problem of a suite ready for a search: a task file, checked, and starting kernels; or says why it cannot be run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from evo.errors import InputError, TaskError
from evo.evaluation.oracle import flatten_outputs
from evo.plain import Record
from evo.seeding.seeds import compiler_seeds
from evo.suites.base import Against, Described, Problem, Suite, Tools
from evo.suites.launched import HOSTED
from evo.suites.triton_reference import BeyondItsTensors
from evo.tasks.base import Case, Task
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task

TASK, READY, STARTS = "task.py", "ready.json", "start_*.py"
WIDE = "in float64"
"""Said of references that cannot be given float64; those are judged by what they compute in their own dtypes."""

INDEPENDENT = "its results do not depend on its inputs"
DRAWS = frozenset(
    f"aten.{name}" for name in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal_", "uniform_")
)
"""Operators of torch by which a wrapper makes inputs of its own."""

Stage = Literal["ready", "read", "checked", "started"]


@dataclass(frozen=True)
class Ready(Record):
    """What became of a problem before any search.

    Attributes:
        name: Of the problem.
        stage: ``ready``; or what it failed at: ``read`` as a task, ``checked`` (its reference on small cases), ``started`` (no kernel
            to start from).
        reason: Why, in one line.
        notes: Liberties that were taken.
        starts: How many starting kernels there are.
        cases: Small, scored and held-out ones.
        oracle: What kernels are judged by, see `evo.tasks.base.Task`.
        gpu_only: Why it cannot be checked without a GPU; empty where it can.
        seconds: That it took.
    """

    name: str
    stage: Stage
    reason: str = ""
    notes: tuple[str, ...] = ()
    starts: int = 0
    cases: tuple[int, ...] = ()
    oracle: str = ""
    gpu_only: str = ""
    seconds: float = 0.0

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Inverse of `to_json`."""
        return cls(**{**data, "notes": tuple(data["notes"]), "cases": tuple(data["cases"])})


def prepare(suite: Suite, root: Path, problem: Problem, folder: Path, tools: Tools, target: str) -> Ready:
    """Prepares a problem, once: what was made before is kept. Never raises because of the problem.

    Args:
        suite: The problem's.
        root: Of the checkout.
        problem: Which.
        folder: Of the problem; made where it is not there.
        tools: See `Tools`.
        target: That starting kernels are generated for.
    """
    known = read_ready(folder)
    if known is not None:
        return known
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted preparation left
    folder.mkdir(parents=True)
    begun = time.monotonic()
    made = _made(suite, root, problem, folder, tools, target)
    made = dataclasses.replace(made, reason=" ".join(made.reason.split())[:600], seconds=round(time.monotonic() - begun, 2))
    (folder / READY).write_text(json.dumps(made.to_json(), indent=1), encoding="utf-8")
    return made


def read_ready(folder: Path) -> Ready | None:
    """What became of a problem's preparation; None where there was none."""
    path = folder / READY
    return Ready.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def starts_of(folder: Path) -> tuple[str, ...]:
    """Sources of generated starting kernels, of a problem that is ready."""
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.glob(STARTS)))


def _made(suite: Suite, root: Path, problem: Problem, folder: Path, tools: Tools, target: str) -> Ready:
    try:
        described = suite.describe(root, problem, tools)
    except InputError as error:
        return Ready(problem.name, "read", _without(root, str(error)))
    except Exception as error:  # noqa: BLE001  files of others fail in ways that nobody foresees; named and counted
        return Ready(problem.name, "read", f"{type(error).__name__}: {error}")
    try:
        if suite.against is Against.KERNEL:
            (folder / TASK).write_text(described.text, encoding="utf-8")
            task = load_task(str(folder / TASK), check=False)
        else:
            task, described = _checked(described, folder)
    except TaskError as error:
        return Ready(problem.name, "checked", _without(folder, str(error)), described.notes)
    gpu_only = described.gpu_only
    if suite.against is Against.KERNEL:
        drawn = sorted(task.allowed_operators & DRAWS)
        found = interpreted(task, again=bool(drawn) or HOSTED in described.notes)
        gpu_only = found.problem
        if gpu_only == INDEPENDENT and drawn:
            reason = (
                f"it draws what it computes with itself, by {', '.join(drawn)}: nothing that it is given decides what it gives"
            )
            return Ready(problem.name, "checked", reason, described.notes)
        if found.beyond:
            task, described = _without_cases(described, folder, found.beyond)
    counts = (len(task.small_cases), len(task.training_cases), len(task.held_out_cases))
    common: dict[str, Any] = {"notes": described.notes, "cases": counts, "oracle": task.oracle, "gpu_only": gpu_only}
    if task.starting_kernels:
        return Ready(problem.name, "ready", starts=len(task.starting_kernels), **common)
    try:
        seeds = compiler_seeds(task, target)
    except Exception as error:  # noqa: BLE001  as above
        return Ready(problem.name, "started", f"{type(error).__name__}: {error}", **common)
    sources = [seed.source for seed in seeds if seed.source]
    for number, source in enumerate(sources):
        (folder / f"start_{number}.py").write_text(source, encoding="utf-8")
    if not sources:
        return Ready(problem.name, "started", "; ".join(seed.failure for seed in seeds), **common)
    return Ready(problem.name, "ready", starts=len(sources), **common)


@dataclass(frozen=True)
class Interpreted:
    """Whether a kernel that is its own reference can be checked without a GPU.

    Attributes:
        problem: Why not; empty if it runs under the interpreter, gives equal results on equal inputs, and others on others.
        beyond: Small cases in which it reads or writes beyond its tensors, where it does not in another.
    """

    problem: str
    beyond: tuple[str, ...] = ()


def interpreted(task: Task, *, again: bool = True) -> Interpreted:
    """Interprets the kernel in small cases, the smallest first, until one tells.

    Args:
        task: The kernel's.
        again: Whether it is run on equal inputs as well. A kernel that was traced twice alike, and whose wrapper draws no numbers, is
            launched alike, and what is launched is interpreted program by program: there is nothing left to compare.
    """
    beyond: dict[str, str] = {}
    compared = not again
    for case in sorted(task.small_cases, key=lambda case: case.bytes):
        try:
            first, other = (_results(task, case, seed) for seed in (0, 1))
            if not compared and not all(map(torch.equal, first, _results(task, case, 0))):
                return Interpreted("it gives other results on equal inputs")
            compared = True
        except BeyondItsTensors as error:
            beyond[case.name] = _line(str(error))
            continue
        except Exception as error:  # noqa: BLE001  as above: a kernel of others, whose results may fit nothing
            kind = "" if isinstance(error, TaskError) else f"{type(error).__name__}: "
            return Interpreted(_line(f"{kind}{error}"))
        if len(first) != len(other) or not all(map(torch.equal, first, other)):
            return Interpreted("", tuple(beyond))  # of one element, a softmax is always 1
    return Interpreted(next(iter(beyond.values()), INDEPENDENT))


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


def _without_cases(described: Described, folder: Path, names: Sequence[str]) -> tuple[Task, Described]:
    """The task without some small cases."""
    text = described.text.replace("{'name':", f"{{'left_out': {list(names)!r}, 'name':", 1)
    (folder / TASK).write_text(text, encoding="utf-8")
    notes = (*described.notes, f"left out are {', '.join(names)}, in which the suite's kernel touches memory beyond its tensors")
    return load_task(str(folder / TASK), check=False), Described(text, notes, described.gpu_only)


def _results(task: Task, case: Case, seed: int) -> list[torch.Tensor]:
    """As bits, so that NaN equals NaN."""
    arguments = make_inputs(task, case, seed, "cpu").arguments
    returned = flatten_outputs(task.reference(*arguments)).tensors
    found = [*returned, *(arguments[place] for place in task.mutates)]
    return [item.detach().contiguous().view(-1).view(torch.uint8) for item in found]


def _checked(described: Described, folder: Path) -> tuple[Task, Described]:
    """The task, loaded as every process will; judged by its reference as it is where that cannot be given float64."""
    file = folder / TASK
    file.write_text(described.text, encoding="utf-8")
    try:
        return load_task(str(file)), described
    except TaskError as error:
        if WIDE not in str(error):
            raise
        text = described.text.replace("{'name':", "{'oracle': 'reference', 'name':", 1)
        file.write_text(text, encoding="utf-8")
        notes = (
            *described.notes,
            "its reference cannot be given float64, so kernels are judged by what it computes in its own dtypes",
        )
        return load_task(str(file)), Described(text, notes, described.gpu_only)


def _without(folder: Path, text: str) -> str:
    """A message without the place of a folder, which says nothing and differs from machine to machine."""
    return re.sub(r"/\S*/site-packages/", "", text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", ""))
