"""The reward for verl: `compute_score` with the signature of its custom reward functions."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from evo.cluster.judging_pool import PoolSettings
from evo.errors import InputError
from evo.reward.formula import Parts
from evo.reward.rewarding import Rewarding, submission_of

_REWARDING: dict[PoolSettings, Rewarding] = {}
_LOCK = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    target: str = "auto",
    address: str | None = None,
    evaluators: int | str = "auto",
    deadline_s: float = 120.0,
    tasks: str = "",
    **others: object,
) -> dict[str, float]:
    """The score of one response, with what it is made of for verl's log.

    verl has no "not applicable": where this machine could not judge a response, the score is 0 and ``judged`` is 0 as well.

    Args:
        data_source: Not looked at.
        solution_str: The response.
        ground_truth: Name or path of the task.
        extra_info: ``baseline``, ``shown`` and ``shown_plans`` as in `evo.reward.trl.TritonReward`, where it has them.
        device, target, address, evaluators, deadline_s: See `PoolSettings`; verl passes them from ``reward_kwargs``.
        tasks: Folder of the data set, from which paths of task files start; empty for the current one.
        others: What verl adds, not looked at.

    Raises:
        InputError: There is no task, or no evaluator can be had here.
    """
    if not ground_truth:
        raise InputError("reward_model.ground_truth", given=ground_truth, allowed="name or path of a task")
    settings = PoolSettings(device, target, address, evaluators, deadline_s)
    with _LOCK:
        rewarding = _REWARDING.setdefault(settings, Rewarding(settings))
    columns = {key: (extra_info or {}).get(key) for key in ("baseline", "shown", "shown_plans")}
    (parts,) = rewarding.parts([submission_of(solution_str, ground_truth, **columns, tasks=tasks)])
    judged = parts if isinstance(parts, Parts) else Parts(0.0, 0.0, 0.0)
    return {
        "score": judged.reward,
        "judged": float(judged is parts),
        "rule": judged.rule,
        "execution": judged.execution,
        "speed": judged.speed,
        "measured": float(judged.measured),
    }
