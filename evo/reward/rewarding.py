"""Completions to the parts of their rewards, on a pool of evaluators that is started when the first ones come."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evo.cluster.judging import Judged, Submission
from evo.cluster.judging_pool import JudgingPool, PoolSettings
from evo.reward.formula import Parts, parts_of
from evo.tasks.names import is_path

LOG = logging.getLogger("triton_evolve.reward")

Message = Mapping[str, Any]
Completion = str | Sequence[Message]
"""Text, or the messages of a conversation, of which the last one is the model's."""


class Judges(Protocol):
    """Who judges; `evo.cluster.judging_pool.JudgingPool` for one."""

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judged]:
        """A judgement per submission, in order."""
        ...


class Rewarding:
    """Thread-safe; nothing starts before the first call.

    Args:
        settings: Where and how completions are judged.
        judges: Instead of a pool of `settings`.
    """

    def __init__(self, settings: PoolSettings, judges: Judges | None = None) -> None:
        self._settings = settings
        self._judges = judges
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def parts(self, submissions: Sequence[Submission]) -> list[Parts | str]:
        """What each reward is made of, or why this machine could not judge it.

        Raises:
            InputError: No evaluator can be had here, at the first call.
        """
        judged = self._pool().judge_all(submissions)
        for item in judged:
            if item.evaluation is None and item.problem not in self._told:
                self._told.add(item.problem)
                LOG.warning("a completion could not be judged and has no reward: %s", item.problem)
        return [item.problem if item.evaluation is None else parts_of(item.evaluation) for item in judged]

    def _pool(self) -> Judges:
        with self._lock:
            if self._judges is None:
                pool = JudgingPool(self._settings)
                atexit.register(pool.close)
                if pool.device != "gpu":
                    LOG.warning("no GPU: kernels are interpreted, and the part of speed is the same for every correct one")
                self._judges = pool
            return self._judges


def submission_of(
    completion: Completion,
    task: str,
    baseline: str | None = None,
    shown: Sequence[str] | None = None,
    shown_plans: Sequence[str] | None = None,
    *,
    tasks: str = "",
) -> Submission:
    """A completion with the columns of its row.

    Args:
        completion, task, baseline, shown, shown_plans: See `evo.reward.trl.TritonReward`.
        tasks: Folder that relative paths of tasks start from; empty for the current one.
    """
    reference = str(Path(tasks, task).expanduser().resolve()) if is_path(task) else task
    return Submission(reference, text_of(completion), baseline or "", tuple(_listed(shown)), tuple(_listed(shown_plans)))


def text_of(completion: Completion) -> str:
    """What the model said."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    return content if isinstance(content, str) else ""


def _listed(values: Sequence[str] | None) -> list[str]:
    return [] if values is None else list(values)  # arrays of numpy, as verl has them, have no truth value
