"""The reward for TRL's trainers: a callable with the signature of their `reward_funcs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evo.cluster.judging_pool import PoolSettings
from evo.errors import InputError
from evo.reward.formula import Parts
from evo.reward.rewarding import Completion, Judges, Rewarding, submission_of


class TritonReward:
    """A reward for completions that hold a Triton module, judged by the evaluator of a search. See `evo.reward.formula`.

    Nothing starts before the first call. A completion that crashes, hangs or cheats gets 0; where this machine could not judge one, it
    gets None, which TRL takes as not applicable. No completion makes it raise.

    Args:
        settings: Where and how completions are judged.
        tasks: Folder of the data set, from which paths of task files start; empty for the current one.
        judges: Instead of a pool of `settings`.
    """

    __name__ = "triton_reward"  # by which trainers log it

    def __init__(self, settings: PoolSettings | None = None, *, tasks: str = "", judges: Judges | None = None) -> None:
        self._tasks = tasks
        self._rewarding = Rewarding(settings or PoolSettings(), judges)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        *,
        task: Sequence[str] | None = None,
        baseline: Sequence[str | None] | None = None,
        shown: Sequence[Sequence[str] | None] | None = None,
        shown_plans: Sequence[Sequence[str] | None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: object,
    ) -> list[float | None]:
        """One reward per completion.

        Args:
            prompts: Not looked at.
            completions: Text, or messages.
            task: Column: name or path of each completion's task. Needed.
            baseline: Column: source of the module that speed is measured against; none for the task's starting kernels.
            shown: Column: sources that the prompt showed as work to improve or mend, which are no answers.
            shown_plans: Column: plan hashes of those.
            log_extra, log_metric: Given by TRL; they are told each verdict, and the shares of what passed each part.
            columns: Others of the data set, not looked at.

        Raises:
            InputError: The data set has no column `task`, or no evaluator can be had here: said at the first call.
        """
        if task is None:
            raise InputError(
                "the data set",
                given="no column task",
                allowed="name or path of a task in each row",
                action="see docs/training.md",
            )
        nothing = [None] * len(completions)
        rows = zip(completions, task, baseline or nothing, shown or nothing, shown_plans or nothing, strict=True)
        parts = self._rewarding.parts([submission_of(*row, tasks=self._tasks) for row in rows])
        if log_extra is not None:
            log_extra("verdict", [item if isinstance(item, str) else item.reason or "passed" for item in parts])
        if log_metric is not None:
            for name, value in _shares(parts).items():
                log_metric(f"triton/{name}", value)
        return [None if isinstance(item, str) else item.reward for item in parts]


def _shares(parts: Sequence[Parts | str]) -> dict[str, float]:
    """Of all completions the judged ones, and of those the ones that passed each part."""
    known = [item for item in parts if isinstance(item, Parts)]
    found = {"judged": len(known) / max(1, len(parts))}
    if known:
        found["rule"] = sum(item.rule for item in known) / len(known)
        found["correct"] = sum(item.rule * item.execution for item in known) / len(known)
        found["measured"] = sum(item.measured for item in known) / len(known)
    return found
