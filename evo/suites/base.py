"""The contract of a suite: which problems a checkout has, and how one of them becomes a task file.

To add one: a file with one public subclass of `Suite`, named in `evo.suites.registry`, or in a package of its own through the entry
point group ``triton_evolve.suites``. A suite reads a checkout that the user names and copies none of it: what a task file holds of it are
shapes, and the path and digest of the problem's file.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from evo.errors import TaskError
from evo.suites.recording import Recording
from evo.tracing.workbench import Workbench

CHECKOUT = "checkout"
"""Name of the link, in the folder of a suite's run, to the checkout: task files find it from their own place, so that the folder can be
carried to another machine."""


class Against(StrEnum):
    """What a suite compares with: the problem's own kernel, or PyTorch (where compilers are compared with as well)."""

    KERNEL = "kernel"
    TORCH = "torch"


@dataclass(frozen=True)
class Problem:
    """One problem of a suite.

    Attributes:
        name: Of its task, an identifier.
        title: As the suite calls it.
        file: Path of its file, relative to the checkout.
        family: Kind of kernel, see `evo.suites.families`.
        gain: What a search is expected to gain; problems with more come first.
    """

    name: str
    title: str
    file: str
    family: str
    gain: float


@dataclass(frozen=True)
class Described:
    """A problem as a task.

    Attributes:
        text: Of the task file.
        notes: Liberties that were taken, and what was left out.
        gpu_only: Why it cannot be checked without a GPU; empty where it can.
    """

    text: str
    notes: tuple[str, ...] = ()
    gpu_only: str = ""


@dataclass(frozen=True)
class Tools:
    """What describing a problem may use: a sandbox in which tests are run and noted, and processes that trace."""

    recording: Recording
    bench: Workbench


class Suite(ABC):
    """See the module's docstring.

    Attributes:
        name: Of the command line.
        title: For people.
        against: See `Against`.
        speedup: The suite's own definition of a problem's speedup, in words; `own_speedup` computes it.
        target: What its kernels are compiled for wherever they run; None: for the device at hand.
        generated: Starting kernels come from torch.compile; else they are the suite's own.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    against: ClassVar[Against]
    speedup: ClassVar[str]
    target: ClassVar[str | None] = None
    generated: ClassVar[bool] = False

    @abstractmethod
    def problems(self, root: Path) -> tuple[Problem, ...]:
        """The problems of a checkout, in the suite's order.

        Raises:
            TaskError: The checkout has another layout.
        """

    @abstractmethod
    def describe(self, root: Path, problem: Problem, tools: Tools) -> Described:
        """The task of a problem.

        Raises:
            TaskError: It cannot be one; says why.
        """

    def own_speedup(self, theirs_us: Sequence[float], ours_us: Sequence[float]) -> float:
        """A problem's speedup by the suite's own definition: the sum of the baseline's times over that of ours, over all sizes."""
        return sum(theirs_us) / sum(ours_us)


def digest_of(path: Path) -> str:
    """Of a file's content.

    Raises:
        TaskError: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise TaskError(str(path), given=error.strerror, action="give --suite-root of a complete checkout") from error


def problem_file(task_file: str, file: str, digest: str) -> Path:
    """The file of a problem, from the place of its task file.

    Raises:
        TaskError: It is not there, or it changed since the task was described.
    """
    path = Path(task_file).resolve().parents[2] / CHECKOUT / file
    if digest_of(path) != digest:
        raise TaskError(str(path), given="another file than the task was made of", action="restore it, or use another --store")
    return path
