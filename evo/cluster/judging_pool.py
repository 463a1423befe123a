"""Judges batches of replies on all evaluators of a Ray cluster, which are shared by whoever asks there and kept from call to call."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from evo.cluster.devices import resolve_device
from evo.cluster.judging import ATTEMPTS, THREADS, Judged, Judging, Submission
from evo.cluster.processes import die_with_parent, forget_keys
from evo.cluster.session import Capacity, ray_session
from evo.config import ClusterSection, RunConfig
from evo.errors import ConfigError
from evo.evaluation.settings import EvaluationSettings
from evo.plain import content_id

NAMESPACE = "triton-evolve"
START_S = 300.0
"""For an evaluator to be there: its process, its imports, its device, the baselines of its first tasks."""

RENEWAL_S = 0.5
"""Ray needs a moment to know that an actor is gone."""

TRAINING = EvaluationSettings(
    deep_tune_trials=0, start_tune_trials=16, race=(8, 32), trace_deadline_s=20.0, compile_deadline_s=30.0, run_deadline_s=20.0
)
"""Of a judge that many replies wait for: quick tunes only, shorter races and deadlines than a search has."""


@dataclass(frozen=True)
class PoolSettings:
    """Where and how replies are judged.

    Attributes:
        device: ``gpu``: one evaluator per GPU. ``cpu``: interpreted. ``auto``: GPUs if there are any.
        target: As in a configuration; ``auto``: that of the GPU found.
        address: A running Ray cluster; None joins the one that this process is connected to, or starts a local one.
        evaluators: How many, or ``auto``.
        deadline_s: Wall seconds per reply.
        evaluation: See `EvaluationSettings`; without a GPU nothing is tuned.
    """

    device: str = "auto"
    target: str = "auto"
    address: str | None = None
    evaluators: int | str = "auto"
    deadline_s: float = 120.0
    evaluation: EvaluationSettings = field(default=TRAINING)


@dataclass(frozen=True)
class _Sent:
    """A submission under way: to which actor, and which attempt it is."""

    item: Submission
    number: int
    actor: Any
    attempt: int


class JudgingActor(Judging):
    """`Judging` as a Ray actor, without keys of models in its environment."""

    def __init__(self, config: RunConfig, device: str, deadline_s: float) -> None:
        die_with_parent()
        forget_keys(config)
        super().__init__(device, config.evaluation, deadline_s)


class JudgingPool:
    """Starts or joins Ray and the evaluators on it; thread-safe.

    Evaluators have names, so that several pools of one cluster with equal settings, in processes of one training say, share them.

    Raises:
        InputError: A setting cannot be used here: no such device, more evaluators than there are, no cluster at the address.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._next = itertools.count(os.getpid())
        self._lock = threading.Lock()
        with ExitStack() as started:
            section = ClusterSection.model_validate(
                {"address": settings.address, "device": settings.device, "evaluators": settings.evaluators}
            )
            capacity = started.enter_context(ray_session(section))
            config = RunConfig(name="judging", tasks=("none",), target=settings.target, cluster=section)
            self.device, target, _ = resolve_device(config, capacity)
            evaluation = _for_device(settings.evaluation, self.device, target)
            self._config = config.model_copy(update={"target": target, "evaluation": evaluation})
            self._count = _count(settings.evaluators, self.device, capacity)
            self._actors = [self._actor(number) for number in range(self._count)]
            self._stack = started.pop_all()

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judged]:
        """A judgement per submission, in order; equal ones are judged once. Never raises for what they contain, and ends in time."""
        import ray

        unique = list(dict.fromkeys(submissions))
        waiting: dict[Any, _Sent] = dict(self._send(item, 1) for item in unique)
        found: dict[Submission, Judged] = {}
        ends = time.monotonic() + self._limit_s(len(unique))
        while waiting and (left := ends - time.monotonic()) > 0:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            for reference in done:
                sent = waiting.pop(reference)
                try:
                    found[sent.item] = ray.get(reference)
                except ray.exceptions.RayError as error:  # its process or its host is gone; Ray's text is of many lines
                    if sent.attempt == ATTEMPTS:
                        found[sent.item] = Judged(None, f"{type(error).__name__}: the evaluator ended")
                        continue
                    self._renew(sent.number, sent.actor)
                    waiting.update([self._send(sent.item, sent.attempt + 1)])
        for sent in waiting.values():
            found[sent.item] = Judged(None, "the evaluators gave no verdict in time: are the cluster's GPUs taken by others?")
        return [found[item] for item in submissions]

    def close(self) -> None:
        """Gives the evaluators up, and ends Ray if it was started for this pool. Idempotent."""
        self._actors.clear()
        self._stack.close()

    def _send(self, item: Submission, attempt: int) -> tuple[Any, _Sent]:
        number = next(self._next) % self._count
        actor = self._actors[number]
        return actor.judge.remote(item), _Sent(item, number, actor, attempt)

    def _renew(self, number: int, lost: Any) -> None:
        """Another handle, of the same actor where Ray restarts it, else of a new one as soon as the name of the old one is free."""
        time.sleep(RENEWAL_S)
        with self._lock:
            if self._actors[number] is lost:
                self._actors[number] = self._actor(number)

    def _actor(self, number: int) -> Any:
        import ray

        gpu = self.device == "gpu"
        key = content_id(self._config.to_text(), self.device, repr(self._settings.deadline_s))
        options = {
            "name": f"judging-{key}-{number}", "namespace": NAMESPACE, "get_if_exists": True, "max_restarts": -1, "max_task_retries": 0,
            "max_concurrency": THREADS, "num_gpus": 1 if gpu else 0, "num_cpus": 0,
        }  # fmt: skip
        return ray.remote(JudgingActor).options(**options).remote(self._config, self.device, self._settings.deadline_s)

    def _limit_s(self, count: int) -> float:
        """More than any well working pool needs: each reply of an evaluator waits for all others of it."""
        rounds = math.ceil(count / self._count)
        return START_S + ATTEMPTS * self._settings.deadline_s * rounds


def _count(wanted: int | str, device: str, capacity: Capacity) -> int:
    """How many evaluators; without a GPU one core is left to whoever asks."""
    unit, available = ("GPU", capacity.gpus) if device == "gpu" else ("CPU", capacity.cpus)
    if isinstance(wanted, str):
        return available if unit == "GPU" else max(1, available - 1)
    if wanted > max(1, available):
        raise ConfigError("evaluators", given=wanted, allowed=f"auto, or at most {available}: this Ray has {available} {unit}s")
    return wanted


def _for_device(settings: EvaluationSettings, device: str, target: str) -> EvaluationSettings:
    if device == "gpu":
        return dataclasses.replace(settings, target=target)
    # Estimates are no speedups, so nothing is gained by tuning for them.
    return dataclasses.replace(
        settings, target=target, tune_trials=0, deep_tune_trials=0, start_tune_trials=0, training_cases=None
    )
