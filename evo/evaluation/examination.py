"""The contract of an examination: a check of its own kind that an elite passes at verification, beside the rungs of the ladder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from evo.evaluation.tier import Candidate
from evo.records import Failure
from evo.tasks.base import Task


class Examination(ABC):
    """Looks at a verified candidate while nobody is timed, beside checks and other examinations. Owns its processes until `close`;
    thread-safe."""

    @abstractmethod
    def examine(self, task: Task, candidates: Sequence[Candidate]) -> tuple[str, ...] | Failure:
        """What was checked, or why the candidate is refused.

        Args:
            task: Whose kernel it is.
            candidates: The variant on its small, training and held-out cases, with binaries, in the configurations it is verified in.

        Returns:
            One entry per check for `evo.records.Evaluation.checks`, e.g. ``memcheck``; where a check cannot be applied on this
            machine, the reason after a colon, e.g. ``memcheck not applied: compute-sanitizer is not installed``. Or the failure, at
            stage VERIFY.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends processes. Idempotent."""
