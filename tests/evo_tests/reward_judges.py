"""Judges of rewards for tests: the real one without Ray in between, and one that says what it was told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from evo.cluster.judging import Judged, Judging, Submission
from evo.evaluation.settings import EvaluationSettings

DEADLINE_S = 6.0


def interpreting(deadline_s: float = DEADLINE_S, total_s: float = 120.0) -> Judging:
    """On this machine's CPU."""
    settings = EvaluationSettings(
        target="cuda:90", tune_trials=0, start_tune_trials=0, trace_deadline_s=deadline_s, run_deadline_s=deadline_s
    )
    return Judging("cpu:cuda:90", settings, total_s)


class Here:
    """Two at a time, in this process."""

    def __init__(self, judging: Judging) -> None:
        self._judging = judging

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judged]:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(self._judging.judge, submissions))


class Told:
    """Answers by a function, and remembers what it was asked."""

    def __init__(self, answer: Callable[[Submission], Judged]) -> None:
        self._answer = answer
        self.asked: list[Submission] = []

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judged]:
        self.asked += submissions
        return [self._answer(item) for item in submissions]


def reply_of(source: str) -> str:
    """As a model is asked to answer."""
    return f"Strategy: it is faster.\n\n```python\n{source}```\n"
